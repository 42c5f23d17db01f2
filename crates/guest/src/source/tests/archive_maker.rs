//! Archives as no honest tool makes them: any path, any size.

use std::io::Write;
use tar::{EntryType, Header};

#[derive(Default)]
pub(super) struct Maker {
    bytes: Vec<u8>,
}

impl Maker {
    /// An entry with exactly this path, however wrong.
    pub(super) fn entry(self, kind: EntryType, path: &str, link: &str, content: &[u8]) -> Self {
        self.sized(kind, path, link, content, content.len() as u64)
    }

    pub(super) fn sized(self, kind: EntryType, path: &str, link: &str, content: &[u8], size: u64) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        header.set_uid(uid.as_raw().into());
        header.set_gid(gid.as_raw().into());
        header.set_mtime(1_000_000_000);
        self.raw(header, path, link, content)
    }

    pub(super) fn raw(mut self, mut header: Header, path: &str, link: &str, content: &[u8]) -> Self {
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..path.len()].copy_from_slice(path.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, path: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, path, "", content.as_bytes())
    }

    pub(super) fn directory(self, path: &str) -> Self {
        self.entry(EntryType::Directory, path, "", b"")
    }

    pub(super) fn symlink(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Symlink, path, to, b"")
    }

    pub(super) fn link(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Link, path, to, b"")
    }

    /// A pax header for the entry that follows.
    pub(super) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + rest.to_string().len();
            if length.to_string().len() != rest.to_string().len() {
                length += 1;
            }
            text.extend(format!("{length} {key}=").bytes());
            text.extend(*value);
            text.push(b'\n');
        }
        self.entry(EntryType::XHeader, "pax", "", &text)
    }

    pub(super) fn without_end(self) -> Vec<u8> {
        self.bytes
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        self.bytes
    }
}

pub(super) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(plain: &[u8]) -> Vec<u8> {
    // With a checksum, as the command zstd writes them.
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn xz(plain: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

//! How an archive is compressed: told by its first bytes, whatever its name says.

use std::io::{self, BufRead, Read};

/// Memory that unpacking xz may take. `xz -9` needs 65 MiB.
const XZ_MEMORY: u64 = 512 << 20;

/// The window of zstd, as a power of two: what `zstd --long` uses, 128 MiB.
pub(crate) const ZSTD_WINDOW: u32 = 27;

/// The format in which data is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// The data is not compressed.
    None,
    /// gzip, of one or several members.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
    /// Known, and not handled: its name.
    Other(&'static str),
}

/// First bytes of what people also pack files with.
const OTHERS: [(&[u8], &str); 7] = [
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
    (b"!<arch>", "ar (a Debian package?)"),
    (b"hsqs", "squashfs"),
    (b"\x5d\x00\x00", "lzma"),
];

impl Compression {
    /// By the first bytes of the file; six are enough.
    pub fn of(first: &[u8]) -> Self {
        if first.starts_with(b"\x1f\x8b") {
            return Self::Gzip;
        }
        // A zstd file may begin with a skippable frame.
        let skippable = first.len() >= 4 && first[0] & 0xf0 == 0x50 && first[1..4] == *b"\x2a\x4d\x18";
        if first.starts_with(b"\x28\xb5\x2f\xfd") || skippable {
            return Self::Zstd;
        }
        if first.starts_with(b"\xfd7zXZ\0") {
            return Self::Xz;
        }
        OTHERS.iter().find(|(magic, _)| first.starts_with(magic)).map_or(Self::None, |(_, name)| Self::Other(name))
    }

    /// The plain bytes of `packed`.
    pub(crate) fn plain<'a>(self, packed: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::None | Self::Other(_) => Box::new(packed),
            Self::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Self::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
                decoder.window_log_max(ZSTD_WINDOW)?;
                Box::new(decoder)
            }
            Self::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(packed, stream))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell() {
        assert_eq!(Compression::of(b""), Compression::None);
        assert_eq!(Compression::of(b"\x1f\x8b\x08"), Compression::Gzip);
        assert_eq!(Compression::of(b"\x53\x2a\x4d\x18"), Compression::Zstd);
        assert_eq!(Compression::of(b"BZh9"), Compression::Other("bzip2"));
        assert_eq!(Compression::of(b"./\0\0\0\0"), Compression::None);
    }
}

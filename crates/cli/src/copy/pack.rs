//! Files made into a tar stream.

use super::attributes;
use super::attributes::Attributes;
use super::unpack::NO_FILE;
use crate::host_path::Links;
use anyhow::{Context, bail, ensure};
use pando_kernel::file::tree_copy::names_in;
use pando_kernel::filesystem::kernels_own::is_the_kernels_own;
use pando_reader::{ATTRIBUTE, LARGEST_EXTENSION};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlinkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{BufWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tar::{Builder, EntryType, Header};

/// Who owns the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owners {
    /// Root, as docker does it: the ids of this side mean somebody else on the other.
    Root,
    /// The numbers that they have.
    Kept,
}

/// Packs `source` under its own name, or, if it ends in `/.`, what is in it. The answer says what was left
/// out, a sentence each: sockets, devices, FIFOs.
///
/// Symbolic links are packed as such, the first one too. A further name of a file is packed as that.
pub(crate) fn pack(source: &Path, links: Links<'_>, out: impl Write, owners: Owners) -> anyhow::Result<Vec<String>> {
    let contents = source.as_os_str().as_bytes().ends_with(b"/.");
    let name = match source.file_name() {
        Some(name) if !contents => Some(PathBuf::from(name)),
        // "/", "." and "dir/.": there is no name to give.
        _ => None,
    };
    let mut packer = Packer {
        builder: Builder::new(BufWriter::with_capacity(64 * 1024, out)),
        owners,
        left_out: Vec::new(),
        names: HashMap::new(),
        // Who names a place there means it.
        walks_everywhere: is_virtual(source).unwrap_or(false),
    };
    // The way up to the source is the user's word. What is below may be somebody's who changes it meanwhile.
    let (top, first) = match &name {
        Some(name) => (source.parent().filter(|parent| !parent.as_os_str().is_empty()), name.clone()),
        None => (Some(source), PathBuf::from(".")),
    };
    let top_path = top.unwrap_or(Path::new("."));
    let failed = |path: &Path| format!("cannot copy '{}'", crate::printable::printable(&path.to_string_lossy()));
    let found = links.find(top_path).with_context(|| failed(source))?;
    let top = found.listed().with_context(|| failed(source))?;
    // A stack of our own: a tree may be deeper than a program's.
    let mut waiting = vec![first];
    while let Some(name) = waiting.pop() {
        let failed = || failed(&top_path.join(&name));
        let Some(directory) = packer.entry(&top, &name).with_context(failed)? else { continue };
        if packer.is_the_kernels(&directory).with_context(failed)? {
            continue;
        }
        let mut children = Vec::new();
        for child in names_in(directory.as_fd()).with_context(failed)? {
            children.push(if name == Path::new(".") { Path::new(".").join(child) } else { name.join(child) });
        }
        // The same tree gives the same stream.
        children.sort_unstable_by(|left, right| right.cmp(left));
        waiting.append(&mut children);
    }
    let mut out = packer.builder.into_inner().context("cannot write the tar stream")?;
    out.flush().context("cannot write the tar stream")?;
    Ok(packer.left_out)
}

fn is_virtual(path: &Path) -> std::io::Result<bool> {
    is_the_kernels_own(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens what has a path below a directory. A name that became a link meanwhile leads nowhere: its owner, who may be
/// anybody, would have root read for him what he cannot.
fn open_below(top: &OwnedFd, path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    const MOST_TRIES: u32 = 64;
    let confined = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // Nobody waits for the other end of a fifo. What is opened as a mere place takes no such word.
    let patient = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
    let flags = flags | patient | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 1..MOST_TRIES {
        match openat2(top, path, flags, Mode::empty(), confined) {
            // A rename anywhere raced with it.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return Ok(opened?),
        }
    }
    Ok(openat2(top, path, flags, Mode::empty(), confined)?)
}

struct Packer<W: Write> {
    builder: Builder<W>,
    owners: Owners,
    left_out: Vec<String>,
    /// The first names of files that have several, by device and inode.
    names: HashMap<(u64, u64), PathBuf>,
    /// Whether file systems that are the kernel's own are walked too.
    walks_everywhere: bool,
}

/// The most that is read of a file whose size nobody knows before.
const MOST_UNKNOWN: u64 = 16 << 20;

/// Whether a file may have more or less in it than it says: one of the kernel's own, which says nothing, or a page.
/// None of those takes blocks.
fn is_of_unknown_size(status: &Metadata) -> bool {
    const PAGES: u64 = 64 << 10;
    status.blocks() == 0 && status.len() <= PAGES
}

impl<W: Write> Packer<W> {
    /// Whether a directory shows objects of the kernel's, of which an archive has the place alone.
    fn is_the_kernels(&self, directory: &OwnedFd) -> std::io::Result<bool> {
        Ok(!self.walks_everywhere && is_the_kernels_own(directory)?)
    }

    /// Packs one; gives it, if it is a directory.
    fn entry(&mut self, top: &OwnedFd, name: &Path) -> anyhow::Result<Option<OwnedFd>> {
        let place = File::from(open_below(top, name, OFlags::PATH)?);
        let status = place.metadata()?;
        let mut header = self.header(&status);
        if status.is_dir() {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            let directory = open_below(&place.into(), Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
            self.extensions(&status, attributes::of(&directory, self.owners)?, name)?;
            self.builder.append_data(&mut header, name.join(""), std::io::empty())?;
            return Ok(Some(directory));
        } else if status.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            self.extensions(&status, Vec::new(), name)?;
            let target = readlinkat(&place, "", Vec::new())?;
            self.builder.append_link(&mut header, name, Path::new(OsStr::from_bytes(target.as_bytes())))?;
        } else if status.is_file() {
            self.file(top, name, &status, header)?;
        } else if name.components().count() <= 1 {
            bail!("it is a socket, a device or a FIFO");
        } else {
            let name = crate::printable::printable(&name.to_string_lossy()).to_string();
            self.left_out.push(format!("'{name}' {NO_FILE}"));
        }
        Ok(None)
    }

    fn file(&mut self, top: &OwnedFd, name: &Path, status: &Metadata, mut header: Header) -> anyhow::Result<()> {
        let identity = (status.dev(), status.ino());
        if let Some(first) = self.names.get(&identity) {
            header.set_entry_type(EntryType::Link);
            header.set_size(0);
            self.builder.append_link(&mut header, name, first)?;
            return Ok(());
        }
        header.set_entry_type(EntryType::Regular);
        let file = File::from(open_below(top, name, OFlags::RDONLY)?);
        let opened = file.metadata()?;
        ensure!((opened.dev(), opened.ino()) == identity, "it was replaced while it was copied; copy it again");
        self.extensions(status, attributes::of(&file, self.owners)?, name)?;
        if is_of_unknown_size(status) {
            let mut content = Vec::new();
            file.take(MOST_UNKNOWN + 1).read_to_end(&mut content)?;
            ensure!(content.len() as u64 <= MOST_UNKNOWN, "it has no end: more than {} MiB came", MOST_UNKNOWN >> 20);
            header.set_size(content.len() as u64);
            self.builder.append_data(&mut header, name, content.as_slice())?;
        } else {
            header.set_size(status.len());
            self.builder.append_data(&mut header, name, Exactly { file, left: status.len() })?;
        }
        if status.nlink() > 1 {
            self.names.insert(identity, name.to_owned());
        }
        Ok(())
    }

    /// What the header of an entry has no room for: the fraction of a second, extended attributes.
    fn extensions(&mut self, status: &Metadata, attributes: Attributes, name: &Path) -> anyhow::Result<()> {
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        if status.mtime_nsec() != 0 || status.mtime() < 0 {
            records.push(("mtime".to_owned(), moment(status.mtime(), status.mtime_nsec()).into_bytes()));
        }
        for (attribute, value) in attributes {
            let attribute = String::from_utf8(attribute).context("it has an attribute whose name is no text")?;
            records.push((format!("{ATTRIBUTE}{attribute}"), value));
        }
        let size: usize = records.iter().map(|(key, value)| key.len() + value.len() + LARGEST_NUMBER).sum();
        ensure!(
            size as u64 <= LARGEST_EXTENSION,
            "the extended attributes of '{}' are larger than {} KiB, which no copy carries",
            crate::printable::printable(&name.to_string_lossy()),
            LARGEST_EXTENSION >> 10
        );
        if !records.is_empty() {
            self.builder.append_pax_extensions(records.iter().map(|(key, value)| (key.as_str(), value.as_slice())))?;
        }
        Ok(())
    }

    fn header(&self, status: &Metadata) -> Header {
        let mut header = Header::new_gnu();
        header.set_mode(status.mode() & 0o7777);
        header.set_mtime(u64::try_from(status.mtime()).unwrap_or(0));
        let (uid, gid) = match self.owners {
            Owners::Root => (0, 0),
            Owners::Kept => (status.uid(), status.gid()),
        };
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header
    }
}

/// What a record of a pax header takes besides its key and value: its length, a space, an equals sign, a newline.
const LARGEST_NUMBER: usize = 8;

/// A time as pax has it, in seconds with a fraction; before 1970 it counts backward.
fn moment(seconds: i64, nanoseconds: i64) -> String {
    const SECOND: i64 = 1_000_000_000;
    match (seconds < 0, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (false, _) => format!("{seconds}.{nanoseconds:09}"),
        (true, _) => format!("-{}.{:09}", -(seconds + 1), SECOND - nanoseconds),
    }
}

/// As many bytes as the header said: the beginning of a file that grows meanwhile, and an error for one that shrinks.
/// What it had is lost then, and zeros in its place would be taken for it.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..room];
        let length = self.file.read(buffer)?;
        if length == 0 && room > 0 {
            return Err(std::io::Error::other("it became shorter while it was copied; copy it again"));
        }
        self.left -= length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Landing, unpack_foreign};
    use std::io::Seek;

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir_all(tree.join("sub")).unwrap();
        std::fs::write(tree.join("sub/file"), "text").unwrap();
        let long = "n".repeat(180);
        std::fs::write(tree.join(&long), "").unwrap();
        std::os::unix::fs::symlink(format!("/{long}"), tree.join("link")).unwrap();
        std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
        directory
    }

    fn round(source: &Path, destination: &Path) -> Vec<String> {
        let mut stream = tempfile::tempfile().unwrap();
        let left_out = pack(source, Links::Followed, &mut stream, Owners::Root).unwrap();
        stream.rewind().unwrap();
        unpack_foreign(stream, Landing::at(destination, Links::Followed).unwrap()).unwrap();
        left_out
    }

    #[test]
    fn a_tree_goes_through_and_comes_out_the_same() {
        let (from, to) = (tree(), tempfile::tempdir().unwrap());
        let left_out = round(&from.path().join("tree"), to.path());
        assert_eq!(left_out.len(), 1, "the socket");
        assert_eq!(std::fs::read_to_string(to.path().join("tree/sub/file")).unwrap(), "text");
        let link = std::fs::read_link(to.path().join("tree/link")).unwrap();
        assert_eq!(link.as_os_str().len(), 181);
        round(&from.path().join("tree"), &to.path().join("renamed"));
        assert!(to.path().join("renamed/sub/file").exists());
        round(&from.path().join("tree/."), &to.path().join("contents"));
        assert!(to.path().join("contents/sub/file").exists());
        std::fs::create_dir(to.path().join("into")).unwrap();
        round(&from.path().join("tree/."), &to.path().join("into"));
        assert!(to.path().join("into/sub/file").exists());
    }

    #[test]
    fn what_belongs_to_files_comes_along() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let tree = from.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("a"), "text").unwrap();
        std::fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
        let file = File::options().write(true).open(tree.join("a")).unwrap();
        let time = std::time::UNIX_EPOCH - std::time::Duration::from_nanos(1_250_000_007);
        file.set_times(std::fs::FileTimes::new().set_modified(time)).unwrap();
        let noted = attributes::set(&file, b"user.note", b"two\nlines\0").is_ok();
        let sparse = File::create(tree.join("sparse")).unwrap();
        sparse.set_len(4 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", 3 << 20).unwrap();
        for (source, place) in [(tree.clone(), "tree"), (tree.join("."), "contents")] {
            round(&source, &to.path().join(place));
            let at = to.path().join(place);
            let (a, b) = (at.join("a").metadata().unwrap(), at.join("b").metadata().unwrap());
            assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
            assert_eq!((a.mtime(), a.mtime_nsec()), (-2, 749_999_993));
            let noted_there = attributes::of(File::open(at.join("b")).unwrap(), Owners::Root).unwrap();
            assert_eq!(noted_there.len(), usize::from(noted));
            assert!(!noted || noted_there[0] == (b"user.note".to_vec(), b"two\nlines\0".to_vec()));
            let sparse = at.join("sparse");
            assert!(sparse.metadata().unwrap().blocks() * 512 <= 64 << 10, "it has its holes");
            assert_eq!(std::fs::read(sparse).unwrap(), std::fs::read(tree.join("sparse")).unwrap());
        }
    }

    #[test]
    fn a_file_is_renamed_or_put_into_a_directory() {
        let (from, to) = (tree(), tempfile::tempdir().unwrap());
        let file = from.path().join("tree/sub/file");
        round(&file, &to.path().join("new"));
        round(&file, to.path());
        round(&file, &to.path().join("new"));
        assert!(to.path().join("new").is_file() && to.path().join("file").is_file());
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        let mut content = Vec::new();
        let error = Exactly { file: file.reopen().unwrap(), left: 5 }.read_to_end(&mut content).unwrap_err();
        assert!(error.to_string().contains("became shorter"), "{error}");
        content.clear();
        Exactly { file: file.reopen().unwrap(), left: 2 }.read_to_end(&mut content).unwrap();
        assert_eq!(content, b"ab");
    }

    #[test]
    fn the_kernels_own_files_come_whole() {
        let to = tempfile::tempdir().unwrap();
        for (source, name) in [("/proc/version", "version"), ("/sys/kernel/mm/transparent_hugepage/enabled", "enabled")]
        {
            let Ok(expected) = std::fs::read(source) else { continue };
            round(Path::new(source), to.path());
            assert_eq!(std::fs::read(to.path().join(name)).unwrap(), expected, "{source}");
        }
    }

    #[test]
    fn what_is_not_there_is_told() {
        let error = pack(Path::new("/no/such"), Links::Followed, Vec::new(), Owners::Kept).unwrap_err();
        assert_eq!(
            crate::complaint::sentences(&error),
            "cannot copy '/no/such': it does not exist. Check the spelling of the path."
        );
    }
}

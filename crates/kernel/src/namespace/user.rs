//! Which user namespaces lie in which (ioctl_ns(2), since Linux 4.9), and entering a new one.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// `NS_GET_PARENT`: `_IO(0xb7, 2)`
const PARENT: libc::c_ulong = 0xb702;

/// The kernel makes no more than this many, each in the one before.
const DEEPEST: usize = 33;

/// Whether a process's user namespace is that of another, or lies in it: there the other's capabilities count.
///
/// # Errors
///
/// ENOENT where a process has gone.
pub fn lies_in(pid: i32, outer: i32) -> io::Result<bool> {
    let of = |pid: i32| File::open(format!("/proc/{pid}/ns/user"));
    let wanted = of(outer)?.metadata()?.ino();
    let mut namespace = of(pid)?;
    for _ in 0..=DEEPEST {
        if namespace.metadata()?.ino() == wanted {
            return Ok(true);
        }
        let Some(parent) = parent(&namespace) else { return Ok(false) };
        namespace = parent;
    }
    Ok(false)
}

/// Puts this process into a new user namespace (unshare(2), since Linux 3.8): it has every capability in there, and no
/// id is mapped yet.
///
/// # Errors
///
/// EINVAL in a process of several threads; ENOSPC where no more may be made (`user.max_user_namespaces`).
pub fn unshare() -> io::Result<()> {
    // SAFETY: no memory is passed; descriptors, memory and file system state of this process stay its own.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The one that it lies in; `None` for the first, and where that is out of this process's sight.
fn parent(namespace: &File) -> Option<File> {
    // SAFETY: touches no memory.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), PARENT) };
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_namespace_lies_in_the_one_that_it_was_made_in_and_not_the_other_way() {
        let me = std::process::id().cast_signed();
        assert!(lies_in(me, me).unwrap());
        let started = Command::new("unshare")
            .args(["-U", "sh", "-c", "echo ready; exec sleep 100"])
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else { return eprintln!("skipped: there is no unshare(1)") };
        let (mut line, pid) = (String::new(), child.id().cast_signed());
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let found = (lies_in(pid, me), lies_in(me, pid));
        child.kill().unwrap();
        child.wait().unwrap();
        if line != "ready\n" {
            return eprintln!("skipped: no user namespace can be made");
        }
        assert_eq!((found.0.unwrap(), found.1.unwrap()), (true, false));
    }
}

//! Who could still write to a file.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Whether nobody has a plain file open for writing, by any descriptor or mapping, as its lease for reading tells
/// (F_SETLEASE in fcntl_locking(2)). `file` has to be open for reading alone. Whoever could open it anew is for the
/// caller to keep out before.
///
/// Also false where that cannot be known: the file system has no leases, or this process may have none.
pub fn has_none(file: &File) -> bool {
    let lease = |kind: i32| {
        // SAFETY: the kernel takes the number as it is, and touches no memory.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
    };
    lease(libc::F_RDLCK) && lease(libc::F_UNLCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_it_open_for_writing_is_noticed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        assert!(!has_none(&reader));
        drop(writer);
        assert!(has_none(&reader));
        // Of the lease nothing is left.
        drop(File::options().write(true).open(&path).unwrap());
    }
}

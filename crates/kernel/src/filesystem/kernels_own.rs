//! File systems that show the kernel's objects as files.

use rustix::fs::fstatfs;
use std::io;
use std::os::fd::AsFd;

/// Their numbers (linux/magic.h): proc, sysfs, cgroup, cgroup2, devpts, mqueue, bpf, debugfs, tracefs, securityfs.
const NUMBERS: [i64; 10] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x1cd1,
    0x1980_0202,
    0xcafe_4a11,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
];

/// Whether an object is of such a file system, where to open, read or write one does more than that. It may be open as
/// a place alone (O_PATH).
///
/// # Errors
///
/// Those of fstatfs(2).
pub fn is_the_kernels_own(object: impl AsFd) -> io::Result<bool> {
    Ok(NUMBERS.contains(&fstatfs(object)?.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_of_the_kernels_is_told_from_one_on_a_disk() {
        assert!(is_the_kernels_own(File::open("/proc/self/status").unwrap()).unwrap());
        assert!(!is_the_kernels_own(tempfile::tempfile().unwrap()).unwrap());
    }
}

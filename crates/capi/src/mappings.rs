//! Memory of the program that is a file's: what is written to it reaches the file outside, whatever view the program is
//! in.

use crate::calls;
use crate::failure::Failure;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

/// Fails where the program has a file mapped that it writes to through that.
pub(crate) fn lead_nowhere() -> Result<(), Failure> {
    let maps = rustix::fs::openat(CWD, "/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let maps = maps.map_err(|errno| Failure::of_call("/proc/self/maps", "opening it", errno))?;
    let mut address = 0;
    let written = loop {
        match calls::next_shared_mapping(&maps, address) {
            Ok((_, name)) if is_a_files(&name) => break Some(String::from_utf8_lossy(&name).into_owned()),
            Ok((end, _)) => address = end,
            Err(Errno::NOENT) => break None,
            // The kernel does not answer such questions yet.
            Err(_) => break in_text(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default()),
        }
    };
    let Some(path) = written else { return Ok(()) };
    let reason = format!(
        "{path} is mapped, shared and to be written to: what is written through that memory would reach the file at once; unmap it before the transaction, and map it inside"
    );
    Err(Failure::about(path, reason))
}

/// Whether a mapping of that name is of a file that has one: memory that processes share has none, nor have devices'
/// and what is removed.
fn is_a_files(name: &[u8]) -> bool {
    let beginnings: [&[u8]; 5] = [b"/dev/", b"/memfd:", b"/SYSV", b"/proc/", b"/sys/"];
    name.first() == Some(&b'/')
        && !name.ends_with(b" (deleted)")
        && (name.starts_with(b"/dev/shm/") || !beginnings.iter().any(|begin| name.starts_with(begin)))
}

/// The first such file in the text of /proc/PID/maps.
fn in_text(maps: &str) -> Option<String> {
    let written = |line: &&str| {
        line.split(' ').nth(1).is_some_and(|rights| rights.as_bytes().get(1) == Some(&b'w') && rights.ends_with('s'))
    };
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    maps.lines().filter(written).filter_map(path).find(|path| is_a_files(path.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_whether_a_file_is_written_to() {
        let line = |rights: &str, name: &str| in_text(&format!("7f0-7f1 {rights} 00000000 08:01 12      {name}"));
        assert_eq!(line("rw-s", "/var/lib/a b"), Some("/var/lib/a b".into()));
        for (rights, name) in [
            ("rw-p", "/x"),
            ("r--s", "/x"),
            ("rw-s", "/dev/zero (deleted)"),
            ("rw-s", "/memfd:x (deleted)"),
            ("rw-s", "/dev/dri/card0"),
            ("rw-s", ""),
        ] {
            assert_eq!(line(rights, name), None, "{rights} {name}");
        }
        assert!(line("rw-s", "/dev/shm/x").is_some());
    }

    #[test]
    fn a_program_that_has_nothing_mapped_that_way_may_begin() {
        assert!(lead_nowhere().is_ok());
    }
}

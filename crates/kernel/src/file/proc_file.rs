//! Reading the kernel's own files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes to begin with: a file that says to be empty is read in ever larger pieces else, the first of which has 32
/// bytes, and for each the kernel looks up anew where it was.
const ROOM: usize = 16 << 10;

/// Everything that a file of /proc or /sys says at present.
///
/// # Errors
///
/// ENOENT and ESRCH where the file's process has gone.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_all(File::open(path)?)
}

/// Everything that a file of /proc or /sys says at present, as text. Names in it are any bytes that their owners chose:
/// what is not UTF-8 is replaced, since the rest of the file counts all the same.
///
/// # Errors
///
/// ENOENT and ESRCH where the file's process has gone.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    read(path).map(lossy)
}

/// The text of an open file, from where it stands.
///
/// # Errors
///
/// ESRCH where the file's process has gone.
pub fn text_of(file: &File) -> io::Result<String> {
    read_all(file).map(lossy)
}

fn read_all(mut file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ROOM);
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_calls_itself_by_no_text_is_read_all_the_same() {
        let thread = std::thread::Builder::new().spawn(|| {
            std::fs::write("/proc/thread-self/comm", b"\xff(\n)\xfe").unwrap();
            text("/proc/thread-self/status").unwrap()
        });
        let status = thread.unwrap().join().unwrap();
        assert!(status.starts_with("Name:\t\u{fffd}("), "{status}");
        assert!(status.lines().any(|line| line.starts_with("Seccomp:")), "{status}");
    }
}

//! Files that the kernel swaps to (proc_swaps(5)). Nobody can write to one, remove or replace it: EPERM, ETXTBSY.

use crate::mount::unescape;
use std::io;
use std::path::PathBuf;

/// The paths of the files and devices that the kernel swaps to, as this process sees them.
///
/// # Errors
///
/// Those of reading /proc/swaps; a kernel without swap has none, which is an empty list.
pub fn swap_files() -> io::Result<Vec<PathBuf>> {
    match std::fs::read("/proc/swaps") {
        Ok(text) => Ok(parse(&text)),
        // A kernel without swapping.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

pub(crate) fn parse(text: &[u8]) -> Vec<PathBuf> {
    let lines = text.split(|byte| *byte == b'\n').skip(1);
    let file = |line: &[u8]| {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (path, kind) = (words.next()?, words.next()?);
        (kind == b"file").then(|| unescape(path))
    };
    lines.filter_map(file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_devices() {
        let text = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/vdb                                partition\t8388604\t\t0\t\t-2\n/var/swap\\040file                        file\t\t20476\t\t0\t\t-3\n";
        assert_eq!(parse(text), [PathBuf::from("/var/swap file")]);
        assert!(parse(b"Filename\tType\n").is_empty() && parse(b"").is_empty());
    }

    #[test]
    fn this_machines_can_be_read() {
        swap_files().unwrap();
    }
}

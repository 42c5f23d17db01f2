//! Reading the kernel's own files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes to begin with: a file that says to be empty is read in ever larger pieces else, the first of which has 32 bytes, and for each the kernel looks up anew
/// where it was.
const ROOM: usize = 16 << 10;

/// Everything that a file of /proc or /sys says at present.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

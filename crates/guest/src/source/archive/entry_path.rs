//! What an archive calls its entries, as places in the tree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// No file system takes a longer name.
const LONGEST_NAME: usize = 255;

/// PATH_MAX without the zero at its end: nobody could open a longer one by its name. It bounds the depth of a tree as
/// well, at 2,048.
const LONGEST_PATH: usize = 4_095;

/// The place of an entry in the tree: its name without leading slashes and without `.`. The error is the rest of a
/// sentence.
pub(crate) fn entry_path(name: &[u8]) -> Result<PathBuf, String> {
    if name.len() > LONGEST_PATH {
        return Err(format!("has a path of {} bytes, and the longest that can be opened has 4,095", name.len()));
    }
    let mut path = PathBuf::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("leaves the archive by '..'".to_owned()),
            part if part.contains(&0) => return Err("has a zero byte in its path".to_owned()),
            part if part.len() > LONGEST_NAME => return Err("has a name longer than 255 bytes".to_owned()),
            part => path.push(OsStr::from_bytes(part)),
        }
    }
    Ok(path)
}

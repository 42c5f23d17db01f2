//! A swap file that is in use while it lives.

use crate::case::skip;
use crate::line::Line;

pub(crate) struct SwapFile(std::path::PathBuf);

impl SwapFile {
    /// Makes one of so many megabytes; skips the test where nothing can be swapped.
    pub(crate) fn make(path: std::path::PathBuf, megabytes: u32) -> Self {
        let file = Self(path);
        let path = file.0.to_string_lossy().into_owned();
        // It may have no holes.
        let (of, count) = (format!("of={path}"), format!("count={megabytes}"));
        Line::new("dd").args(["if=/dev/zero", "bs=1M", &count, &of]).ok();
        Line::new("chmod").args(["600", &path]).ok();
        Line::new("mkswap").args([&path]).ok();
        let used = Line::new("swapon").args([&path]).run();
        if used.code() != 0 {
            skip(format!("nothing can be swapped here: {}", used.err().trim()));
        }
        file
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        Line::new("swapoff").args([&self.0]).run();
        let _ = std::fs::remove_file(&self.0);
    }
}

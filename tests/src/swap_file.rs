//! A swap file that is in use while it lives.

use crate::case::skip;
use crate::line::Line;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

/// Swap is the machine's: who fills his has all others' filled too.
static IN_USE: Mutex<()> = Mutex::new(());

pub(crate) struct SwapFile {
    path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl SwapFile {
    /// Makes one of so many megabytes; skips the test where nothing can be swapped.
    pub(crate) fn make(path: PathBuf, megabytes: u32) -> Self {
        let file = Self { path, _turn: IN_USE.lock().unwrap_or_else(|failed| failed.into_inner()) };
        let path = file.path.to_string_lossy().into_owned();
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
        // As long as a guest at its bound has something in it, that may have nowhere to go.
        for _ in 0..40 {
            let off = Line::new("swapoff").args([&self.path]).run();
            if off.code() == 0 {
                break;
            }
            eprintln!("swap is still in use: {}", off.err().trim());
            std::thread::sleep(std::time::Duration::from_millis(250));
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

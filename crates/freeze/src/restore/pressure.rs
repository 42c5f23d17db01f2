//! Files of pressure stall information (PSI) that a program has asked to be woken by. The kernel does not tell what it
//! asked for; and one that nothing was asked of is ready for ever, which would have its program run in circles. So a
//! clone asks for what systemd asks for, and has the programs do that it starts: to hear when for a tenth of two
//! seconds somebody waited.

use crate::image::OpenFile;
use crate::restore::script::{Chapter, Writer};

/// A threshold and a window, in microseconds; the kernel lets anybody have windows of two seconds.
const ASKED: &[u8] = b"some 200000 2000000\0";

/// Whether an open file is one that can be asked.
fn is_one(file: &OpenFile, path: &str) -> bool {
    const RESOURCES: [&str; 4] = ["cpu", "io", "irq", "memory"];
    let writes = file.flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
    let of_group = || path.strip_prefix("/sys/fs/cgroup/")?.rsplit('/').next()?.strip_suffix(".pressure");
    let named = path.strip_prefix("/proc/pressure/").or_else(of_group);
    writes && named.is_some_and(|name| RESOURCES.contains(&name))
}

/// Writes the asking, if it is one.
pub(crate) fn ask(writer: &mut Writer, chapter: Chapter, file: &OpenFile, path: &str, slot: u64) {
    if is_one(file, path) {
        let asked = writer.data(ASKED, 1);
        let arguments = [slot, asked, ASKED.len() as u64];
        writer.attempt(chapter, format!("asking for {path}"), libc::SYS_write, &arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::FileKind;

    #[test]
    fn what_is_open_for_writing_is_asked() {
        let is_one = |flags: i32, path: &str| {
            let (flags, kind) = (flags as u32, FileKind::Named { path: path.into() });
            let (lock, ranges, mount_space) = (None, Vec::new(), None);
            is_one(&OpenFile { flags, position: 0, lock, ranges, kind, mount_space }, path)
        };
        assert!(is_one(libc::O_RDWR, "/sys/fs/cgroup/init.scope/memory.pressure"));
        assert!(is_one(libc::O_RDWR, "/sys/fs/cgroup/memory.pressure") && is_one(libc::O_RDWR, "/proc/pressure/io"));
        assert!(!is_one(libc::O_RDONLY, "/proc/pressure/io") && !is_one(libc::O_RDWR, "/tmp/memory.pressure"));
        assert!(!is_one(libc::O_RDWR, "/sys/fs/cgroup/a/memory.max"));
    }
}

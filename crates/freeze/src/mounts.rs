//! File systems in memory that the processes have mounted themselves, as an init does for /run: a clone has them again, and what was in them (see `contents`).
//!
//! What else a guest mounts is refused: what is behind it is nobody's to copy.

use crate::freeze::Subject;
use crate::image::Image;
use crate::proc_file;
use crate::script::Writer;
use pando_kernel::CallError;
use pando_kernel::mount::{self, MountEntry};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMount {
    /// Where it is mounted.
    pub path: String,
    /// Options of the file system: what bounds it.
    pub options: String,
    /// Attributes of the mount: `MS_*`.
    pub flags: u64,
}

/// The most of them.
pub(crate) const MOST: usize = 256;

/// What the processes have mounted.
fn own(subject: &Subject<'_>) -> Result<Vec<MountEntry>, CallError> {
    let text = proc_file::text(subject.init, "mountinfo")?;
    Ok(beyond(mount::entries(&text), subject.given))
}

/// Those of some mounts that are not given. A path of what is given that ends in a slash stands for all that is below; of any other one mount is given,
/// and what is mounted over that is not.
fn beyond(mounts: impl Iterator<Item = MountEntry>, given: &[String]) -> Vec<MountEntry> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut is_given = |mount: &MountEntry| {
        let again = seen.contains(&mount.at);
        seen.push(mount.at.clone());
        let path = mount.at.to_string_lossy();
        given.iter().any(|given| match given.strip_suffix('/') {
            Some(above) if !above.is_empty() => path.starts_with(given.as_str()),
            _ => *given == path && !again,
        })
    };
    mounts.filter(|mount| !is_given(mount)).collect()
}

/// Whether a kind of file system has its files in memory and nowhere else. One without bounds, never in swap (ramfs, which systemd keeps credentials in), is a tmpfs in
/// a clone.
pub(crate) fn is_in_memory(kind: &str) -> bool {
    matches!(kind, "tmpfs" | "ramfs")
}

/// Whether it comes along: all of a file system in memory.
fn comes_along(mount: &MountEntry) -> bool {
    is_in_memory(&mount.kind) && mount.root == Path::new("/")
}

fn flags(mount: &MountEntry) -> u64 {
    const NAMES: [(&str, u64); 8] = [
        ("ro", libc::MS_RDONLY),
        ("nosuid", libc::MS_NOSUID),
        ("nodev", libc::MS_NODEV),
        ("noexec", libc::MS_NOEXEC),
        ("noatime", libc::MS_NOATIME),
        ("nodiratime", libc::MS_NODIRATIME),
        ("relatime", libc::MS_RELATIME),
        ("nosymfollow", NO_SYMFOLLOW),
    ];
    // A file system can be read-only itself, or one mount of it.
    let words = || mount.attributes.split(',').chain(mount.options.split(',').filter(|word| *word == "ro"));
    let has = |name: &str| words().any(|word| word == name);
    // What says nothing of times keeps all of them; a new mount does not by itself.
    let times = if has("noatime") || has("relatime") { 0 } else { libc::MS_STRICTATIME };
    NAMES.iter().filter(|(name, _)| has(name)).fold(times, |flags, (_, flag)| flags | flag)
}

/// What bounds a file system in memory, of its options. Whose it is, is that of its topmost directory.
pub(crate) fn bounds(options: &str) -> String {
    const KEPT: [&str; 4] = ["size=", "nr_inodes=", "nr_blocks=", "mode="];
    let kept = |word: &&str| KEPT.iter().any(|kept| word.starts_with(kept));
    options.split(',').filter(kept).collect::<Vec<_>>().join(",")
}

/// `MS_NOSYMFOLLOW`, since Linux 5.10.
const NO_SYMFOLLOW: u64 = 256;

/// What stands in the way of having all that is mounted once more.
pub(crate) fn objections(subject: &Subject<'_>) -> Vec<(String, &'static str)> {
    const ADVICE: &str = "unmount it; of what a guest mounts itself, file systems in memory (tmpfs) come along";
    let Ok(own) = own(subject) else { return Vec::new() };
    if own.len() > MOST {
        return vec![(format!("{} file systems of its own", own.len()), "unmount some")];
    }
    let strange = own.iter().filter(|mount| !comes_along(mount));
    strange
        .map(|mount| (format!("a file system of its own ({} on {})", mount.kind, mount.at.display()), ADVICE))
        .collect()
}

/// Those that come along, each before those inside.
pub(crate) fn capture(subject: &Subject<'_>) -> Result<Vec<MemoryMount>, CallError> {
    // A first process that is somebody else's mounts nothing.
    if !subject.whole {
        return Ok(Vec::new());
    }
    let mut mounts: Vec<_> = own(subject)?.into_iter().filter(comes_along).collect();
    mounts.sort_by_key(|mount| mount.at.components().count());
    let one = |mount: &MountEntry| {
        let path = mount.at.to_string_lossy().into_owned();
        MemoryMount { path, options: bounds(&mount.options), flags: flags(mount) }
    };
    Ok(mounts.iter().map(one).collect())
}

const READ_ONLY: u64 = libc::MS_RDONLY;

/// Writes the maker's steps that mount them.
pub(crate) fn make(writer: &mut Writer, image: &Image) {
    let chapter = Writer::MAKING;
    let kind = writer.string("tmpfs");
    for mount in &image.mounts {
        let (path, options) = (writer.string(&mount.path), writer.string(&mount.options));
        // What is above it may lie in another file system in memory, which is filled later and says then whose they are.
        let above: Vec<_> =
            Path::new(&mount.path).ancestors().skip(1).filter(|above| above.parent().is_some()).collect();
        for above in above.iter().rev().map(|above| above.to_string_lossy()) {
            let at = writer.string(&above);
            writer.attempt(chapter, format!("making {above}"), libc::SYS_mkdir, &[at, 0o755]);
        }
        writer.attempt(chapter, format!("making {}", mount.path), libc::SYS_mkdir, &[path, 0o755]);
        let arguments = [kind, path, kind, mount.flags & !READ_ONLY, options];
        writer.call(chapter, format!("mounting {}", mount.path), libc::SYS_mount, &arguments);
    }
}

/// Writes those that let nobody write to what nobody could write to, once all is in it.
pub(crate) fn protect(writer: &mut Writer, image: &Image) {
    for mount in image.mounts.iter().filter(|mount| mount.flags & READ_ONLY != 0) {
        let path = writer.string(&mount.path);
        let arguments = [0, path, 0, mount.flags | libc::MS_REMOUNT | libc::MS_BIND, 0];
        writer.call(Writer::MAKING, format!("protecting {}", mount.path), libc::SYS_mount, &arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
58 46 0:47 / / rw,nodev,relatime - overlay deb rw
77 47 0:43 / /dev/pts rw,nosuid - devpts none rw,gid=5
79 58 0:44 / /proc rw - proc none rw
82 79 0:41 /null /proc/keys ro - tmpfs none rw
85 58 0:70 / /run rw,nosuid,noexec,relatime shared:7 - tmpfs tmpfs rw,size=2468412k,mode=755,uid=524288
86 85 0:71 / /run/my\\040lock ro,nodev - tmpfs tmpfs rw,size=5120k
88 47 0:73 / /dev/pts rw - devpts none rw
89 58 0:70 /sub /mnt rw - tmpfs tmpfs rw
90 58 0:74 / /run/credentials/x ro,nosuid - ramfs ramfs rw,mode=700
";

    #[test]
    fn what_each_clone_has_already_is_left_out() {
        let given = ["/", "/dev/pts", "/proc", "/proc/"].map(str::to_owned);
        let own = beyond(mount::entries(TEXT), &given);
        let paths: Vec<_> = own.iter().map(|mount| mount.at.to_str().unwrap()).collect();
        assert_eq!(paths, ["/run", "/run/my lock", "/dev/pts", "/mnt", "/run/credentials/x"]);
        let along: Vec<_> = own.iter().map(comes_along).collect();
        assert_eq!(along, [true, true, false, false, true], "neither another kind nor a part");
        assert_eq!(bounds(&own[0].options), "size=2468412k,mode=755");
        assert_eq!(flags(&own[0]), libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_RELATIME);
        assert_eq!(flags(&own[1]), libc::MS_RDONLY | libc::MS_NODEV | libc::MS_STRICTATIME);
    }

    #[test]
    fn what_is_read_only_is_filled_before() {
        let mount = MemoryMount { path: "/run".into(), options: String::new(), flags: libc::MS_RDONLY };
        let image = Image { mounts: vec![mount], ..Image::default() };
        let mut writer = Writer::new();
        make(&mut writer, &image);
        protect(&mut writer, &image);
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        assert!(text.find("mounting /run").unwrap() < text.find("protecting /run").unwrap());
    }
}

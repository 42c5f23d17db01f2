//! Files that have no name: shared anonymous memory, memory files (memfd_create(2)), deleted files that are open or
//! mapped. Their content is copied twice: into the holder, while the processes stand still, and from there into a file
//! of each clone's own.

use crate::capture::lost_names::{self, Name};
use crate::image::mount::joined;
use crate::image::{Area, AreaKind, Content, ContentKind, Image, Process};
use crate::inspect::credentials::IdMaps;
use crate::inspect::open_files;
use crate::inspect::proc_file::{self, DELETED};
use pando_kernel::file::confined::{Links, Place, Root};
use pando_kernel::{CallError, Context};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

/// What is known of them while an image is captured.
#[derive(Debug)]
pub(crate) struct Contents {
    init: i32,
    maps: IdMaps,
    /// Which one is of a device and an inode.
    known: HashMap<(u64, u64), usize>,
    /// Where the guest has mounted something since its start.
    expected: HashSet<String>,
    /// What of directories in memory a clone would not have.
    lost: Vec<(String, &'static str)>,
}

/// A file, before it is known whether it has been seen already.
struct Sighting<'a> {
    device: u64,
    inode: u64,
    name: &'a str,
    outer: i32,
    holder: i32,
    path: String,
}

impl Contents {
    /// Of the pid namespace of a first process.
    pub(crate) fn of(init: i32) -> Result<Self, CallError> {
        Ok(Self { init, maps: IdMaps::of(init)?, known: HashMap::new(), expected: HashSet::new(), lost: Vec::new() })
    }

    /// The content of a descriptor.
    pub(crate) fn of_descriptor(
        &mut self,
        holder: i32,
        place: open_files::Place,
        name: &str,
        image: &mut Image,
    ) -> Result<usize, CallError> {
        let path = format!("fd/{}", place.number);
        let open_files::Place { outer, device, inode, .. } = place;
        self.note(Sighting { device, inode, name, outer, holder, path }, image)
    }

    /// The working directory of a process, where that was deleted.
    pub(crate) fn of_working_directory(
        &mut self,
        outer: i32,
        holder: i32,
        image: &mut Image,
    ) -> Result<Option<usize>, CallError> {
        let about = look(outer, "cwd")?;
        if about.nlink() > 0 {
            return Ok(None);
        }
        self.of_link((outer, holder), "cwd", &about, image).map(Some)
    }

    /// The program that a process executes, where that was deleted, or another was put into its place.
    pub(crate) fn of_program(
        &mut self,
        outer: i32,
        captured: &Process,
        image: &mut Image,
    ) -> Result<Option<usize>, CallError> {
        if !captured.executable.ends_with(DELETED) {
            return Ok(None);
        }
        let about = look(outer, "exe")?;
        self.of_link((outer, captured.pid), "exe", &about, image).map(Some)
    }

    /// What a link in the directory of a process in /proc leads to.
    fn of_link(
        &mut self,
        (outer, holder): (i32, i32),
        link: &str,
        about: &Metadata,
        image: &mut Image,
    ) -> Result<usize, CallError> {
        let name = proc_file::link(outer, link)?;
        let (device, inode) = (about.dev(), about.ino());
        self.note(Sighting { device, inode, name: &name, outer, holder, path: link.into() }, image)
    }

    /// Makes areas that map such files say so.
    pub(crate) fn of_areas(
        &mut self,
        outer: i32,
        holder: i32,
        areas: &mut [Area],
        image: &mut Image,
    ) -> Result<(), CallError> {
        for area in areas {
            if let (Name::Other(name), AreaKind::Shared { path, .. }) = (lost_names::of(outer, area), &mut area.kind) {
                *path = name;
                continue;
            }
            let (name, offset, writable) = match &area.kind {
                AreaKind::Private { path, offset } => (path, *offset, None),
                AreaKind::Shared { path, offset, writable } => (path, *offset, Some(*writable)),
                _ => continue,
            };
            if !name.ends_with(DELETED) {
                continue;
            }
            let path = format!("map_files/{:x}-{:x}", area.start, area.end);
            let found = look(outer, &path)?;
            let sighting = Sighting { device: found.dev(), inode: found.ino(), name, outer, holder, path };
            let content = self.note(sighting, image)?;
            let (shared, writable) = (writable.is_some(), writable.unwrap_or(true));
            area.kind = AreaKind::Nameless { content, offset, shared, writable };
        }
        Ok(())
    }

    /// Notes what is in a directory that is memory, and it: files, directories, links, named pipes. Sockets are made by
    /// who has them; devices cannot be there. What is mounted inside is not of this file system, and `left_out` what
    /// each clone has already.
    pub(crate) fn of_tree(&mut self, directory: &str, left_out: &[&str], image: &mut Image) -> Result<(), CallError> {
        let is_it = |one: &Content| matches!(&one.kind, ContentKind::Directory { path } if path == directory);
        // One that lies in another was looked through with that.
        if image.contents.iter().any(is_it) {
            return Ok(());
        }
        self.of_tree_of((self.init, image.init), (directory, left_out), false, image)
    }

    /// Notes where the guest has mounted something: in a directory that is memory there has to be something to mount it
    /// on.
    pub(crate) fn expect<'a>(&mut self, paths: impl Iterator<Item = &'a str>) {
        self.expected.extend(paths.map(str::to_owned));
    }

    /// The same of a file system that the namespace of a process has mounted, whose pids are given here and inside;
    /// which of the image's contents those are. What is mounted inside needs something to be mounted on.
    pub(crate) fn of_mount(
        &mut self,
        process: (i32, i32),
        directory: &str,
        image: &mut Image,
    ) -> Result<(usize, usize), CallError> {
        let first = image.contents.len();
        self.of_tree_of(process, (directory, &[]), true, image)?;
        Ok((first, image.contents.len()))
    }

    fn of_tree_of(
        &mut self,
        (outer, holder): (i32, i32),
        (directory, left_out): (&str, &[&str]),
        mounted: bool,
        image: &mut Image,
    ) -> Result<(), CallError> {
        // Where it is none, there is nothing in it.
        let Some((root, about)) = top(outer, directory) else { return Ok(()) };
        let device = about.st_dev;
        if mounted {
            self.push(ContentKind::Directory { path: directory.to_owned() }, &about, holder, image);
        }
        let mut next = vec![directory.to_owned()];
        while let Some(directory) = next.pop() {
            let found = root.place(directory.as_str(), Links::Refused).and_then(|place| place.entries());
            let Ok(mut entries) = found else { continue };
            while let Some(Ok(entry)) = entries.next() {
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                let Ok(text) = name.to_str() else {
                    let name = name.to_string_lossy();
                    self.lost
                        .push((format!("a file in memory whose name is not UTF-8 ({directory}/{name})"), "rename it"));
                    continue;
                };
                if image.contents.len() >= MOST {
                    let kind = format!("more than {MOST} files in memory (in {directory}, among others)");
                    self.lost.push((kind, "remove some, or keep them on the disk"));
                    return Ok(());
                }
                let path = joined(&directory, &format!("/{text}"));
                let what = || format!("looking at {path} of the guest");
                let place = match Place::in_directory(entries.fd().context(what)?, name) {
                    // Whoever else has the directory open has removed it.
                    Err(Errno::NOENT) => continue,
                    found => found.context(what)?,
                };
                let about = place.about().context(what)?;
                let kind = FileType::from_raw_mode(about.st_mode);
                if kind.is_file() && left_out.contains(&path.as_str()) {
                    continue;
                }
                if about.st_dev != device {
                    if outer != self.init || self.expected.contains(&path) {
                        self.note_mount_point(path, &about, holder, image);
                    }
                    continue;
                }
                if kind.is_dir() {
                    next.push(path.clone());
                }
                self.note_named((&place, path), &about, holder, image)?;
            }
        }
        Ok(())
    }

    /// Notes what has a name in a directory in memory.
    fn note_named(
        &mut self,
        (place, path): (&Place, String),
        about: &Stat,
        holder: i32,
        image: &mut Image,
    ) -> Result<(), CallError> {
        let at = path.clone();
        let what = || format!("looking at {at} of the guest");
        match FileType::from_raw_mode(about.st_mode) {
            FileType::Directory => drop(self.push(ContentKind::Directory { path }, about, holder, image)),
            FileType::Symlink => {
                let target = place.target().context(what)?.to_string_lossy().into_owned();
                self.push(ContentKind::Link { path, target }, about, holder, image);
            }
            FileType::Fifo => drop(self.push(ContentKind::Fifo { path }, about, holder, image)),
            kind => {
                if let Some(first) = self.first_name(about, image) {
                    self.push(ContentKind::Name { path, first }, about, holder, image);
                } else if kind.is_file() {
                    let file = place.file().context(what)?;
                    let content = self.push(ContentKind::Placed { path }, about, holder, image);
                    image.contents[content].length = about.st_size as u64;
                    image.contents[content].runs = runs(&file, about.st_size as u64).context(what)?;
                }
            }
        }
        Ok(())
    }

    /// The first name of a file that was seen by another one before.
    fn first_name(&self, about: &Stat, image: &Image) -> Option<String> {
        let known = self.known.get(&(about.st_dev, about.st_ino)).filter(|_| about.st_nlink > 1)?;
        match &image.contents[*known].kind {
            ContentKind::Placed { path } => Some(path.clone()),
            _ => None,
        }
    }

    /// What stands in the way, when all directories in memory have been looked through.
    pub(crate) fn objections(&mut self) -> Vec<(String, &'static str)> {
        std::mem::take(&mut self.lost)
    }

    /// What lies under a mount nobody sees; it is a directory or not, as what is mounted is.
    fn note_mount_point(&mut self, path: String, about: &Stat, holder: i32, image: &mut Image) {
        let is_directory = FileType::from_raw_mode(about.st_mode).is_dir();
        // What is mounted may be a device, which nobody is to open.
        let kind = if is_directory { ContentKind::Directory { path } } else { ContentKind::Point { path } };
        self.push(kind, about, holder, image);
    }

    /// The process has its path, too.
    fn push(&mut self, kind: ContentKind, about: &Stat, holder: i32, image: &mut Image) -> usize {
        let path = match &kind {
            ContentKind::Placed { path }
            | ContentKind::Directory { path }
            | ContentKind::Fifo { path }
            | ContentKind::Point { path }
            | ContentKind::Name { path, .. }
            | ContentKind::Link { path, .. } => format!("root{path}"),
            ContentKind::Memory { .. } | ContentKind::Deleted { .. } | ContentKind::DeletedDirectory { .. } => {
                String::new()
            }
        };
        image.contents.push(Content {
            kind,
            length: 0,
            runs: Vec::new(),
            mode: about.st_mode & 0o7777,
            owner: self.owner(about),
            holder,
            path,
            times: times(about),
        });
        let place = image.contents.len() - 1;
        // What has several names is known by its first.
        self.known.entry((about.st_dev, about.st_ino)).or_insert(place);
        place
    }

    fn note(&mut self, seen: Sighting<'_>, image: &mut Image) -> Result<usize, CallError> {
        let identity = (seen.device, seen.inode);
        if let Some(known) = self.known.get(&identity) {
            return Ok(*known);
        }
        let at = format!("/proc/{}/{}", seen.outer, seen.path);
        let what = || format!("reading {at}");
        // It leads to the very file, and not by a path.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&at, flags, Mode::empty()).context(what)?);
        let stat = rustix::fs::fstat(&file).context(what)?;
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        let length = if is_directory { 0 } else { stat.st_size as u64 };
        image.contents.push(Content {
            kind: self.kind(&file, seen.name, is_directory),
            length,
            runs: runs(&file, length).context(what)?,
            mode: stat.st_mode & 0o7777,
            owner: self.owner(&stat),
            holder: seen.holder,
            path: seen.path,
            times: times(&stat),
        });
        let place = image.contents.len() - 1;
        self.known.insert(identity, place);
        Ok(place)
    }

    /// Memory files belong to who made them in ids of the host where that one was outside.
    fn owner(&self, stat: &Stat) -> (u32, u32) {
        (self.maps.user(stat.st_uid).unwrap_or(0), self.maps.group(stat.st_gid).unwrap_or(0))
    }

    fn kind(&self, file: &File, name: &str, is_directory: bool) -> ContentKind {
        let name = name.strip_suffix(DELETED).unwrap_or(name);
        let seals = rustix::fs::fcntl_get_seals(file).map_or(0, |seals| seals.bits());
        if let Some(name) = name.strip_prefix("/memfd:") {
            return ContentKind::Memory { name: name.to_owned(), seals };
        }
        if name == "/dev/zero" {
            return ContentKind::Memory { name: "shared".into(), seals: 0 };
        }
        let directory = name.rsplit_once('/').map_or("/", |(directory, _)| directory);
        let there = top(self.init, directory).is_some();
        let directory = if there { directory.to_owned() } else { String::new() };
        if is_directory { ContentKind::DeletedDirectory { directory } } else { ContentKind::Deleted { directory } }
    }
}

/// What a file in the directory of a process in /proc leads to.
fn look(outer: i32, path: &str) -> Result<Metadata, CallError> {
    let at = format!("/proc/{outer}/{path}");
    std::fs::metadata(&at).context(|| format!("looking at {at}"))
}

/// The root of a process, and what a directory in it is like, if there is such a one: no link leads to it.
fn top(outer: i32, directory: &str) -> Option<(Root, Stat)> {
    let root = Root::of_process(outer).ok()?;
    let about = root.place(directory, Links::Refused).and_then(|place| place.about()).ok()?;
    FileType::from_raw_mode(about.st_mode).is_dir().then_some((root, about))
}

/// The most files in memory: a holder has a descriptor of each.
const MOST: usize = 10_000;

fn times(about: &Stat) -> [i64; 4] {
    [about.st_atime, about.st_atime_nsec as i64, about.st_mtime, about.st_mtime_nsec as i64]
}

/// Where there is something in a file.
fn runs(file: &File, length: u64) -> rustix::io::Result<Vec<(u64, u64)>> {
    const MOST: usize = 1 << 20;
    let mut runs = Vec::new();
    let mut at = 0;
    while at < length && runs.len() < MOST {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(length);
        if at <= start {
            break;
        }
        runs.push((start, at - start));
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_left_out() {
        let file = File::from(rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(1 << 20).unwrap();
        assert_eq!(runs(&file, 1 << 20).unwrap(), []);
        file.write_all_at(b"x", 0).unwrap();
        file.write_all_at(b"x", 5 * 4096).unwrap();
        assert_eq!(runs(&file, 1 << 20).unwrap(), [(0, 4096), (5 * 4096, 4096)]);
    }
}

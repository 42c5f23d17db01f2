//! Room on the disk, by what the file system offers.
//!
//! ```text
//!   project quota   counts bytes and files of a directory; df inside shows the bound
//!   subvolume       of btrfs, with a quota group: counts bytes alone
//!   image           a file system of its own in a file that has all its room: everywhere
//! ```
//!
//! Which of them is found out by doing it, in this order. A quota is kept by the file system; what it was is asked of
//! that again, so nothing has to be written down.

mod image;
mod lifted;
mod project;

pub use image::Image;
pub use lifted::Lifted;

use crate::limits::Disk;
use pando_kernel::{CallError, Context, filesystem::btrfs};
use std::io;
use std::path::{Path, PathBuf};

/// The way in which room on the disk is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A quota of a project, which the files belong to.
    Project(u32),
    /// A quota group of a subvolume of btrfs.
    Subvolume,
    /// A file system of its own.
    Image,
}

/// The place of files whose room may be bounded.
#[derive(Clone, Debug)]
pub struct Room {
    files: PathBuf,
    image: Image,
}

impl Room {
    /// That of a directory of files, or of the image that takes its place.
    pub fn of(files: PathBuf, image: PathBuf) -> Self {
        Self { files, image: Image::at(image) }
    }

    /// The image that takes the directory's place.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The directory that the guest's files are in.
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// Makes room of so many bytes and files: the directory of files, empty, or the image. `quotas`: whether a quota
    /// can hold its user. In a user namespace of its own no process can take its files out of their project.
    pub fn make(&self, size: u64, inodes: Option<u64>, quotas: bool) -> Result<Means, CallError> {
        if quotas {
            if let Some(project) = self.by_project(size, inodes)? {
                return Ok(Means::Project(project));
            }
            if inodes.is_none() && self.by_subvolume(size) {
                return Ok(Means::Subvolume);
            }
        }
        self.image.make(size, inodes).map(|()| Means::Image)
    }

    /// `None` where the file system does not hold projects to their limits.
    fn by_project(&self, size: u64, inodes: Option<u64>) -> Result<Option<u32>, CallError> {
        let above = self.files.parent().unwrap_or(Path::new("/"));
        if !project::is_enforced(above) {
            return Ok(None);
        }
        std::fs::create_dir(&self.files).context(|| format!("making {}", self.files.display()))?;
        let begun = project::begin(&self.files, size, inodes.unwrap_or(0));
        if begun.is_err() {
            let _ = std::fs::remove_dir(&self.files);
        }
        // It may still refuse a single directory, for a reason of its own: then there are other means.
        Ok(begun.ok())
    }

    fn by_subvolume(&self, size: u64) -> bool {
        let made = btrfs::make_subvolume(&self.files);
        let bounded = made.and_then(|()| btrfs::limit(&self.files, size)).is_ok();
        if !bounded {
            let _ = std::fs::remove_dir(&self.files);
        }
        bounded
    }

    /// How it is bounded, if it is.
    pub fn means(&self) -> Option<Means> {
        if self.image.exists() {
            return Some(Means::Image);
        }
        if let Some(project) = project::of(&self.files) {
            return Some(Means::Project(project));
        }
        btrfs::is_subvolume(&self.files).then_some(Means::Subvolume)
    }

    /// The bounds that the file system holds, where it can be asked: bytes and files, 0 for none.
    pub fn held(&self) -> Option<(u64, u64)> {
        match self.means()? {
            Means::Project(number) => project::held(&self.files, number).ok().map(|quota| (quota.bytes, quota.inodes)),
            Means::Subvolume | Means::Image => None,
        }
    }

    /// Changes the bounds; `in_use`: whether an image is mounted.
    ///
    /// # Errors
    ///
    /// As [`Image::grow`] and [`Image::fit`]; a sentence where more than that is there.
    pub fn change(&self, disk: &Disk, in_use: bool) -> Result<(), CallError> {
        let (size, inodes) = (disk.size.unwrap_or(0), disk.inodes.unwrap_or(0));
        match self.means() {
            Some(Means::Project(number)) => project::change(&self.files, number, size, inodes),
            Some(Means::Subvolume) => btrfs::limit(&self.files, size),
            Some(Means::Image) if in_use => self.image.grow(size),
            Some(Means::Image) => self.image.fit(size),
            None => Err(io::Error::other("its files lie where nothing bounds them"))
                .context(|| format!("bounding {}", self.files.display())),
        }
    }

    /// Takes back what the file system has noted besides the files, which will be removed. What is left is a number
    /// that is not used again.
    pub fn give_up(&self) {
        if let Some(Means::Project(number)) = self.means() {
            project::end(&self.files, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_quotas_may_not_be_used_it_is_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let room = Room::of(directory.path().join("files"), directory.path().join("disk"));
        assert_eq!(room.means(), None);
        match room.make(64 << 20, None, false) {
            Ok(means) => assert_eq!((means, room.means()), (Means::Image, Some(Means::Image))),
            Err(error) => assert!(error.to_string().contains("e2fsprogs"), "{error}"),
        }
        assert_eq!(room.held(), None);
    }

    #[test]
    fn plain_files_are_bounded_by_nothing_and_that_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let room = Room::of(directory.path().to_owned(), directory.path().join("disk"));
        room.give_up();
        let disk = Disk { size: Some(1 << 20), inodes: None };
        assert!(room.change(&disk, false).unwrap_err().to_string().contains("nothing bounds"));
    }
}

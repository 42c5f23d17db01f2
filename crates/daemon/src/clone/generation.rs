//! What tells a program that its memory is a copy: a file of /dev that is made with each guest and clone, and has
//! another content in each (see [`devices`](pando_guest::devices)). A clone has it before it has processes; those that
//! watch it (inotify(7)) are told of it once their watches are there.

use pando_freeze::image::{FileKind, Image};
use pando_kernel::file::confined::{Links, Root};
use pando_kernel::filesystem::kernels_own::is_the_kernels_own;
use pando_kernel::process::held::HeldProcess;
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// Where it is in a guest.
pub(crate) const PATH: &str = "/dev/pando-generation";

/// What is looked at of it: more than there is, where the guest has not put something else in its place.
const LONGEST: usize = 64;

/// Whether somebody of an image watches it, or its directory.
pub(crate) fn is_watched(image: &Image) -> bool {
    const DIRECTORY: &str = "/dev";
    image.files.iter().any(|file| match &file.kind {
        FileKind::Inotify { watches } => watches.iter().any(|watch| watch.path == PATH || watch.path == DIRECTORY),
        _ => false,
    })
}

/// Has the kernel tell those who watch it, in the guest of a first process: what is in it is written once more.
pub(crate) async fn tell(first: &HeldProcess) {
    let (first, pid) = (first.clone(), first.pid());
    let told = tokio::task::spawn_blocking(move || write_again(&first.root()?));
    if let Err(error) = told.await.map_err(io::Error::other).and_then(|told| told) {
        tracing::debug!(%error, pid, "nobody is told of its generation");
    }
}

/// The guest can put there what it likes: a link is not followed, and what is no file not opened.
fn write_again(root: &Root) -> io::Result<()> {
    let found = root.place(PATH, Links::OnTheWay)?;
    if FileType::from_raw_mode(found.about()?.st_mode) != FileType::RegularFile {
        return Err(io::Error::other(format!("{PATH} is no file")));
    }
    if is_the_kernels_own(found.as_fd())? {
        return Err(io::Error::other(format!("{PATH} is a file of the kernel's")));
    }
    let file = File::from(found.open(OFlags::RDWR)?);
    let mut text = [0; LONGEST];
    let length = file.read_at(&mut text, 0)?;
    file.write_all_at(&text[..length], 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn it_is_the_one_that_is_made() {
        assert_eq!(PATH, format!("/dev/{}", pando_guest::devices::GENERATION));
    }

    #[test]
    fn what_a_guest_put_in_its_place_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::from(OwnedFd::from(File::open(directory.path()).unwrap()));
        let path = directory.path().join(&PATH[1..]);
        std::fs::create_dir(directory.path().join("dev")).unwrap();
        let other = directory.path().join("other");
        std::fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(write_again(&root).is_err(), "a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(write_again(&root).is_err(), "a directory");
        std::fs::remove_dir(&path).unwrap();
        let long = "x".repeat(3 * LONGEST);
        std::fs::write(&path, &long).unwrap();
        write_again(&root).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), long);
    }
}

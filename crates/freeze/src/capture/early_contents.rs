//! What files without a name have, copied while the processes stand still. Snapshots share those files with the
//! processes, so without that all would have to stand still until everything is copied, for the sake of a few small
//! files on /run.

use crate::image::Image;
use crate::origin::{self, Origin, Source};
use pando_kernel::file::confined::{Links, Root};
use pando_kernel::{CallError, Context};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// As much is copied in less time than a fork of all processes saves.
const MOST: u64 = 16 << 20;

/// A copy of all of them, one behind another.
#[derive(Debug)]
pub(crate) struct EarlyContents(OwnedFd);

impl EarlyContents {
    /// Copies them from where they are. `None` where there is too much of it.
    pub(crate) fn copy(image: &Image, origin: &Origin) -> Result<Option<Self>, CallError> {
        if image.contents.iter().map(origin::held).sum::<u64>() > MOST {
            return Ok(None);
        }
        let file = rustix::fs::memfd_create("pando-contents", MemfdFlags::CLOEXEC);
        let file = file.context(|| "making a memory file".into())?;
        for (number, content) in image.contents.iter().enumerate().filter(|(_, content)| content.kind.has_bytes()) {
            let (source, _) = origin.content(image, number);
            let copy = || {
                let from = open(&source)?;
                content.runs.iter().try_for_each(|(at, length)| copy_run(&from, &file, *at, *length))
            };
            copy().context(|| format!("copying {source}"))?;
        }
        Ok(Some(Self(file)))
    }

    /// Where it is, as others see it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

fn open(source: &Source) -> io::Result<File> {
    Ok(match source {
        Source::Own(path) => File::open(path)?,
        Source::Inside { process, path } => Root::of_process(*process)?.place(path.as_str(), Links::Refused)?.file()?,
    })
}

fn copy_run(from: &File, to: &OwnedFd, at: u64, length: u64) -> io::Result<()> {
    let (mut at, end) = (at, at + length);
    while at < end {
        let left = (end - at) as usize;
        if rustix::fs::sendfile(to, from, Some(&mut at), left)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Content, ContentKind};
    use std::os::unix::fs::FileExt;

    #[test]
    fn they_follow_one_another() {
        let directory = tempfile::tempdir().unwrap();
        let content = |name: &str, text: &[u8], runs: Vec<(u64, u64)>| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            Content {
                kind: ContentKind::Placed { path: path.to_string_lossy().into_owned() },
                length: text.len() as u64,
                runs,
                mode: 0o600,
                owner: (0, 0),
                holder: 0,
                path: format!("root{}", path.display()),
                times: [0; 4],
            }
        };
        let contents = vec![content("a", b"one", vec![(0, 3)]), content("b", b"..two..six", vec![(2, 3), (7, 3)])];
        let image = Image { contents, ..Image::default() };
        let me = std::process::id() as i32;
        let here = Origin::Processes { sources: Vec::new(), init: me, keeper: 0, early: None };
        let early = EarlyContents::copy(&image, &here).unwrap().unwrap();
        let mut bytes = [0; 9];
        File::open(early.path()).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"onetwosix");
        let origin = Origin::Processes { sources: Vec::new(), init: me, keeper: 0, early: Some(early.path()) };
        assert_eq!(origin.content(&image, 1), (Source::Own(early.path()), Some(3)));
        // What somebody has put into a file's place meanwhile is not what was looked at.
        std::fs::rename(directory.path().join("a"), directory.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", directory.path().join("a")).unwrap();
        assert!(EarlyContents::copy(&image, &here).is_err());
    }
}

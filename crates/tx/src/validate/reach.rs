//! Whether what a commit moves can be moved: into a directory and out of it, from and to where a part's own files are.
//!
//! A rename within one mount can still be refused (EXDEV): another subvolume of btrfs is another tree; into a directory
//! whose files are encrypted nothing comes that is not, and into one that belongs to a project (of quotas) nothing of
//! another. Behind the commit point that would be too late.

use crate::change::{Op, Steps};
use crate::state::overlay_part::OverlayPart;
use crate::tree::confined::{Tree, is_missing};
use crate::tree::path::TreePath;
use pando_kernel::filesystem::project_quota;
use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, accessat, fstat, fstatfs, openat, statx};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// What is in the way of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Border {
    Subvolume,
    Encryption,
    Project,
}

impl Border {
    fn words(self) -> &'static str {
        match self {
            Self::Subvolume => "in another subvolume",
            Self::Encryption => "where files are encrypted",
            Self::Project => "in another project of quotas",
        }
    }
}

/// What a file gets that is made in a directory, and must have to be moved there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Territory {
    device: u64,
    encrypted: bool,
    /// The project that all in it belong to, where that is asked for.
    project: Option<u32>,
}

impl Territory {
    fn of(directory: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = File::from(openat(directory, ".", flags, Mode::empty())?);
        let found = statx(&directory, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
        // Most file systems know no projects.
        let project = project_quota::inherited(&directory).unwrap_or_default();
        let encrypted = found.stx_attributes.contains(StatxAttributes::ENCRYPTED);
        Ok(Self { device: fstat(&directory)?.st_dev, encrypted, project })
    }

    /// What is in the way of a file that was made in one directory and is moved to another.
    fn border(self, to: Self) -> Option<Border> {
        if self.device != to.device {
            return Some(Border::Subvolume);
        }
        if to.encrypted && !self.encrypted {
            return Some(Border::Encryption);
        }
        let is_same = |project: u32| project == self.project.unwrap_or_default();
        to.project.is_some_and(|project| !is_same(project)).then_some(Border::Project)
    }
}

/// The directories that names come to and go from.
#[derive(Debug, Default)]
struct Places {
    enters: BTreeSet<TreePath>,
    leaves: BTreeSet<TreePath>,
}

impl Places {
    fn of(steps: &Steps) -> Self {
        let mut all = Self::default();
        for op in steps.stage.iter().chain(&steps.change) {
            let (places, at) = match op {
                Op::Move { at, .. } | Op::Place { at, .. } => (&mut all.enters, at),
                Op::Remove { at, .. } | Op::StageDirectory { from: at, .. } => (&mut all.leaves, at),
                _ => continue,
            };
            places.extend(at.split().map(|(directory, _)| directory));
        }
        all
    }
}

/// The live directory that a path will be in: what is made in it has all that counts here of it.
fn nearest(live: &Tree, path: &TreePath) -> io::Result<(TreePath, Territory)> {
    let mut at = path.clone();
    loop {
        match live.directory(&at).and_then(Territory::of) {
            Err(error) if is_missing(&error) => at = at.split().map_or(TreePath::ROOT, |(around, _)| around),
            found => return Ok((at, found?)),
        }
    }
}

/// The first object of a read-only subvolume that is to be changed where it is. An overlay does not ask below it.
fn read_only<'a>(live: &Tree, steps: &'a Steps) -> io::Result<Option<&'a TreePath>> {
    if fstatfs(live.root())?.f_type != libc::BTRFS_SUPER_MAGIC {
        return Ok(None);
    }
    let target = |op: &'a Op| match op {
        Op::Attributes { target, .. } | Op::Protect { target, .. } | Op::Restrict { target, .. } => target.place(),
        _ => None,
    };
    let is_refused = |at: &TreePath| {
        let Ok((directory, name)) = live.place(at) else { return false };
        accessat(&*directory, name, Access::WRITE_OK, AtFlags::SYMLINK_NOFOLLOW) == Err(Errno::ROFS)
    };
    Ok(steps.change.iter().chain(&steps.finish).filter_map(target).find(|at| is_refused(at)))
}

/// What of a part's steps could not be done, for no other reason: in words, with what helps.
pub(crate) fn obstacle(part: &OverlayPart, steps: &Steps) -> io::Result<Option<String>> {
    let live = part.live_tree()?;
    let own = Territory::of(Tree::open(&part.base)?.root())?;
    if let Some(at) = read_only(&live, steps)? {
        return Ok(Some(format!("{} lies in a subvolume that is read-only", live.shown(at))));
    }
    let Places { enters, leaves } = Places::of(steps);
    let found = |at: &TreePath, border: Border| {
        let directory = live.shown(at);
        format!(
            "{directory} lies {} than {}, so that nothing can be moved there at once; give it a mount of its own (mount --bind {directory} {directory})",
            border.words(),
            part.live.display()
        )
    };
    for path in &enters {
        let (at, there) = nearest(&live, path)?;
        if let Some(border) = own.border(there) {
            return Ok(Some(found(&at, border)));
        }
    }
    for path in &leaves {
        let (at, there) = nearest(&live, path)?;
        if let Some(border) = there.border(own) {
            return Ok(Some(found(&at, border)));
        }
    }
    for op in &steps.stage {
        let Op::StageLink { origin, .. } = op else { continue };
        if fstat(origin.identity.open(&live)?)?.st_dev != own.device {
            return Ok(Some(found(&TreePath::ROOT, Border::Subvolume)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::attributes::Moment;

    #[test]
    fn a_file_is_moved_to_its_like() {
        let plain = Territory { device: 1, encrypted: false, project: None };
        let encrypted = Territory { encrypted: true, ..plain };
        let of_project = |number| Territory { project: Some(number), ..plain };
        assert_eq!(plain.border(plain), None);
        assert_eq!(plain.border(Territory { device: 2, ..plain }), Some(Border::Subvolume));
        assert_eq!((plain.border(encrypted), encrypted.border(plain)), (Some(Border::Encryption), None));
        assert_eq!((plain.border(of_project(7)), of_project(7).border(plain)), (Some(Border::Project), None));
        assert_eq!((of_project(7).border(of_project(7)), plain.border(of_project(0))), (None, None));
    }

    #[test]
    fn the_places_of_names_are_found_and_what_is_made_counts_as_where_it_is_made() {
        let path = |text: &str| TreePath::new(text.as_bytes()).unwrap();
        let steps = Steps {
            change: vec![
                Op::MakeDirectory { at: path("made/new"), slot: 0 },
                Op::Move { at: path("made/new/file"), ino: 1, directory: false, marked: false, over: None },
                Op::Remove { at: path("gone"), ino: 2, changed: Moment::EPOCH, slot: 0 },
            ],
            ..Steps::default()
        };
        let places = Places::of(&steps);
        assert_eq!(places.enters.into_iter().collect::<Vec<_>>(), [path("made/new")]);
        assert_eq!(places.leaves.into_iter().collect::<Vec<_>>(), [TreePath::ROOT]);
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("made")).unwrap();
        let live = Tree::open(directory.path()).unwrap();
        assert_eq!(nearest(&live, &path("made/new/deep")).unwrap().0, path("made"));
        assert_eq!(nearest(&live, &path("other/deep")).unwrap().0, TreePath::ROOT);
    }
}

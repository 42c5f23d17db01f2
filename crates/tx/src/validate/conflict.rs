//! Conflicts: what others did while a transaction ran, so that it cannot be committed as it is.

use std::fmt;
use std::path::{Path, PathBuf};

/// What others did to an object that a transaction has read or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interference {
    /// Its content or its attributes are not what they were; the object is there still.
    Changed,
    /// It is there, where nothing was.
    Created,
    /// Nothing is there any more.
    Removed,
    /// Another object has taken its place.
    Replaced,
    /// It cannot be found by what told it from others: it has another name, or none.
    MovedOrRemoved,
    /// Nothing is there, and something may have been. Others have changed the names around it.
    MayBeRemoved,
    /// The names in a directory, which the transaction has listed, are not what they were.
    ChangedAfterListing,
    /// Its file system is not mounted any more.
    Unmounted,
    /// Something was mounted over it.
    MountedOver,
}

/// Something that others did while a transaction ran, and that keeps it from being committed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// Others did something to what is at a path.
    At {
        /// The path in the live tree, or as much as is known of it.
        path: PathBuf,
        /// What they did.
        what: Interference,
    },
    /// Others changed a file that has several names, none of which is known.
    SeveralNames {
        /// The mount point that the file is below.
        mount: PathBuf,
        /// Its path in the overlay's index.
        index: String,
    },
    /// The kernel has forgotten what the transaction read, for the lack of memory: any change by others may be a
    /// conflict.
    Forgotten,
    /// What the transaction read cannot be told this time, for the reason that the words say: any change by others may
    /// be a conflict.
    Untold(String),
    /// The clock was set back. What others have changed since the transaction began cannot be told from what they
    /// changed before.
    ClockSetBack,
}

impl Conflict {
    /// A conflict at a path.
    pub(crate) fn at(path: impl Into<PathBuf>, what: Interference) -> Self {
        Self::At { path: path.into(), what }
    }

    /// The same conflict, where its path was one below a mount point.
    pub(crate) fn below(self, mount: &Path) -> Self {
        match self {
            // The path of the root itself is empty, and leaves a slash at the end.
            Self::At { path, what } => Self::At { path: mount.join(path).components().collect(), what },
            Self::SeveralNames { index, .. } => Self::SeveralNames { mount: mount.to_owned(), index },
            other => other,
        }
    }

    /// The object that others have changed, if it is there still.
    pub(crate) fn changed_object(&self) -> Option<&Path> {
        match self {
            Self::At { path, what: Interference::Changed } => Some(path),
            _ => None,
        }
    }

    /// The directory in which others have changed names, where it is not known which.
    pub(crate) fn directory_of_names(&self) -> Option<&Path> {
        match self {
            Self::At { path, what: Interference::MayBeRemoved } => path.parent(),
            _ => None,
        }
    }
}

impl fmt::Display for Interference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Changed => "was changed by others",
            Self::Created => "was created by others",
            Self::Removed => "was removed by others",
            Self::Replaced => "was replaced by others",
            Self::MovedOrRemoved => "was moved or removed by others",
            Self::MayBeRemoved => "may have been removed by others",
            Self::ChangedAfterListing => "was listed, and changed by others",
            Self::Unmounted => "was unmounted by others",
            Self::MountedOver => "was mounted over by others",
        })
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { path, what } => write!(out, "{} {what}", shown(path)),
            Self::SeveralNames { mount, index } => {
                let file = mount.join(format!("a file with several names ({index})"));
                write!(out, "{} {}", shown(&file), Interference::Changed)
            }
            Self::Forgotten => out.write_str("what it read was forgotten by the kernel, for the lack of memory"),
            Self::Untold(why) => write!(out, "what it read cannot be told: {why}"),
            Self::ClockSetBack => out.write_str("the clock was set back by others"),
        }
    }
}

/// A path on one line: whoever names a file says no line of his own in Pando's name.
fn shown(path: &Path) -> String {
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_below_a_mount_point_is_told_by_its_whole_path() {
        let shown = |path: &str| Conflict::at(path, Interference::Created).below(Path::new("/srv")).to_string();
        assert_eq!(shown("a/b"), "/srv/a/b was created by others");
        assert_eq!(shown(""), "/srv was created by others");
        assert_eq!(shown("a\n\u{1b}[31mb"), r"/srv/a\n\u{1b}[31mb was created by others");
        let several = Conflict::SeveralNames { mount: PathBuf::new(), index: "/00fb".into() };
        let several = several.below(Path::new("/")).to_string();
        assert_eq!(several, "/a file with several names (/00fb) was changed by others");
        assert_eq!(Conflict::Forgotten.below(Path::new("/srv")), Conflict::Forgotten);
    }

    #[test]
    fn only_what_another_run_can_learn_from_is_named() {
        let of = |what| Conflict::at("/d/f", what);
        assert_eq!(of(Interference::Changed).changed_object(), Some(Path::new("/d/f")));
        assert_eq!(of(Interference::MayBeRemoved).directory_of_names(), Some(Path::new("/d")));
        for other in [Interference::Created, Interference::Removed, Interference::Replaced] {
            assert_eq!((of(other).changed_object(), of(other).directory_of_names()), (None, None));
        }
    }
}

//! Where a holder copies memory from: processes that stand still, or a file that has it all.

use crate::image::{Content, ContentKind, Image};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where memory comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Processes.
    Processes {
        /// The pid, as the holder sees it, of whoever has the memory of each process of the image.
        sources: Vec<i32>,
        /// That of the frozen namespace's first process.
        init: i32,
        /// That of who has what is in flight between the processes: it has copies of those descriptors.
        keeper: i32,
        /// What has the contents of files without a name, one behind another, if that is not they themselves.
        early: Option<String>,
    },
    /// A file: own pages area after area, then what files without a name have.
    File {
        /// Its path, as the holder sees it.
        path: String,
        /// Where memory begins in it.
        start: u64,
    },
    /// Several files: own pages area after area in pieces, what files without a name have in the first.
    Chain {
        /// Their paths, as the holder sees them.
        paths: Vec<String>,
        /// The pieces in their order: where each lies in its file.
        extents: Vec<Extent>,
        /// Where in the first file begins what files without a name have.
        contents: u64,
    },
}

/// A piece of memory in one of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    /// Which file it lies in.
    pub(crate) file: u8,
    /// Where in that file.
    pub(crate) at: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
}

/// What the content of a file is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A path that leads to it and nothing else: to what a process has open or mapped, or to a file of Pando's own.
    Own(String),
    /// A path in the root of a process. Others may have put something else there than was looked at.
    Inside {
        /// The process, as the holder sees it.
        process: i32,
        /// The path, as the process sees it.
        path: String,
    },
}

impl Source {
    fn of(process: i32, content: &Content) -> Self {
        match &content.kind {
            ContentKind::Placed { path } => Self::Inside { process, path: path.clone() },
            _ => Self::Own(format!("/proc/{process}/{}", content.path)),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(path) => f.write_str(path),
            Self::Inside { process, path } => write!(f, "{path} of process {process}"),
        }
    }
}

/// Instead of the pid of a process: what is in flight no process has.
pub(crate) const NOBODY: i32 = -1;

impl Default for Origin {
    fn default() -> Self {
        Self::Processes { sources: Vec::new(), init: 0, keeper: 0, early: None }
    }
}

impl Origin {
    /// The path of what has the memory of a process of the image.
    pub(crate) fn memory(&self, process: usize) -> String {
        match self {
            Self::Processes { sources, .. } => format!("/proc/{}/mem", sources.get(process).copied().unwrap_or(0)),
            Self::File { path, .. } => path.clone(),
            Self::Chain { paths, .. } => paths.first().cloned().unwrap_or_default(),
        }
    }

    /// What has the content of a file, and where in it the first of its runs lies if not where it says.
    pub(crate) fn content(&self, image: &Image, number: usize) -> (Source, Option<u64>) {
        match self {
            Self::Processes { early: Some(path), .. } => (Source::Own(path.clone()), Some(before(image, number))),
            Self::Processes { sources, init, keeper, early: None } => {
                let content = &image.contents[number];
                let process = image.processes.iter().position(|process| process.pid == content.holder);
                let nobodys = if content.holder == NOBODY { keeper } else { init };
                let source = process.and_then(|process| sources.get(process)).copied().unwrap_or(*nobodys);
                (Source::of(source, content), None)
            }
            Self::File { path, start } => {
                (Source::Own(path.clone()), Some(start + image.memory() + before(image, number)))
            }
            Self::Chain { contents, .. } => (Source::Own(self.memory(0)), Some(contents + before(image, number))),
        }
    }
}

/// Bytes of the files without a name before one.
fn before(image: &Image, number: usize) -> u64 {
    image.contents[..number].iter().map(held).sum()
}

/// Bytes of a file without a name that are not holes.
pub(crate) fn held(content: &Content) -> u64 {
    content.runs.iter().map(|(_, length)| length).sum()
}

/// Bytes of an image's memory in a file.
pub(crate) fn length(image: &Image) -> u64 {
    image.memory() + image.contents.iter().map(held).sum::<u64>()
}

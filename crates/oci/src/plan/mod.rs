//! What a launch will do, resolved and checked, as plain data.
//!
//! A plan is made of a configuration and a few facts, without privilege. Its steps are those that guests are launched
//! by. They go out in batches: after some of them somebody outside has something to do, and no message carries more
//! than so many descriptors.

pub(crate) mod cgroup_mount;
pub(crate) mod devices;
pub(crate) mod files;
pub(crate) mod memory_policy;
pub(crate) mod mount_options;
pub(crate) mod namespaces;
pub(crate) mod process;
pub(crate) mod seccomp;

use anyhow::{Context, Result};
use mount_options::Change;
use pando_shim::{Step, Text, next_step};
use std::ffi::CString;
use std::fmt;
use std::path::PathBuf;

/// What a process says on its way, and what is then to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Word {
    /// It is in a new user namespace: map its ids.
    MapIds = 1,
    /// What is forked next is in a new time namespace: set its clocks.
    SetClocks = 2,
    /// The process that becomes the program exists; its pidfd comes along.
    Born = 3,
    /// All is done but to execute the program.
    Ready = 4,
    /// Its system calls wait for another's answers; where they arrive comes along, as the number of a descriptor.
    Filtered = 5,
}

/// What `start` says to a process that is ready.
pub(crate) const START: u8 = b's';

/// By what map of ids a mount's files are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owners {
    /// The map.
    pub(crate) ids: IdMap,
    /// Whether for the mounts below, too.
    pub(crate) below: bool,
}

/// A map of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdMap {
    /// The lines of /proc/PID/uid_map and gid_map.
    Lines {
        /// Of users.
        uids: String,
        /// Of groups.
        gids: String,
    },
    /// That of the user namespace that the container joins.
    Joined,
}

/// A descriptor that a step needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The file by which a process walks into a control group.
    GroupFile(PathBuf),
    /// A namespace that this command holds, by its kind.
    HeldNamespace {
        /// `CLONE_NEW*`.
        kind: u32,
    },
    /// The root of the container's first process.
    HeldRoot,
    /// The mount at a path of the host, with those below or not, changed.
    Tree {
        /// The path, on the host.
        path: PathBuf,
        /// Whether the mounts below come along.
        recursive: bool,
        /// What becomes of its attributes and its propagation.
        change: Change,
        /// Whose its files are shown as; as they are stored where that is not given.
        owners: Option<Owners>,
    },
    /// A device node of the host's, to be shown.
    Device {
        /// The path, on the host.
        path: PathBuf,
        /// Whether it is one of blocks.
        block: bool,
        /// The device's major and minor number.
        device: (u32, u32),
    },
    /// A new tmpfs that begins with what lies at a path of the root.
    Filled {
        /// The path, in the root.
        path: String,
        /// Options of the file system.
        options: Vec<(String, String)>,
        /// Attributes of the mount.
        attributes: u32,
    },
    /// Standard input, output or error of this command.
    Stdio(usize),
    /// A descriptor of this command, by its number.
    Inherited(i32),
    /// The socket that a terminal's master goes to.
    Console,
    /// The socket at which the process waits to be started.
    Listener,
    /// The container's state, as a file.
    State,
}

/// Steps that are sent together.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The steps as the shim reads them.
    pub(crate) steps: Vec<u8>,
    /// The descriptors, in the order that the steps number them.
    pub(crate) wants: Vec<Want>,
    /// What the process says at the end, before it waits for the next batch.
    pub(crate) ends_with: Option<Word>,
}

/// The steps of a launch.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The batches, in the order that they are sent.
    pub(crate) batches: Vec<Batch>,
    /// What each step does, in words.
    labels: Vec<String>,
}

/// So many descriptors go with one batch, and some that the launch adds.
const MOST_WANTS: usize = 48;

impl Plan {
    pub(crate) fn new() -> Self {
        Self { batches: vec![Batch::default()], labels: Vec::new() }
    }

    fn last(&mut self) -> &mut Batch {
        if self.batches.is_empty() {
            self.batches.push(Batch::default());
        }
        let last = self.batches.len() - 1;
        &mut self.batches[last]
    }

    pub(crate) fn step(&mut self, label: impl Into<String>, step: Step<'_>) {
        let batch = self.last();
        batch.steps = postcard::to_extend(&step, std::mem::take(&mut batch.steps)).unwrap_or_default();
        self.labels.push(label.into());
    }

    /// The number of a descriptor, for the step that comes next. A batch that has enough of them ends before.
    pub(crate) fn want(&mut self, want: Want) -> u8 {
        if self.last().wants.len() >= MOST_WANTS {
            self.next_batch();
        }
        let wants = &mut self.last().wants;
        wants.push(want);
        u8::try_from(wants.len() - 1).unwrap_or(u8::MAX)
    }

    /// What follows comes in another message.
    pub(crate) fn next_batch(&mut self) {
        self.step("waiting for the rest of the plan", Step::Await);
        self.batches.push(Batch::default());
    }

    /// Says a word, and goes on when what it asks for is done.
    pub(crate) fn ask(&mut self, label: &str, word: Word) {
        self.step(label, Step::Say { word: word as u8 });
        self.last().ends_with = Some(word);
        self.next_batch();
    }

    /// Another process goes on, which is in the new namespaces of processes and time.
    pub(crate) fn fork(&mut self) {
        self.step("entering the namespace of processes", Step::Sibling { word: Word::Born as u8 });
        self.last().ends_with = Some(Word::Born);
        self.next_batch();
    }

    /// The last batch ends with a word too.
    pub(crate) fn end_with(&mut self, label: &str, word: Word) {
        self.step(label, Step::Say { word: word as u8 });
        self.last().ends_with = Some(word);
    }

    /// How many steps there are.
    pub(crate) fn length(&self) -> u32 {
        u32::try_from(self.labels.len()).unwrap_or(u32::MAX)
    }

    /// What step `number` does, in words. A process waits for its first batch before all else, which is no step.
    pub(crate) fn label(&self, number: u32) -> &str {
        self.labels.get(number as usize).map_or("starting", String::as_str)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut labels = self.labels.iter();
        for batch in &self.batches {
            writeln!(out, "batch that wants {:?} and ends with {:?}", batch.wants, batch.ends_with)?;
            let mut rest = batch.steps.as_slice();
            while let Some(step) = next_step(&mut rest) {
                let step = step.map_err(|_| fmt::Error)?;
                writeln!(out, "  {}: {step:?}", labels.next().map_or("", String::as_str))?;
            }
        }
        Ok(())
    }
}

/// A C string for a step.
pub(crate) fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).with_context(|| format!("{what} '{}' holds a NUL byte", text.escape_debug()))
}

/// A path of the root for a step, relative to the root.
pub(crate) fn inner(what: &str, path: &str) -> Result<CString> {
    let relative = path.trim_start_matches('/');
    c_string(what, if relative.is_empty() { "." } else { relative })
}

pub(crate) fn text(c_string: &CString) -> Text<'_> {
    Text::from(c_string.as_c_str())
}

/// Strings, each with a NUL at its end.
pub(crate) fn packed(what: &str, texts: &[String]) -> Result<Vec<u8>> {
    let mut packed = Vec::new();
    for text in texts {
        packed.extend_from_slice(c_string(what, text)?.as_bytes_with_nul());
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_wants_more_than_a_message_carries() {
        let mut plan = Plan::new();
        for number in 0..200 {
            let fd = plan.want(Want::Inherited(number));
            plan.step("walking", Step::Group { fd });
        }
        assert_eq!(plan.batches.len(), 200_usize.div_ceil(MOST_WANTS));
        assert!(plan.batches.iter().all(|batch| batch.wants.len() <= MOST_WANTS));
        let mut rest = plan.batches[0].steps.as_slice();
        let steps: Vec<_> = std::iter::from_fn(|| next_step(&mut rest)).map(Result::unwrap).collect();
        assert_eq!((steps.len(), steps[MOST_WANTS]), (MOST_WANTS + 1, Step::Await));
        assert!(format!("{plan:?}").contains("waiting for the rest"));
    }
}

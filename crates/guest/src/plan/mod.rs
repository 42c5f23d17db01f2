//! What a launch will do, resolved and checked, as plain data.
//!
//! A plan is made without privilege and without looking at the machine: from a spec and a few facts. It can be printed,
//! compared and tested. It names the descriptors that its steps need, its *wants*; the launch opens each and sends them
//! along in the same order.

mod command;
mod init;
mod mounted;
mod prewarmed_init;
mod sysctl;

pub use command::{Program, Stdio, bound, exec, filters};
pub use init::{Facts, Heritage, of_init};
pub use mounted::{Mounted, mounted};
pub use prewarmed_init::{PrewarmedKind, STAGE, of_prewarmed_init};

use crate::account::AccountError;
use crate::policy::capabilities::CapabilityError;
use crate::policy::limits::LimitError;
use pando_limit::view::View;
use pando_shim::{Start, Step, Text, next_step};
use std::ffi::CString;
use std::fmt;

/// A descriptor that a step needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The cgroup of the unified hierarchy to be born in.
    Cgroup,
    /// The directories that a prewarmed init mounts things on.
    Stage,
    /// The guest's root file system.
    Root,
    /// The tree for /dev.
    Devices,
    /// The host's /sys, for a guest in the host's network namespace.
    HostSys,
    /// An empty, read-only directory; each place it is attached at needs its own.
    Empty(usize),
    /// The resolver configuration: the host's, or the guest's own.
    Resolver,
    /// The file by which guests of a private network find one another.
    Hosts,
    /// The tree of the spec's volume of that number.
    Volume(usize),
    /// A namespace of the guest's first process, by its name under /proc/PID/ns.
    Namespace(&'static str),
    /// Standard input, output or error of the caller.
    Stdio(usize),
    /// The socket that a terminal's master goes to.
    Terminal,
    /// A program that comes along as a descriptor.
    Program,
    /// What is shown in place of a file of the kernel's.
    View(View),
    /// Where the first process says that the command has ended.
    Word,
    /// The socket that goes to the process that answers system calls.
    Supervisor,
}

/// The steps of a launch, and what they need.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    /// What kind of process; `None` for the rest of the plan of one that waits.
    pub start: Option<Start>,
    /// The descriptors, in the order that the steps number them.
    pub wants: Vec<Want>,
    /// The steps as the shim reads them.
    steps: Vec<u8>,
    /// What each step does, in words.
    labels: Vec<String>,
    /// The plan that this one is the rest of: its steps are counted along.
    before: Option<Prewarmed>,
}

/// All that a prewarmed init's plan was made from. It is made again for its words alone, which only failure needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prewarmed {
    kind: PrewarmedKind,
    unified: bool,
}

/// A spec that cannot be turned into steps.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// `--cap-add`, `--cap-drop`
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// `--ulimit`
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A quantity that makes no sense.
    #[error(transparent)]
    Grant(#[from] pando_limit::Refusal),
    /// `--user`
    #[error(transparent)]
    Account(#[from] AccountError),
    /// A NUL byte where the kernel takes none.
    #[error("{what} '{}' holds a NUL byte, which no path, argument or variable can", .text.escape_debug())]
    Nul {
        /// What the text was to be.
        what: &'static str,
        /// The text that was given.
        text: String,
    },
    /// An environment variable without a usable name.
    #[error("'{}' cannot name an environment variable: it is empty or holds '='", .0.escape_debug())]
    Variable(String),
    /// A path that must be absolute.
    #[error("{what} '{path}' is not an absolute path; write it from / on")]
    Relative {
        /// What the path was to be.
        what: &'static str,
        /// The path that was given.
        path: String,
    },
    /// A volume on something that the guest needs.
    #[error("a volume cannot be mounted on {0} of a guest; choose a directory below it")]
    VolumeTarget(String),
    /// Two volumes for one place.
    #[error(
        "two volumes are to be mounted on {0} of a guest, and only one of them would be seen; give each a place of its own"
    )]
    SameTarget(String),
    /// A host name that is too long.
    #[error(
        "host name '{0}' cannot be set: use 1 to 64 letters, digits, '-', '.' and '_', and begin with a letter or digit"
    )]
    HostName(String),
    /// `--sysctl`
    #[error("setting '{key}' cannot be given to a guest: {why}")]
    Sysctl {
        /// The setting's name, as it was given.
        key: String,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// More than the shim takes.
    #[error("a guest can have at most {most} volumes, and this one has {given}")]
    TooMany {
        /// How many volumes were given.
        given: usize,
        /// How many there may be.
        most: usize,
    },
}

impl Plan {
    fn new() -> Self {
        Self { start: None, wants: Vec::new(), steps: Vec::new(), labels: Vec::new(), before: None }
    }

    /// What follows where a prewarmed init's plan waits: nothing yet.
    fn rest(kind: PrewarmedKind, unified: bool) -> Self {
        Self { before: Some(Prewarmed { kind, unified }), ..Self::new() }
    }

    fn step(&mut self, label: impl Into<String>, step: Step<'_>) {
        self.steps = postcard::to_extend(&step, std::mem::take(&mut self.steps)).expect("a vector takes everything");
        self.labels.push(label.into());
    }

    /// The number of a descriptor, which is asked for if it has not been yet.
    fn want(&mut self, want: Want) -> u8 {
        let index = self.wants.iter().position(|known| *known == want).unwrap_or_else(|| {
            self.wants.push(want);
            self.wants.len() - 1
        });
        u8::try_from(index).expect("plans with more than 64 volumes are refused")
    }

    /// The steps, as the shim reads them.
    pub fn bytes(&self) -> &[u8] {
        &self.steps
    }

    /// What the last step does, in words.
    pub fn last_label(&self) -> &str {
        self.labels.last().map_or("", String::as_str)
    }

    /// What step `number` does, in words.
    pub fn label(&self, number: u32) -> String {
        let before = self.before.and_then(|Prewarmed { kind, unified }| of_prewarmed_init(kind, unified).ok());
        let before = before.map(|plan| plan.labels).unwrap_or_default();
        before.iter().chain(&self.labels).nth(number as usize).map_or("starting", String::as_str).to_owned()
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{:?} wants {:?}", self.start, self.wants)?;
        let mut rest = self.steps.as_slice();
        for label in &self.labels {
            let Some(Ok(step)) = next_step(&mut rest) else { return Err(fmt::Error) };
            writeln!(out, "{label}: {step:?}")?;
        }
        Ok(())
    }
}

/// A C string for a step.
fn c_string(what: &'static str, text: &str) -> Result<CString, PlanError> {
    CString::new(text).map_err(|_| PlanError::Nul { what, text: text.to_owned() })
}

fn text(c_string: &CString) -> Text<'_> {
    Text::from(c_string.as_c_str())
}

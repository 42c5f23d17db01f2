//! The beginning of a transaction.

use super::{Phase, Transaction};
use crate::state::begin_timestamp;
use crate::state::clock::Clock;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::state::target::Target;
use crate::transaction::in_memory::Memory;
use crate::transaction::recover::finish_published;
use crate::tree::attributes::Moment;
use crate::validate::read_set::Watch;
use crate::view::ViewPlan;
use pando_kernel::file::lock::FileLock;
use pando_kernel::file::tree_removal::remove_tree;
use pando_kernel::mount::watch::MountWatch;
use pando_kernel::process::identity::ProcessId;
use pando_kernel::process::user_rights::UserIds;
use pando_kernel::{CallError, Context};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Why a transaction could not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// There is one of that name.
    #[error("there is a transaction '{0}' already")]
    Exists(TxName),
    /// The kernel refused something.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Transaction {
    /// Begins one: its directory, its record, its group. Its view is planned, and made by the first that enters it.
    /// `first_begun` is when its first run began, where this is a later one.
    pub fn begin(
        home: &StateDirectory,
        name: &TxName,
        command: &[String],
        first_begun: Option<Moment>,
    ) -> Result<(Self, ViewPlan), BeginError> {
        Self::begin_with(home, name, command, first_begun, None, None)
    }

    /// Begins one whose changes are kept in memory until it commits. No other process can go on with it.
    pub fn begin_in_memory(
        home: &StateDirectory,
        name: &TxName,
        command: &[String],
        first_begun: Option<Moment>,
        memory: Memory,
    ) -> Result<(Self, ViewPlan), BeginError> {
        Self::begin_with(home, name, command, first_begun, None, Some(memory))
    }

    /// Begins one that is about a target.
    pub fn begin_in(
        home: &StateDirectory,
        name: &TxName,
        command: &[String],
        first_begun: Option<Moment>,
        target: Option<Target>,
    ) -> Result<(Self, ViewPlan), BeginError> {
        Self::begin_with(home, name, command, first_begun, target, None)
    }

    /// Begins a user's: what he may not do himself it is not committed with. Its changes are kept in memory, which no
    /// path leads to, and end with it.
    pub fn begin_for_user(
        home: &StateDirectory,
        name: &TxName,
        command: &[String],
        memory: Memory,
        user: UserIds,
    ) -> Result<(Self, ViewPlan), BeginError> {
        let (transaction, plan) = Self::begin_whose(home, name, command, (None, Some(&user)), None, Some(memory))?;
        Ok((Self { user: Some(user), ..transaction }, plan))
    }

    fn begin_with(
        home: &StateDirectory,
        name: &TxName,
        command: &[String],
        first_begun: Option<Moment>,
        target: Option<Target>,
        memory: Option<Memory>,
    ) -> Result<(Self, ViewPlan), BeginError> {
        Self::begin_whose(home, name, command, (first_begun, None), target, memory)
    }

    fn begin_whose(
        home: &StateDirectory,
        name: &TxName,
        command: &[String],
        (first_begun, user): (Option<Moment>, Option<&UserIds>),
        target: Option<Target>,
        memory: Option<Memory>,
    ) -> Result<(Self, ViewPlan), BeginError> {
        home.prepare()?;
        if target.is_none() {
            // What cannot be finished now is told by whoever commits.
            let _ = finish_published(home);
        }
        let (lock, directory) = claimed(home, name)?;
        let mounts = match &target {
            None => Some(MountWatch::begin().context(|| "listening to what is mounted".into())?),
            Some(_) => None,
        };
        let mut plan = match &target {
            None => ViewPlan::of_now(home, name)?,
            Some(target) => ViewPlan::of_target(home, name, target)?,
        };
        if let Some(memory) = &memory {
            plan.parts_mut().enumerate().for_each(|(number, part)| memory.keep(part, number));
        }
        if user.is_some() {
            let mounts = pando_kernel::mount::mounts()?;
            plan.give_to_user(&mounts);
        }
        let watch = Watch::new(home).ok();
        let holder = ProcessId::own().context(|| "looking at this process".into())?;
        let mut record = Record {
            name: name.clone(),
            begun: Moment::exactly_now(),
            clock: Some(Clock::now()),
            first_begun,
            parts: plan.parts().cloned().collect(),
            roots: Vec::new(),
            group: match &target {
                None => home.group(name)?,
                Some(target) => target.group(name),
            },
            target,
            holder: holder.pid,
            holder_started: holder.started,
            places: plan.places(),
            listener: watch.as_ref().map(|watch| watch.listener().as_raw_fd()),
            synchronous_writes: false,
            baselines: Vec::new(),
            known_names: Vec::new(),
            ignored: Vec::new(),
            user: user.map(|user| user.uid),
            lost: None,
            command: command.to_vec(),
        };
        // What is made is known before, so that a crash leaves nothing unknown.
        record.write(&directory)?;
        record.roots = plan.make_parts()?.iter().map(|root| root.digest).collect();
        record.parts = plan.parts().cloned().collect();
        // It begins only now: whoever lists the root of a mount must not be told that it was changed, when Pando itself
        // has made its hidden directory there. As long as this transaction has a part in that, nobody else makes it or
        // removes it either.
        record.begun = begin_timestamp::now(&directory, plan.grain).context(|| "taking the time".into())?;
        record.write(&directory)?;
        let scope = Scope::make(&record.group)?;
        if let Some(target) = &record.target {
            scope.hand_to(target.first_id)?;
        }
        let phase = Phase::Begun { watch, mounts };
        Ok((Self { phase, memory, ..Self::of(home, directory, record, scope, lock) }, plan))
    }
}

/// Makes a transaction's directory, and locks it.
fn claimed(home: &StateDirectory, name: &TxName) -> Result<(FileLock, PathBuf), BeginError> {
    // Under a name that nobody looks at until the lock is held: what is not locked is taken for what a crash left.
    let new = home.directory().join(format!(".new-{name}-{}", std::process::id()));
    let lock = home.claim(&new)?;
    let directory = home.of(name);
    match rustix::fs::renameat_with(CWD, &new, CWD, &directory, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(errno) => {
            // It holds nothing but its lock.
            let _ = remove_tree(&new);
            return match errno {
                Errno::EXIST => Err(BeginError::Exists(name.clone())),
                errno => Err(errno).context(|| format!("making {}", directory.display()))?,
            };
        }
    }
    Ok((lock, directory))
}

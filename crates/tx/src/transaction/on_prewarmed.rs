//! The beginning of a transaction out of what was made ahead.

use super::looking::Looking;
use super::{BeginError, Phase, Transaction};
use crate::prewarm::prewarmed::{Prewarmed, Taken};
use crate::state::begin_timestamp::Grain;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::scope::Scope;
use crate::tree::attributes::Moment;
use crate::view::ViewPlan;
use pando_kernel::Context;
use pando_kernel::process::identity::ProcessId;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::os::fd::AsRawFd;

impl Transaction {
    /// Begins one about the host, as [`begin`](Self::begin) does, on a prewarmed transaction; nothing where that is not
    /// current any more, and so is thrown away.
    pub fn on_prewarmed(
        home: &StateDirectory,
        name: &TxName,
        command: &[String],
        first_begun: Option<Moment>,
        mut prewarmed: Prewarmed,
    ) -> Result<Option<(Self, ViewPlan)>, BeginError> {
        let (former, directory) = (prewarmed.directory().to_owned(), home.of(name));
        if directory.exists() {
            return Err(BeginError::Exists(name.clone()));
        }
        let begun = prewarmed.begin().context(|| "taking the time".into())?;
        let loaded = prewarmed.give_loaded();
        let looking = Looking::begin(move || loaded, prewarmed.still().clone())?;
        if !prewarmed.is_current() {
            return Ok(None);
        }
        // Whatever fails from here on, what is on disk of the prewarmed transaction goes with `site`.
        let Taken { state, namespaces, watch, lock, site } = prewarmed.take_apart();
        let (mut plan, mut record) = (state.plan, state.record);
        for ((part, changed), digest) in plan.parts().zip(&state.roots).zip(&mut record.roots) {
            // Names may have come and gone there since, and where whole seconds are kept nothing need tell of it.
            if plan.grain == Grain::Second || part.root_changed() != Some(*changed) {
                let looked = part.look_like_live();
                *digest = looked.context(|| format!("looking at {}", part.live.display()))?.digest;
            }
        }
        plan.move_parts(&former, &directory);
        record.name = name.clone();
        record.first_begun = first_begun;
        record.parts = plan.parts().cloned().collect();
        record.held_by(ProcessId::own().context(|| "looking at this process".into())?);
        record.listener = Some(watch.listener().as_raw_fd());
        record.command = command.to_vec();
        record.begun = begun;
        record.write(&former)?;
        match rustix::fs::renameat_with(CWD, &former, CWD, &directory, RenameFlags::NOREPLACE) {
            Ok(()) => site.leave(),
            Err(Errno::EXIST) => return Err(BeginError::Exists(name.clone())),
            Err(errno) => Err(errno).context(|| format!("making {}", directory.display()))?,
        }
        let scope = Scope::at(&record.group);
        let phase = Phase::Prewarmed { watch, namespaces, looking };
        Ok(Some((Self { phase, ..Self::of(home, directory, record, scope, lock) }, plan)))
    }
}

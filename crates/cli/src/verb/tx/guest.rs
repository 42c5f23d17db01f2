//! A guest as what a transaction is about.

use crate::complaint::Usage;
use crate::replies::Inspected;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::{Method, PartOf, Process};
use pando_guest::{GuestName, Places};
use pando_kernel::process::identity::ProcessId;
use pando_tx::{Network, StateDirectory, Target, TxName};
use std::path::PathBuf;

/// The transactions of a guest, or of the host. Should this process be killed while it has a guest stand still, another
/// finishes what it was at.
pub(super) fn home(root: &StateRoot, guest: Option<&str>) -> anyhow::Result<StateDirectory> {
    let host = StateDirectory::new(root.directory());
    let Some(guest) = guest else { return Ok(host) };
    let name: GuestName = guest.parse().map_err(|error| Usage::sentence(format!("'{guest}' is no guest: {error}")))?;
    let directory = Places::new(root.directory()).guest(&name);
    if !directory.exists() {
        return Err(
            Usage::sentence(format!("there is no guest '{guest}' that lasts; `pando ls` lists the guests")).into()
        );
    }
    let words = ["pando".into(), "--root".into(), root.directory().into(), "tx".into(), "recover".into()];
    Ok(host.of_target(&directory.join("tx")).rescued_by("/proc/self/exe".into(), words.into()))
}

/// Those of all guests that have any.
pub(super) fn homes(root: &StateRoot) -> Vec<StateDirectory> {
    let guests = std::fs::read_dir(Places::new(root.directory()).guests()).into_iter().flatten().flatten();
    let kept = guests.map(|guest| guest.path().join("tx")).filter(|kept| kept.exists());
    kept.map(|kept| StateDirectory::new(root.directory()).of_target(&kept)).collect()
}

/// The guest as it runs now.
pub(super) fn target(root: &StateRoot, guest: &str) -> anyhow::Result<Target> {
    let mut client = crate::daemon_start::connected(root)?;
    let doing = || format!("cannot look at guest '{guest}'");
    let found = client.call::<Inspected>(Method::Inspect { name: guest.to_owned() }).with_context(doing)?.guest;
    let Some(pid) = found.status.pid else {
        let sentence = format!("guest '{guest}' does not run; start it: pando start {guest}");
        return Err(Usage::sentence(sentence).into());
    };
    let unified = found.cgroups.iter().map(PathBuf::from).find(|group| group.join("cgroup.freeze").exists());
    let groups = unified.with_context(|| {
        format!("guest '{guest}' has no group in a unified cgroup hierarchy (cgroup2), which transactions need")
    })?;
    Target::of_process(pid, found.first_id.unwrap_or(0), groups).with_context(doing)
}

/// A process of the guest that is part of a transaction, and answered for.
pub(super) fn process(name: &TxName, holder: ProcessId, network: Network, command: &[std::ffi::OsString]) -> Process {
    let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let refuse_network = network == Network::Refuse;
    let transaction = Some(PartOf {
        name: name.to_string(),
        holder: holder.pid,
        holder_started: holder.started,
        supervised: true,
        refuse_network,
    });
    Process { command, transaction, ..Process::default() }
}

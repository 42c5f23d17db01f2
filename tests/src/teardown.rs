//! The end of a test, however it went: every guest and process of it ends, and nothing may be left.

use crate::patience::comes_true;
use crate::process;
use crate::sandbox::Sandbox;
use crate::world::{self, Leftovers};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Ends everything; the error lists what Pando left behind, and it is removed by force.
pub(crate) fn tear_down(sandbox: Sandbox) -> Result<(), String> {
    let mut complaints = Vec::new();
    if sandbox.places().state().exists() {
        // A command that fails or hangs here panics, as in a test.
        let orderly = catch_unwind(AssertUnwindSafe(|| {
            let names = sandbox.pando(["ls", "-q"]).ok();
            if !names.is_empty() {
                sandbox.pando(["rm", "--force"]).args(names.lines()).run();
            }
            sandbox.end_daemon();
        }));
        if orderly.is_err() {
            complaints.push("the guests could not be removed in good order".to_owned());
        }
    }
    let mut left = Leftovers::default();
    if !comes_true(|| {
        left = world::leftovers(&sandbox);
        left.is_empty()
    }) {
        complaints.push(format!("left behind: {left:#?}"));
        remove_by_force(&left);
        // Transactions have parts at the roots of other mounts, which only their records lead to.
        let _ = catch_unwind(AssertUnwindSafe(|| sandbox.pando(["tx", "recover"]).run()));
    }
    let directory = sandbox.into_directory();
    let path = directory.path().to_owned();
    if let Err(error) = directory.close() {
        complaints.push(format!("{} cannot be removed: {error}", path.display()));
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

fn remove_by_force(left: &Leftovers) {
    for process in &left.processes {
        process::kill(process.pid);
    }
    for mount in left.mounts.iter().rev() {
        let _ = rustix::mount::unmount(mount.as_str(), rustix::mount::UnmountFlags::DETACH);
    }
    for group in left.groups.iter().rev() {
        let _ = std::fs::remove_dir(group);
    }
}

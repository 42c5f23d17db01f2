//! The processes of a command, wherever they have gone.

use crate::state::mount_space::MountSpace;
use crate::state::scope::Scope;
use pando_kernel::CallError;
use pando_kernel::seccomp::notify::Listener;

/// What is left of a command: whoever has its filter, which no process can take off.
#[derive(Debug)]
pub(crate) struct Filtered {
    pub(super) listener: Listener,
    /// The mount namespace of the view, which is nobody else's as long as this is there.
    pub(super) view: MountSpace,
}

impl Filtered {
    /// Takes those back into the group of the transaction that have left it.
    ///
    /// # Errors
    ///
    /// Where one of them cannot be taken back.
    pub(crate) fn gather(&self, scope: &Scope) -> Result<(), CallError> {
        // Mostly nobody is left, which is known at once; to look at every process takes a while.
        if !self.listener.is_abandoned() {
            scope.gather(&self.view, None)?;
        }
        Ok(())
    }
}

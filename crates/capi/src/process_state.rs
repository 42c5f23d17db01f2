//! What a process has beside its files: who it is, its limits, its mask, its priority, the handlers of its signals. An
//! abort restores them.

use crate::calls::{self, Handler};
use crate::failure::Failure;
use rustix::io::Errno;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities};

/// The highest number of a signal.
const SIGNALS: i32 = 64;

/// How many kinds of limits there are (`RLIM_NLIMITS`).
const LIMITS: u32 = 16;

fn given_up(what: &str, errno: Errno) -> Failure {
    let reason = format!("the {what} that the program had before the transaction cannot be had again: {errno}");
    Failure::about(what, reason)
}

/// Who a process is at a moment.
#[derive(Debug)]
pub(crate) struct Identity {
    users: [u32; 3],
    groups: [u32; 3],
    more_groups: Vec<u32>,
    capabilities: Option<CapabilitySets>,
}

/// All of it at a moment.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pub(crate) identity: Identity,
    limits: Vec<Option<(u64, u64)>>,
    mask: u32,
    priority: Option<i32>,
    handlers: Vec<Option<Handler>>,
}

impl Identity {
    /// As it is now.
    pub(crate) fn now() -> Self {
        Self {
            users: calls::users(),
            groups: calls::groups(),
            more_groups: calls::more_groups(),
            capabilities: capabilities(None).ok(),
        }
    }

    /// Restores who the process was: without that it could not leave a view. What it has given up may be what it takes
    /// to have the rest again, so that users and capabilities come first.
    pub(crate) fn restore(&self) -> Result<(), Failure> {
        self.restore_users()?;
        self.restore_capabilities()?;
        self.restore_groups()
    }

    /// Makes the process once more who it became inside, which takes what it has given up there.
    pub(crate) fn give_up_again(&self) -> Result<(), Failure> {
        self.restore_groups()?;
        self.restore_users()?;
        self.restore_capabilities()
    }

    fn restore_users(&self) -> Result<(), Failure> {
        if calls::users() == self.users {
            return Ok(());
        }
        calls::set_users(self.users).map_err(|errno| given_up("users", errno))
    }

    fn restore_capabilities(&self) -> Result<(), Failure> {
        let Some(before) = self.capabilities.filter(|before| capabilities(None).ok() != Some(*before)) else {
            return Ok(());
        };
        set_capabilities(None, before).map_err(|errno| given_up("capabilities", errno))
    }

    fn restore_groups(&self) -> Result<(), Failure> {
        if calls::more_groups() != self.more_groups {
            calls::set_more_groups(&self.more_groups).map_err(|errno| given_up("groups", errno))?;
        }
        if calls::groups() != self.groups {
            calls::set_groups(self.groups).map_err(|errno| given_up("groups", errno))?;
        }
        Ok(())
    }
}

impl ProcessState {
    /// As it is now.
    pub(crate) fn now() -> Self {
        Self {
            identity: Identity::now(),
            limits: (0..LIMITS).map(calls::limit).collect(),
            mask: calls::mask(),
            priority: rustix::process::getpriority_process(None).ok(),
            handlers: (1..=SIGNALS).map(Handler::of).collect(),
        }
    }

    /// Restores all the rest. What cannot be restored does not keep the others from it.
    pub(crate) fn restore(&self) -> Result<(), Failure> {
        calls::set_mask(self.mask);
        let mut failed = Ok(());
        for (resource, before) in (0..LIMITS).zip(&self.limits) {
            let Some(before) = before.filter(|before| calls::limit(resource) != Some(*before)) else { continue };
            if let Err(errno) = calls::set_limit(resource, before) {
                failed = Err(Failure::of_call(format!("limit {resource}"), "raising it to what it was before", errno));
            }
        }
        if let Some(before) =
            self.priority.filter(|before| rustix::process::getpriority_process(None).ok() != Some(*before))
            && let Err(errno) = rustix::process::setpriority_process(None, before)
        {
            failed = Err(Failure::of_call("priority", "setting it to what it was before", errno));
        }
        for (signal, before) in (1..=SIGNALS).zip(&self.handlers) {
            let is_other = |before: &Handler| Handler::of(signal).is_none_or(|now| !now.is(before));
            if let Some(before) = before.filter(is_other)
                && let Err(errno) = before.restore(signal)
            {
                failed = Err(Failure::of_call(format!("signal {signal}"), "giving it its handler again", errno));
            }
        }
        failed
    }
}

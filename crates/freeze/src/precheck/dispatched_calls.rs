//! Threads that have their own system calls handed back to them (PR_SET_SYSCALL_USER_DISPATCH, as Wine does): those
//! that a thread of a clone makes on its way into the program would be handed back, too.

use crate::refusal::Refusal;
use crate::stop::seize::Stopped;
use pando_kernel::{CallError, Context};

/// Those among stopped threads; no other can be looked at.
pub(crate) fn objections<'a>(stopped: impl Iterator<Item = &'a Stopped>) -> Result<Vec<Refusal>, CallError> {
    let mut refusals = Vec::new();
    for Stopped { member, threads, .. } in stopped {
        for thread in threads {
            if thread.dispatches_calls().context(|| format!("reading thread {}", thread.tid()))? {
                refusals.push(Refusal {
                    pid: member.pid,
                    name: member.name.clone(),
                    descriptor: None,
                    kind: "system calls that it handles itself (PR_SET_SYSCALL_USER_DISPATCH)".into(),
                    advice: "start the program without that",
                });
                break;
            }
        }
    }
    Ok(refusals)
}

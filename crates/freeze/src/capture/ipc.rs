//! What an ipc namespace keeps whether or not a process uses it: POSIX message queues, and what System V's calls make.
//! Opened before anybody is stopped, since to enter a namespace takes a thread.

use crate::capture::queues::Queues;
use crate::capture::sysv::{self, Keys};
use crate::image::namespace::MOST_IPC_SPACES;
use crate::image::namespace_kind::IPC;
use crate::inspect::namespaces::Beside;
use crate::refusal::Refusal;
use pando_kernel::CallError;

/// Both, of the first process's namespace.
#[derive(Debug)]
pub(crate) struct Ipc {
    pub(crate) queues: Queues,
    pub(crate) keys: Keys,
}

impl Ipc {
    /// Opens what the ipc namespace of a process keeps.
    pub(crate) fn of(init: i32) -> Result<Self, CallError> {
        let at = IPC.at(init);
        Ok(Self { queues: Queues::of(&at)?, keys: Keys::of(&at)? })
    }
}

/// On which device the message queues of each are, and what is in them, which a clone's would not have. While processes
/// stand still nobody waits for what was looked through to go: it goes with who looks.
pub(crate) fn look(spaces: &Beside, stopped: bool) -> Result<(Vec<String>, Vec<Refusal>), CallError> {
    const ADVICE: &str = "remove it (ipcrm, mq_unlink), or start the program in the guest's own ipc namespace";
    let (mut devices, mut refusals) = (Vec::new(), Vec::new());
    for (number, space) in spaces.all().iter().enumerate() {
        if number >= MOST_IPC_SPACES {
            refusals.push(space.refusal(format!("more than {MOST_IPC_SPACES} ipc namespaces"), "stop what made them"));
            break;
        }
        let (device, held) = match queues(&space.at, stopped) {
            Ok((device, true)) => (device, Ok(Some("a message queue"))),
            Ok((device, false)) => (device, sysv::held(&space.at)),
            Err(error) => (String::new(), Err(error)),
        };
        devices.push(device);
        match held {
            Ok(Some(what)) => refusals.push(space.refusal(format!("{what} in an ipc namespace of its own"), ADVICE)),
            Ok(None) => {}
            // One whose processes have ended meanwhile has nothing against it.
            Err(_) if space.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok((devices, refusals))
}

/// The device that message queues are on, and whether there are any.
fn queues(at: &str, stopped: bool) -> Result<(String, bool), CallError> {
    let queues = Queues::of(at)?;
    let (device, any) = (queues.device(), queues.any());
    if stopped {
        std::mem::forget(queues);
    }
    Ok((device, any?))
}

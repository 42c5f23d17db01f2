//! Ipc namespaces of a process's own (ipc_namespaces(7)): a clone has them again where nothing is in them. What is in the first process's is another matter: see
//! `sysv` and `queues`.

use crate::image::Image;
use crate::image::namespace::MOST_IPC_SPACES;
use crate::image::namespace_kind::IPC;
use crate::namespaces::Beside;
use crate::objects::Slots;
use crate::queues::Queues;
use crate::refusal::Refusal;
use crate::script::Writer;
use crate::sysv;
use pando_kernel::CallError;

/// On which device the message queues of each are, and what is in them, which a clone's would not have. While processes stand still nobody waits for what was looked through to go: it goes with who looks.
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

/// Writes the maker's steps: a namespace for each, and one to go back to.
pub(crate) fn make(writer: &mut Writer, image: &Image, slots: Slots) {
    if image.ipc_spaces == 0 {
        return;
    }
    IPC.keep(writer, slots.ipc_space(None));
    for number in 0..image.ipc_spaces {
        IPC.make(writer);
        IPC.keep(writer, slots.ipc_space(Some(number)));
    }
    IPC.enter(writer, Writer::MAKING, slots.ipc_space(None));
}

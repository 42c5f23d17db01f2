//! A clone's first process, where that is one of the image: this program, executed in the place of an init, becomes
//! what it is to be. Its memory is its own, and nobody's who has to be kept from the guest.

use crate::bare::{self, Errno};
use crate::hold;
use crate::packet::Message;
use crate::run::{self, Failure};
use pando_restorer::{HANDOVER, MEMORY};

const EINVAL: Errno = 22;

/// Takes the steps of its script. It returns only on failure, as long as it has its socket; later steps report as those
/// of any process of a clone do.
pub(crate) fn grow<T>(message: &Message, length: u32) -> Result<T, Failure> {
    let [file, memory, handover] = message.fds[..message.count] else { return Err(Failure::of_call(EINVAL)) };
    let script = hold::map(file, length)?;
    bare::move_descriptor(memory, MEMORY).map_err(Failure::of_call)?;
    bare::move_descriptor(handover, HANDOVER).map_err(Failure::of_call)?;
    run::steps(&script, script.staging())?;
    run::process(&script, script.making())
}

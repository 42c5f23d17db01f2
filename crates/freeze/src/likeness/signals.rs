//! What a process does about signals, and which wait for it. What its threads block is in the frames that they return
//! through, and is not seen at the gate.

use crate::image::{Process, WaitingSignal};
use crate::inspect::proc_file::Lines;
use crate::inspect::process_tree;
use crate::likeness::{Said, inner, unlike_bits};
use pando_kernel::CallError;

/// Says how signals of a clone's process differ from the image.
pub(super) fn compare(process: &Process, outer: i32) -> Result<Said, CallError> {
    const IGNORED: u64 = 1;
    let status = Lines::read(outer, "status")?;
    let with = |is: fn(u64) -> bool| {
        let chosen = process.actions.iter().filter(|(_, action)| is(action[0]));
        chosen.fold(0, |all, (signal, _)| all | bit(*signal))
    };
    let mut said = Said::new();
    said.extend(unlike_bits("which signals it ignores", status.number("SigIgn", 16)?, with(|one| one == IGNORED)));
    said.extend(unlike_bits("which signals it handles", status.number("SigCgt", 16)?, with(|one| one > IGNORED)));
    said.extend(waiting("for it", status.number("ShdPnd", 16)?, &process.waiting));
    for tid in process_tree::threads(outer)? {
        let (number, status) = inner(outer, tid)?;
        if let Some(thread) = process.threads.iter().find(|thread| thread.tid == number) {
            said.extend(waiting(&format!("for thread {number}"), status.number("SigPnd", 16)?, &thread.waiting));
        }
    }
    Ok(said)
}

/// Signals that wait. That a child has ended is said once more where it ends once more in the clone.
fn waiting(whom: &str, is: u64, was: &[WaitingSignal]) -> Option<String> {
    let was = was.iter().filter_map(|info| info.first()).fold(0, |all, number| all | bit(i32::from(*number)));
    let more = is & !was & !bit(libc::SIGCHLD);
    (was & !is != 0 || more != 0).then(|| format!("signals {is:#x} wait {whom} instead of {was:#x}"))
}

fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|place| 1_u64.checked_shl(place)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_wait_are_compared_but_for_childrens_ends() {
        let of = |number: u8| vec![number, 0, 0, 0];
        assert_eq!(waiting("for it", bit(10), &[of(10)]), None);
        assert_eq!(waiting("for it", bit(10) | bit(libc::SIGCHLD), &[of(10)]), None);
        assert!(waiting("for it", 0, &[of(10)]).is_some());
        assert!(waiting("for it", bit(10) | bit(1), &[of(10)]).is_some());
        assert_eq!(bit(0), 0);
    }
}

//! How a thread has the kernel treat it, beyond who it is and how it is scheduled. What it makes, threads and
//! processes, has the same.

use crate::image::ThreadSettings;
use crate::inspect::proc_file::Lines;

/// PF_MCE_PROCESS and PF_MCE_EARLY of include/linux/sched.h, which a stat file shows.
const OWN_FAILURE: u64 = 0x80;

const EARLY_FAILURE: u64 = 0x0800_0000;

/// What a status file calls what the processor can be kept from, by number.
const GUESSES: [(u32, &str); 2] = [(0, "Speculation_Store_Bypass"), (1, "SpeculationIndirectBranch")];

const PR_SPEC_DISABLE: u32 = 4;
const PR_SPEC_FORCE_DISABLE: u32 = 8;

/// Of a thread: its flags, as its stat file has them, its status file, and its personality.
pub(crate) fn read(flags: u64, status: &Lines, personality: u32) -> ThreadSettings {
    let own = flags & OWN_FAILURE != 0;
    let kept = |(number, name): &(u32, &str)| match status.get(name) {
        "thread mitigated" | "conditional disabled" => Some((*number, PR_SPEC_DISABLE)),
        "thread force mitigated" | "conditional force disabled" => Some((*number, PR_SPEC_FORCE_DISABLE)),
        _ => None,
    };
    ThreadSettings {
        personality,
        memory_failure: own.then_some(flags & EARLY_FAILURE != 0),
        speculation: GUESSES.iter().filter_map(kept).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_told_from_what_the_machine_has() {
        let status = |store: &str, branch: &str| {
            Lines::parse(&format!("Speculation_Store_Bypass:\t{store}\nSpeculationIndirectBranch:\t{branch}\n"))
        };
        let usual = read(0x0800_0000, &status("thread vulnerable", "always enabled"), 0);
        assert_eq!(usual, ThreadSettings::default());
        let kept = read(0x80, &status("thread force mitigated", "conditional disabled"), 7);
        assert_eq!(kept.speculation, [(0, PR_SPEC_FORCE_DISABLE), (1, PR_SPEC_DISABLE)]);
        assert_eq!((kept.memory_failure, kept.personality), (Some(false), 7));
    }
}

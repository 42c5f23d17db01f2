//! What a process has asked of the kernel for its memory as a whole. What it forks has it too, and what it executes has
//! not.

use crate::image::MemoryRules;
use crate::restore::script::{Chapter, Writer};

/// Writes the same into a process whose memory is in its place. Nothing of it may have to become executable after that,
/// and there are no further threads yet: for those the kernel would have to wait until each processor has heard of the
/// barriers.
pub(crate) fn ask_again(writer: &mut Writer, chapter: Chapter, rules: MemoryRules) {
    const PR_SET_MDWE: u64 = 65;
    const PR_SET_MEMORY_MERGE: u64 = 67;
    for command in (0..u32::BITS).map(|bit| 1 << bit).filter(|command| rules.barriers & command != 0) {
        writer.call(chapter, "registering for memory barriers", libc::SYS_membarrier, &[u64::from(command)]);
    }
    if rules.merged {
        let label = "having equal pages merged";
        // It takes CAP_SYS_RESOURCE, and changes nothing but what memory is used.
        writer.attempt(chapter, label, libc::SYS_prctl, &[PR_SET_MEMORY_MERGE, 1, 0, 0, 0]);
    }
    if rules.execution != 0 {
        let label = "keeping memory from becoming executable";
        writer.call(chapter, label, libc::SYS_prctl, &[PR_SET_MDWE, u64::from(rules.execution), 0, 0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_barrier_is_registered_for_by_itself_and_execution_comes_last() {
        let mut writer = Writer::new();
        let rules = MemoryRules { barriers: 1 << 4 | 1 << 6, execution: 1, merged: false };
        ask_again(&mut writer, Writer::MAKING, rules);
        let text = format!("{:?}", writer.finish(9, 3, 1, 0));
        assert_eq!(text.matches("registering for memory barriers").count(), 2);
        assert!(text.lines().last().unwrap().contains("executable"), "{text}");
    }
}

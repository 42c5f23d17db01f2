//! Writes how a thread has the kernel treat it.

use crate::image::ThreadSettings;
use crate::restore::script::{Chapter, Writer};

/// Writes the thread's setting of them anew.
pub(crate) fn write(writer: &mut Writer, chapter: Chapter, settings: &ThreadSettings) {
    const PR_MCE_KILL: u64 = 33;
    const PR_MCE_KILL_SET: u64 = 1;
    const PR_SET_SPECULATION_CTRL: u64 = 53;
    if settings.personality != 0 {
        let personality = u64::from(settings.personality);
        writer.call(chapter, "setting the personality", libc::SYS_personality, &[personality]);
    }
    if let Some(early) = settings.memory_failure {
        let arguments = [PR_MCE_KILL, PR_MCE_KILL_SET, u64::from(early), 0, 0];
        writer.call(chapter, "setting what failing memory does", libc::SYS_prctl, &arguments);
    }
    for (number, control) in &settings.speculation {
        let arguments = [PR_SET_SPECULATION_CTRL, u64::from(*number), u64::from(*control), 0, 0];
        writer.call(chapter, "keeping the processor from guessing", libc::SYS_prctl, &arguments);
    }
}

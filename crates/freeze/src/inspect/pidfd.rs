//! Descriptors of processes (pidfd_open(2)), as /proc shows them.

use crate::image::own_files::GONE;
use crate::inspect::descriptors::Found;

/// Whether a descriptor is one.
pub(crate) fn is(found: &Found) -> bool {
    found.target == "anon_inode:[pidfd]"
}

/// The pid, inside, of the process that one is of, which is looked for by [`objections`]; [`GONE`] of one that is not
/// there any more.
pub(crate) fn pid(found: &Found) -> i32 {
    found.lines.words("NSpid").last().and_then(|word| word.parse().ok()).unwrap_or(GONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::proc_file::Lines;
    use crate::inspect::process_tree::Member;
    use crate::precheck::pidfd::objections;

    fn found(info: &str) -> Found {
        Found {
            number: 4,
            path: String::new(),
            target: "anon_inode:[pidfd]".into(),
            stat: rustix::fs::stat("/").unwrap(),
            info: info.into(),
            lines: Lines::parse(info),
        }
    }

    #[test]
    fn who_is_there_is_told_from_who_is_not() {
        let member = Member { outer: 77, pid: 7, name: "init".into(), state: 'S' };
        let said = |info: &str| {
            let all = [(&member, vec![found(info)])];
            objections(50, std::slice::from_ref(&member), &all, &[]).pop().map(|one| one.kind)
        };
        assert_eq!(pid(&found("flags:\t02\nPid:\t77\nNSpid:\t77\t7\n")), 7);
        assert_eq!(said("flags:\t02000002\nPid:\t77\nNSpid:\t77\t7\n"), None);
        assert_eq!(said("flags:\t02\nPid:\t50\nNSpid:\t50\t1\n"), None);
        let gone = "flags:\t02\nPid:\t-1\nNSpid:\t-1\n";
        assert_eq!((said(gone), pid(&found(gone))), (None, GONE));
        for (info, wanted) in [
            ("flags:\t02\nPid:\t9\nNSpid:\t9\n", "that does not come along"),
            ("flags:\t0202\nPid:\t77\nNSpid:\t77\t7\n", "of a thread"),
            ("flags:\t0202\nPid:\t-1\nNSpid:\t-1\n", "of a thread"),
            ("", "that nobody tells of"),
        ] {
            assert!(said(info).is_some_and(|kind| kind.contains(wanted)), "{wanted}");
        }
    }
}

//! What a thread is that no file of /proc tells and no clone's thread would be. The [task
//! iterator](crate::bpf::task_iterator) tells of it, of threads that run too; where there is none, only what can be
//! compared from outside is found.

use crate::bpf::task_iterator::TaskIterator;
use crate::bpf::task_records::TaskRecords;
use crate::inspect::namespaces;
use crate::precheck::sharing;
use pando_kernel::CallError;

const OTHER_DIRECTORIES: u64 = 1;
const OTHER_DESCRIPTORS: u64 = 2;
const OTHER_NAMESPACES: u64 = 4;

const OWN: [(u64, &str, &str); 3] = [
    (8, "keys of its own (keyctl)", "make the program use the keys of its user"),
    (16, "system calls that it handles itself (PR_SET_SYSCALL_USER_DISPATCH)", "start the program without that"),
    (32, "a table of segments of its own (modify_ldt)", "start the program without that"),
];

type Objection = (String, &'static str);

/// Processes, compared with the first of their namespace.
#[derive(Debug)]
pub(crate) struct Usual<'a> {
    task_iterator: Option<&'a TaskIterator>,
    /// In how many domains all of a guest are: that of a clone's processes ([`crate::Target`]) is another than its
    /// first process's, and is instead of it.
    layers: u32,
}

impl<'a> Usual<'a> {
    /// What is usual below a first process.
    pub(crate) fn of(init: i32, task_iterator: Option<&'a TaskIterator>) -> Result<Self, CallError> {
        let told = task_iterator.map(|task_iterator| task_iterator.of(init)).transpose()?.flatten();
        let layers = told.and_then(|told| told.unsupported.first().map(|first| first.layers)).unwrap_or(0);
        Ok(Self { task_iterator, layers })
    }

    /// What is told of a process; nothing of one that has gone meanwhile.
    pub(crate) fn look(&self, outer: i32) -> Option<TaskRecords> {
        self.task_iterator.and_then(|task_iterator| task_iterator.of(outer).ok().flatten())
    }

    /// What stands in the way of the threads of a process of which that was told.
    pub(crate) fn objections(&self, outer: i32, told: Option<&TaskRecords>) -> Vec<Objection> {
        let Some(told) = told else {
            return namespaces::thread_objection(outer).into_iter().chain(sharing::thread_objection(outer)).collect();
        };
        let bits = told.unsupported.iter().fold(0, |all, one| all | one.bits);
        let mut objections = Vec::new();
        // A thread that is about to end has given up all that; who compares it once more knows.
        if bits & OTHER_NAMESPACES != 0 {
            objections.extend(namespaces::thread_objection(outer));
        }
        if bits & (OTHER_DIRECTORIES | OTHER_DESCRIPTORS) != 0 {
            objections.extend(sharing::thread_objection(outer));
        }
        let own = OWN.into_iter().filter(|(bit, ..)| bits & bit != 0);
        objections.extend(own.map(|(_, what, advice)| (what.to_owned(), advice)));
        if told.unsupported.iter().any(|one| one.layers > self.layers) {
            objections.push(("a Landlock domain of its own".into(), "start the program without that confinement"));
        }
        objections
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::ByHost;
    use crate::stop::task_state::{OfProcess, UnsupportedState};

    #[test]
    fn what_a_guest_is_kept_in_is_no_oddity_and_what_is_in_that_is() {
        let own = std::process::id() as i32;
        let process = OfProcess {
            actions: Vec::new(),
            heap_end: 0,
            subreaper: false,
            dumpable: true,
            by_host: ByHost::default(),
            barriers: 0,
        };
        let said = |bits, layers| {
            let told = TaskRecords::of_unsupported_state(
                vec![UnsupportedState::default(), UnsupportedState { bits, layers }],
                process.clone(),
            );
            Usual { task_iterator: None, layers: 1 }
                .objections(own, Some(&told))
                .into_iter()
                .map(|(kind, _)| kind)
                .collect::<Vec<_>>()
        };
        assert_eq!(said(0, 1), [""; 0]);
        assert_eq!(said(0, 2), ["a Landlock domain of its own"]);
        assert_eq!(said(8, 0), ["keys of its own (keyctl)"]);
        // Whoever compares once more finds nothing of the kind here.
        assert_eq!(said(OTHER_NAMESPACES | OTHER_DESCRIPTORS, 0), [""; 0]);
    }
}

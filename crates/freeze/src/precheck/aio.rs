//! Asynchronous input and output that no clone could have, and the wait for what is in flight.

use crate::bpf::task_records::TaskRecords;
use crate::image::{Area, AreaKind};
use crate::stop::seize::PATIENCE;
use crate::stop::task_state::AioContext;
use std::collections::HashMap;
use std::time::{Duration, Instant};

type Objection = (String, &'static str);

/// What stands in the way of a process, by its memory and its contexts, if these are told of. What one that runs has
/// asked for may be done in a moment, unless it waits.
pub(crate) fn objections(areas: &[Area], contexts: Option<&[AioContext]>, stands_still: bool) -> Vec<Objection> {
    const SET_UP: &str = "make the program set it up after it forks, and leave its memory alone";
    let rings = || areas.iter().filter(|area| matches!(area.kind, AreaKind::AioRing(_)));
    let Some(contexts) = contexts else {
        let untold =
            "a context of asynchronous input and output (io_setup), and this kernel does not tell what it does";
        return rings().take(1).map(|_| (untold.to_owned(), "make the program do without it")).collect();
    };
    let mut objections = Vec::new();
    for ring in rings().filter(|area| !contexts.iter().any(|context| context.has(area))) {
        let kind = format!(
            "memory of a context of asynchronous input and output that it does not have (at {:#x})",
            ring.start
        );
        objections.push((kind, SET_UP));
    }
    for context in contexts {
        if !areas.iter().any(|area| context.has(area)) {
            let kind = "a context of asynchronous input and output (io_setup) without its memory";
            objections.push((format!("{kind} (at {:#x})", context.address), SET_UP));
        }
        if context.polls {
            let kind = "a request of asynchronous input and output that waits for a file (IOCB_CMD_POLL)";
            objections.push((kind.to_owned(), "make the program use epoll"));
        } else if stands_still && context.in_flight > 0 {
            let kind =
                format!("requests of asynchronous input and output that do not end ({} of them)", context.in_flight);
            objections.push((kind, "wait until they are done"));
        }
    }
    objections
}

/// Waits until all that processes have asked for has been done, as long as it takes to stop a thread, and takes what is
/// told of them then for what was told before. They stand still, so it becomes no more.
pub(crate) fn let_end(told: &mut HashMap<i32, TaskRecords>, look: impl Fn(i32) -> Option<TaskRecords>) {
    const MOMENT: Duration = Duration::from_micros(50);
    let begun = Instant::now();
    loop {
        let in_flight = |told: &TaskRecords| told.contexts.iter().flatten().any(|context| context.in_flight > 0);
        let waiting: Vec<i32> = told.iter().filter(|(_, told)| in_flight(told)).map(|(pid, _)| *pid).collect();
        if waiting.is_empty() || begun.elapsed() > PATIENCE {
            return;
        }
        std::thread::sleep(MOMENT);
        told.extend(waiting.into_iter().filter_map(|pid| Some((pid, look(pid)?))));
    }
}

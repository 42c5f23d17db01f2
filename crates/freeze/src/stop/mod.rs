//! Stopping processes, and what is done with a process that is stopped: system calls that it is made to execute
//! ([`injection`]), calls that the stop interrupted ([`interrupted`]), forks that keep its memory as it was
//! ([`snapshot`]).

pub(crate) mod injection;
pub(crate) mod interrupted;
pub(crate) mod seize;
pub(crate) mod snapshot;
pub(crate) mod task_state;

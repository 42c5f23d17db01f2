//! Programs that run in the kernel: the iterator that reports what a stopped task is like ([`task_iterator`], its
//! records in [`task_records`]), the one that notes which files are written to ([`touched`]), and the one that reads
//! what waits at listeners ([`accept_queue`]).

pub(crate) mod accept_queue;
pub(crate) mod object;
pub(crate) mod task_iterator;
pub(crate) mod task_records;
pub(crate) mod touched;

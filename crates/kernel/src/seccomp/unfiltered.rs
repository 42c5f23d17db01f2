//! Threads without the filter of system calls that the rest of a process has.
//!
//! A filter, and that nothing gains privileges any more, is handed on to every thread and process that a thread makes,
//! and never taken off. What others are made of, or stops others, has to be without: programs that guests grow from,
//! and tracers, since the kernel lets none that has a filter suspend or read another's (ptrace(2),
//! PTRACE_O_SUSPEND_SECCOMP). So one thread begins before the filter is there, and all such threads are made by it.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

type Work = Box<dyn FnOnce() + Send>;

static MAKER: OnceLock<Sender<Work>> = OnceLock::new();

/// What such threads are called. The kernel keeps fifteen letters.
pub const NAME: &str = "unfiltered";

/// Begins that thread: to be called while this one has no filter. Once is enough.
///
/// # Errors
///
/// That there can be no thread.
pub fn begin() -> io::Result<()> {
    let (sender, work) = channel::<Work>();
    Builder::new().name(NAME.into()).spawn(move || {
        for work in work {
            // Where there can be no thread now, the one that waits hears that nothing came of it.
            drop(Builder::new().name(NAME.into()).spawn(work));
        }
    })?;
    drop(MAKER.set(sender));
    Ok(())
}

/// Does something in a thread of its own that has no filter, and waits for it; in this one where [`begin`] was not
/// called.
///
/// # Errors
///
/// That there can be no thread.
///
/// # Panics
///
/// If the work does.
pub fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let Some(maker) = MAKER.get() else { return Ok(work()) };
    let (sender, done) = channel();
    let (began, begun) = channel();
    let work = move || {
        let _ = began.send(());
        let _ = sender.send(work());
    };
    let gone = || io::Error::other("the thread that makes others has ended");
    maker.send(Box::new(work)).map_err(|_| gone())?;
    begun.recv().map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    Ok(done.recv().expect("what was done in a thread of its own came to an end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_elsewhere_once_that_has_begun() {
        let here = || std::thread::current().name().map(str::to_owned);
        begin().unwrap();
        assert_eq!(run(here).unwrap().as_deref(), Some(NAME));
        assert_ne!(here().as_deref(), Some(NAME));
        let panicked = std::panic::catch_unwind(|| run(|| panic!("on purpose")));
        assert!(panicked.is_err());
    }
}

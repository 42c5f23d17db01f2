//! Places where a test can make the process die or stop, and mistakes that a test can plant, to see that it would
//! notice. In ordinary builds all of it is nothing.

/// A mistake that the tests of crash safety must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Content is not brought to the disk before it gets its name.
    NoDataSync,
    /// A layer gets its name before its objects have theirs.
    WrongOrder,
    /// A directory is not brought to the disk after a name was added.
    NoDirectorySync,
    /// Two names of one file become two files.
    LostHardLink,
    /// Collection forgets which layers are in use.
    CollectUsed,
}

/// Whether the environment's `PANDO_MISTAKE` plants it.
#[inline]
pub(crate) fn planted(mistake: Mistake) -> bool {
    #[cfg(feature = "crash-points")]
    {
        std::env::var("PANDO_MISTAKE").is_ok_and(|wanted| wanted == format!("{mistake:?}"))
    }
    #[cfg(not(feature = "crash-points"))]
    {
        let _ = mistake;
        false
    }
}

/// Dies here if the environment's `PANDO_CRASH_AT` names this place; stops like a job if `PANDO_PAUSE_AT` does.
#[inline]
pub(crate) fn point(name: &str) {
    #[cfg(feature = "crash-points")]
    for (variable, signal) in
        [("PANDO_CRASH_AT", rustix::process::Signal::KILL), ("PANDO_PAUSE_AT", rustix::process::Signal::STOP)]
    {
        if std::env::var(variable).is_ok_and(|wanted| wanted == name) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        }
    }
    #[cfg(not(feature = "crash-points"))]
    let _ = name;
}

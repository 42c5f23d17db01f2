//! Any error as sentences on standard error, and the exit code that goes with it.

use crate::client::Broken;
use crate::errno_words;
use pando_api::Fault;
use std::io::Write;

/// Pando's own failure, as against that of the command it ran.
pub(crate) const OWN_FAILURE: u8 = 125;
/// What a shell sees of a program that SIGPIPE ended.
const PIPE_CLOSED: u8 = 128 + 13;

/// The command line is wrong, or is a question about the command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Usage {
    #[error("{0}")]
    Refused(#[from] clap::Error),
    #[error("{0}")]
    Sentence(String),
}

impl Usage {
    pub(crate) fn sentence(text: impl Into<String>) -> Self {
        Self::Sentence(text.into())
    }
}

/// Complaints were made already; only the exit code is left.
#[derive(Debug, thiserror::Error)]
#[error("some of it failed")]
pub(crate) struct Told;

/// Standard output has no reader any more. Not a failure: `pando ls | head -1` ends like this.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output")]
pub(crate) struct NoReader;

/// Says what is wrong on standard error; the answer is the exit code.
pub(crate) fn complain(error: &anyhow::Error) -> u8 {
    if let Some(Usage::Refused(refused)) = error.downcast_ref() {
        // Help and version come this way too, and go to standard output.
        let _ = refused.print();
        return if refused.use_stderr() { OWN_FAILURE } else { 0 };
    }
    if error.is::<Told>() {
        return OWN_FAILURE;
    }
    if error.chain().any(|cause| cause.is::<NoReader>()) {
        return PIPE_CLOSED;
    }
    // Standard error may be closed as well; then nobody wants to know.
    let _ = writeln!(std::io::stderr(), "pando: {}", sentences(error));
    error.chain().find_map(|cause| cause.downcast_ref::<Fault>()).map_or(OWN_FAILURE, Fault::exit_code)
}

/// The error as sentences: what was tried, on what, why it failed, what to do.
pub(crate) fn sentences(error: &anyhow::Error) -> String {
    let (mut parts, mut advice) = (Vec::new(), None);
    for cause in error.chain() {
        if let Some(fault) = cause.downcast_ref::<Fault>() {
            // The daemon's sentences are whole: they say themselves what was tried.
            parts = vec![fault.message.clone()];
            break;
        }
        leave_to(cause, &mut parts);
        if let Some(cause) = cause.downcast_ref::<std::io::Error>() {
            parts.push(errno_words::reason(cause));
            advice = errno_words::advice(cause);
            break;
        }
        if let Some(errno) = cause.downcast_ref::<rustix::io::Errno>() {
            let cause = std::io::Error::from(*errno);
            parts.push(errno_words::reason(&cause));
            advice = errno_words::advice(&cause);
            break;
        }
        if matches!(cause.downcast_ref(), Some(Broken::Closed)) {
            advice = Some(
                "Its log (daemon.log beside its socket) says why; the guests live on, and the next command starts it again.",
            );
        }
        parts.push(cause.to_string());
    }
    // Text of the daemon's can hold a guest's words, and those can hold control sequences for the terminal.
    let mut text = crate::printable::printable_lines(&parts.join(": "));
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    if let Some(advice) = advice {
        text.push(' ');
        text.push_str(advice);
    }
    text
}

/// Libraries' errors end with the words of their cause, which comes next: it is said once.
fn leave_to(cause: &(dyn std::error::Error + 'static), parts: &mut [String]) {
    if let Some(last) = parts.last_mut()
        && let Some(own) = last.strip_suffix(&format!(": {cause}"))
    {
        *last = own.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use pando_api::FaultKind;

    #[test]
    fn a_system_error_is_told_without_its_number() {
        let error = std::fs::File::open("/no/such/file").context("cannot read the spec '/no/such/file'").unwrap_err();
        assert_eq!(
            sentences(&error),
            "cannot read the spec '/no/such/file': it does not exist. Check the spelling of the path."
        );
    }

    #[test]
    fn what_an_error_says_of_its_cause_is_said_once() {
        let error =
            pando_kernel::CallError { what: "opening '/x'".to_owned(), source: std::io::ErrorKind::StorageFull.into() };
        let text = sentences(&anyhow::Error::new(error).context("cannot begin"));
        assert!(text.starts_with("cannot begin: opening '/x': no space"), "{text}");
    }

    #[test]
    fn a_fault_speaks_for_itself_and_sets_the_code() {
        let fault = Fault::new(FaultKind::CommandNotExecutable, "/x", "Cannot run '/x': it is a directory.");
        assert_eq!(sentences(&fault.clone().into()), "Cannot run '/x': it is a directory.");
        let error = anyhow::Error::new(fault).context("cannot run the command");
        assert_eq!(sentences(&error), "Cannot run '/x': it is a directory.");
        assert_eq!(complain(&error), 126);
    }

    #[test]
    fn a_fault_cannot_drive_the_terminal() {
        let fault = Fault::new(FaultKind::Failed, "x", "it said \u{1b}[2J");
        assert!(!sentences(&fault.into()).contains('\u{1b}'));
    }

    #[test]
    fn a_lost_daemon_is_told_with_what_to_do() {
        let text = sentences(&anyhow::Error::new(Broken::Closed).context("cannot list the guests"));
        assert!(text.starts_with("cannot list the guests: the daemon closed"), "{text}");
        assert!(text.contains("daemon.log"), "{text}");
    }

    #[test]
    fn usage_errors_are_ours_and_help_is_no_error() {
        let refused = crate::command_line::definition().try_get_matches_from(["pando", "ls", "--bogus"]).unwrap_err();
        assert_eq!(complain(&Usage::from(refused).into()), OWN_FAILURE);
        assert_eq!(complain(&anyhow::Error::new(NoReader)), 141);
    }
}

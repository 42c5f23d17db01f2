//! Why a tree of processes cannot be frozen, in words that say what to do about it.

use std::fmt;

/// One thing that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The process's pid in its namespace.
    pub pid: i32,
    /// The name of the process's first thread.
    pub name: String,
    /// The descriptor, if it is one.
    pub descriptor: Option<i32>,
    /// What the process has that no clone could have.
    pub kind: String,
    /// What can be done, so that the process can be frozen.
    pub advice: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {} ({})", self.pid, self.name)?;
        if let Some(descriptor) = self.descriptor {
            write!(out, ", descriptor {descriptor}")?;
        }
        write!(out, ": {}; {}", self.kind, self.advice)
    }
}

/// Why freezing failed. The processes run on as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// There is something that cannot be captured.
    #[error("{}", list(.0))]
    Refused(Vec<Refusal>),
    /// The kernel did not do its part.
    #[error(transparent)]
    Call(#[from] pando_kernel::CallError),
    /// A process ended, or another one came, while the tree was being looked at, again and again.
    #[error("the processes did not hold still: {0}; try again")]
    Restless(String),
    /// They were to end, and no clone came of what was frozen.
    #[error("no clone of it can be made, so it was not ended: {0}; it runs on ('--no-check' ends it without a trial)")]
    Trial(String),
}

fn list(refusals: &[Refusal]) -> String {
    let lines: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    format!("cannot be frozen: {}", lines.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_process_descriptor_kind_and_remedy() {
        let refusal = Refusal {
            pid: 7,
            name: "db".into(),
            descriptor: Some(4),
            kind: "an io_uring instance".into(),
            advice: "make the program use epoll",
        };
        let text = FreezeError::Refused(vec![refusal]).to_string();
        assert_eq!(
            text,
            "cannot be frozen: process 7 (db), descriptor 4: an io_uring instance; make the program use epoll"
        );
    }
}

//! How a trial went.

use crate::CallError;
use std::io;

/// How the trial of a kernel's feature ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel has it, and it works.
    Granted,
    /// This kernel does not have it.
    Missing,
    /// The kernel has it and refuses; why.
    Refused(String),
    /// It works in part; what does not, or how it is done here.
    Partial(String),
}

/// What kernels answer that do not know a call, a file system, a request or a flag of it.
const UNKNOWN: [i32; 7] =
    [libc::ENOSYS, libc::EINVAL, libc::ENODEV, libc::EOPNOTSUPP, libc::ENOTTY, libc::E2BIG, libc::ENOPROTOOPT];

impl Verdict {
    /// Whether it can be used at all.
    pub fn usable(&self) -> bool {
        matches!(self, Self::Granted | Self::Partial(_))
    }

    /// The verdict of a refusal.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) if UNKNOWN.contains(&number) => Self::Missing,
            _ => Self::refused(error),
        }
    }

    /// The verdict of an error that never means that the kernel lacks something.
    pub(super) fn refused(error: &io::Error) -> Self {
        let text = error.to_string();
        Self::Refused(text.split(" (os error").next().unwrap_or(&text).to_owned())
    }
}

impl<T> From<io::Result<T>> for Verdict {
    fn from(result: io::Result<T>) -> Self {
        result.map_or_else(|error| Self::of(&error), |_| Self::Granted)
    }
}

impl<T> From<Result<T, CallError>> for Verdict {
    fn from(result: Result<T, CallError>) -> Self {
        result.map_or_else(|error| Self::of(&error.source), |_| Self::Granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_call_is_missing_and_a_forbidden_one_refused() {
        let of = |number| Verdict::of(&io::Error::from_raw_os_error(number));
        assert_eq!(of(libc::ENOSYS), Verdict::Missing);
        assert_eq!(of(libc::EPERM), Verdict::Refused("Operation not permitted".into()));
        assert_eq!(Verdict::from(io::Result::Ok(())), Verdict::Granted);
    }

    #[test]
    fn what_works_in_part_is_usable() {
        assert!(Verdict::Partial("a".into()).usable() && Verdict::Granted.usable());
        assert!(!Verdict::Missing.usable() && !Verdict::Refused("a".into()).usable());
    }
}

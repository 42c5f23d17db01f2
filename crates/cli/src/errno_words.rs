//! The kernel's error numbers in words, and what to do about the common ones.

use std::io::{Error, ErrorKind};

/// Why the kernel refused, as the end of a sentence: never a number.
pub(crate) fn reason(error: &Error) -> String {
    let known = match error.kind() {
        ErrorKind::NotFound => "it does not exist",
        ErrorKind::PermissionDenied => "permission is denied",
        ErrorKind::AlreadyExists => "it exists already",
        ErrorKind::NotADirectory => "a part of the path is not a directory",
        ErrorKind::IsADirectory => "it is a directory",
        ErrorKind::DirectoryNotEmpty => "the directory is not empty",
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only",
        ErrorKind::StorageFull => "no space is left on the device",
        ErrorKind::QuotaExceeded => "the disk quota is used up",
        ErrorKind::FileTooLarge => "the file would be larger than is allowed",
        ErrorKind::ExecutableFileBusy => "the program is being run",
        ErrorKind::CrossesDevices => "it lies on another file system",
        ErrorKind::InvalidFilename => "the name is too long or not valid",
        ErrorKind::ConnectionRefused => "nobody listens there",
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "the other side closed the connection",
        ErrorKind::UnexpectedEof => "it ends too early",
        ErrorKind::OutOfMemory => "memory is used up",
        ErrorKind::TimedOut => "it took too long",
        _ => return rest(error),
    };
    // An error with words of its own (not the kernel's) says more than its kind.
    if error.get_ref().is_some() { error.to_string() } else { known.to_owned() }
}

/// Any other: the C library's words without the number behind them.
fn rest(error: &Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    match error.raw_os_error() {
        Some(40) => "a symbolic link stands in the way".to_owned(),
        Some(18) => "the path leads out of the directory".to_owned(),
        Some(_) => words[..1].to_lowercase() + &words[1..],
        None => words.to_owned(),
    }
}

/// What to do about it, as a sentence of its own, where there is a general answer.
pub(crate) fn advice(error: &Error) -> Option<&'static str> {
    if error.get_ref().is_some() {
        return None;
    }
    match error.kind() {
        ErrorKind::NotFound => Some("Check the spelling of the path."),
        ErrorKind::PermissionDenied => Some("Look at the owner and the mode of the path, and at mount options."),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some("Free some space; `df -h` shows where it went."),
        ErrorKind::OutOfMemory => Some("Stop a guest or raise the limit."),
        _ => match error.raw_os_error() {
            Some(23 | 24) => Some("Raise the limit on open files (`ulimit -n`)."),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_shown() {
        for number in 1..134 {
            let words = reason(&Error::from_raw_os_error(number));
            assert!(!words.contains("os error") && !words.is_empty(), "{number}: {words}");
        }
        assert_eq!(reason(&Error::from_raw_os_error(2)), "it does not exist");
        assert_eq!(reason(&Error::from_raw_os_error(40)), "a symbolic link stands in the way");
    }

    #[test]
    fn words_of_our_own_are_kept() {
        assert_eq!(reason(&Error::new(ErrorKind::NotFound, "no such thing")), "no such thing");
        assert_eq!(reason(&Error::other("odd")), "odd");
    }
}

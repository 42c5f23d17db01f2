//! How a first process ended.

/// How a first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an exit code, or 128 + a signal's number.
    Code(i32),
    /// By reboot(2) from inside, asking to be started again.
    Reboot,
    /// By reboot(2) from inside, asking to stay down.
    Halt,
    /// Nobody could tell how it ended.
    Unknown,
}

impl Ending {
    /// From a status as waitpid(2) gives it. An own init that calls reboot(2) in its pid namespace dies by SIGHUP for a
    /// restart and by SIGINT for a halt or a power-off (pid_namespaces(7)).
    pub(crate) fn from_status(status: Option<i32>, own_init: bool) -> Self {
        let Some(status) = status else { return Self::Unknown };
        let signal = status & 0x7f;
        match (signal, own_init) {
            (0, _) => Self::Code(status >> 8 & 0xff),
            (libc::SIGHUP, true) => Self::Reboot,
            (libc::SIGINT, true) => Self::Halt,
            (signal, _) => Self::Code(128 + signal),
        }
    }

    /// The exit code to remember.
    pub(crate) fn exit_code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Reboot | Self::Halt => Some(0),
            Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_told_as_the_shell_tells_it() {
        assert_eq!(Ending::from_status(Some(3 << 8), false), Ending::Code(3));
        assert_eq!(Ending::from_status(Some(9), false), Ending::Code(137));
        assert_eq!(Ending::from_status(Some(1), false), Ending::Code(129));
        assert_eq!(Ending::from_status(Some(1), true), Ending::Reboot);
        assert_eq!(Ending::from_status(Some(2), true), Ending::Halt);
        assert_eq!(Ending::from_status(None, true).exit_code(), None);
    }
}

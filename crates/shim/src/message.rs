//! The messages on a shim's socket (`SOCK_SEQPACKET`): one request, one answer, and an answer unasked whenever a
//! process of the guest ends.

use core::ffi::CStr;
use serde::{Deserialize, Serialize};

/// The largest message, in bytes. Plans travel beside it, in a memory file.
pub const MAX_MESSAGE: usize = 64;

/// The rest of a plan travels in its message if it is no longer than this, in bytes; a longer one in a memory file, the
/// last of the descriptors.
pub const MAX_REST: usize = 16 << 10;

/// The first byte of such a message: the steps follow, or lie in the file.
pub const IN_MESSAGE: u8 = 1;
/// The first byte of a message whose steps lie in a memory file: see [`IN_MESSAGE`].
pub const IN_FILE: u8 = 0;

/// A message that begins so says that the rest of a plan is about to come: the process is to be awake by then. It runs
/// where the daemon sees fit until it has taken the plan, and from then on on the processors of the bits that follow.
pub const ROUSED: u8 = 2;

/// A message of this byte alone says that the guest has been admitted ([`Step::Admission`](crate::Step::Admission)).
pub const ADMITTED: u8 = 3;

/// The first byte of an order at the nursery that asks for no shim: the nursery itself is to take plans, which come on
/// its standard input as the [rest](crate::Step::Await) of one does. So a process begins that no daemon stands behind.
pub const DIRECT: u8 = 2;

/// What a process whose calls are answered ([`Step::Supervise`](crate::Step::Supervise)) looks up before anything else:
/// nothing has that name. As long as the kernel knows that it was looked up, it has forgotten nothing that the process
/// has looked up since.
pub const FIRST_LOOKED_UP: &CStr = c"/.pando-tx-canary-inside";

/// The most bytes of a path that such a process is told to look up as well, on another file system of its root, with
/// the zero at its end.
pub const LONGEST_LOOKED_UP: usize = 512;

/// The most file descriptors that a request carries.
pub const MAX_FDS: usize = 64;

/// What the daemon asks of a shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Start a process. File descriptors: the plan, the report's socket, then what the plan names (index 0 is the first
    /// after these two).
    Launch(Start),
    /// Say again what there is to say of the init.
    Status,
    /// The init is a guest's from here on: stay for as long as it lives, and until its end was told, even without a
    /// client. Is not answered.
    Settle,
    /// Keep the console of a guest that brings its own init. File descriptors: a socket on which its master will
    /// arrive, the log that takes what is printed on it, and the file of the log's times. Is not answered.
    Console {
        /// The most that the log takes of the disk: bytes.
        bound: u64,
    },
    /// End. A living init is killed first.
    Quit,
    /// Carry what the guest prints into its log. File descriptors: the end of a pipe that is read, without waiting, the
    /// log, and the file of its times. Without these only the bound is another from now on. Once all that the guest
    /// printed is in the log its init's end is told, unless that came first. Is not answered.
    Log {
        /// The most that the log takes of the disk: bytes.
        bound: u64,
    },
    /// The daemon has a descriptor of the process that it was last told of ([`Answer::Forked`]): from here on that may
    /// be reaped when it ends, and its number be another's. Is not answered.
    Taken,
}

/// Which process a shim is to start, and where it is born.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Whether it is the guest's first process, in new namespaces; otherwise it joins them.
    pub init: bool,
    /// Namespaces to make for the init, besides that of processes: `CLONE_NEW*`.
    pub namespaces: u32,
    /// For a process that is not the init: which of the plan's descriptors is the init's pid namespace, to be born
    /// in.
    pub pid_namespace: u8,
    /// Which is the cgroup of the unified hierarchy to be born in.
    pub into_cgroup: Option<u8>,
}

/// What a shim answers to its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The process exists, and is not reaped before [`Request::Taken`]: until then the daemon opens it by its number.
    /// No descriptor comes along: how many may be on their way in sockets the kernel counts for each user, whose name
    /// the guest shares with its shim, and beyond its bound a message with one is not sent.
    Forked {
        /// Its pid on the host.
        pid: i32,
    },
    /// No process could be made.
    NotForked {
        /// The error number of the call.
        errno: i32,
    },
    /// A process of the shim's has ended.
    Ended {
        /// Its pid on the host.
        pid: i32,
        /// Its status, as waitpid(2) gives it.
        status: i32,
    },
    /// The init's pid (0 before it is a guest's) and, once it has ended, its status.
    Init {
        /// The shim's own pid on the host.
        shim: i32,
        /// The pid of the guest's first process.
        pid: i32,
        /// Its status, as waitpid(2) gives it, once it has ended.
        ended: Option<i32>,
    },
}

/// A step that failed, from the process itself, on the report's socket. The socket's end without one says that every
/// step was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The step's number, from 0.
    pub step: u32,
    /// The error number that the step failed with.
    pub errno: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_fits_and_is_read_as_it_was_written() {
        let start = Start { init: true, namespaces: u32::MAX, pid_namespace: 255, into_cgroup: Some(255) };
        let bound = u64::MAX;
        let requests = [
            Request::Launch(start),
            Request::Status,
            Request::Settle,
            Request::Console { bound },
            Request::Quit,
            Request::Log { bound },
            Request::Taken,
        ];
        for request in requests {
            let mut space = [0; MAX_MESSAGE];
            let written = postcard::to_slice(&request, &mut space).unwrap();
            assert_eq!(postcard::from_bytes::<Request>(written), Ok(request));
        }
        let answers = [
            Answer::Forked { pid: i32::MIN },
            Answer::NotForked { errno: i32::MIN },
            Answer::Ended { pid: i32::MIN, status: i32::MIN },
            Answer::Init { shim: i32::MIN, pid: i32::MIN, ended: Some(i32::MIN) },
        ];
        for answer in answers {
            let mut space = [0; MAX_MESSAGE];
            let written = postcard::to_slice(&answer, &mut space).unwrap();
            assert_eq!(postcard::from_bytes::<Answer>(written), Ok(answer));
        }
        let (report, mut space) = (Report { step: u32::MAX, errno: i32::MIN }, [0; MAX_MESSAGE]);
        assert_eq!(postcard::from_bytes::<Report>(postcard::to_slice(&report, &mut space).unwrap()), Ok(report));
    }

    #[test]
    fn what_begins_a_rest_of_a_plan_is_one_of_four() {
        let mut all = [IN_FILE, IN_MESSAGE, ROUSED, ADMITTED];
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    }

    #[test]
    fn bytes_that_are_no_request_are_refused() {
        for bytes in [&[][..], &[9], &[0], &[0, 2], &[3, 0xff, 0xff]] {
            assert!(postcard::from_bytes::<Request>(bytes).is_err(), "{bytes:?}");
        }
    }
}

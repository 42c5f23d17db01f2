//! Objects of System V that have a key. A transaction has an IPC namespace of its own, so that those it makes are
//! nobody else's; one that the host, or the target, has under the same key is meant by a program that wants to reach
//! others through it.

use std::fs::read_to_string;

/// A kind of objects, by its file in /proc/sysvipc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    SharedMemory,
    Semaphores,
    Messages,
}

impl Kind {
    /// The kind that a 32-bit program names in a call of `ipc`.
    pub(super) fn of_many(number: u64) -> Option<Self> {
        match number & 0xffff {
            2 => Some(Self::Semaphores),
            13 => Some(Self::Messages),
            23 => Some(Self::SharedMemory),
            _ => None,
        }
    }

    /// Whether there is an object with a key where the calling thread is. Where that cannot be told there is.
    pub(super) fn has_here(self, key: i32) -> bool {
        let file = match self {
            Self::SharedMemory => "shm",
            Self::Semaphores => "sem",
            Self::Messages => "msg",
        };
        read_to_string(format!("/proc/sysvipc/{file}")).map_or(true, |text| is_listed(&text, key))
    }
}

fn is_listed(text: &str, key: i32) -> bool {
    let key_of = |line: &str| line.split_ascii_whitespace().next()?.parse::<i32>().ok();
    text.lines().skip(1).any(|line| key_of(line) == Some(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_the_kernel_prints_them() {
        let text = "       key      shmid perms\n  -1895825407          3  1600\n         0          4   600\n";
        assert!(is_listed(text, -1_895_825_407) && !is_listed(text, 7) && !is_listed("", 0));
        assert_eq!((Kind::of_many(0x1_0017), Kind::of_many(1)), (Some(Kind::SharedMemory), None));
    }
}

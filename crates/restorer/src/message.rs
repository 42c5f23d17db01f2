//! What goes over a holder's socket, and what comes out of a clone that is being made.

/// Words of the longest message: every request fits eight words of four bytes.
pub const WORDS: usize = 8;

/// What a holder is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Map the script and take its staging steps. Descriptors: the script (a sealed memory file), the directory that
    /// paths are relative to.
    Hold {
        /// Length of the script in bytes.
        length: u32,
        /// Whether the image comes from elsewhere: its staging steps are taken without most capabilities.
        foreign: bool,
    },
    /// Fork a clone. Descriptors: where to report, the gate, then those counted here and the process, in this order.
    Clone {
        /// Directory of the cgroup (version 2) to be born in: 0 or 1.
        cgroups: u32,
        /// Files to write "0" to, so as to join cgroups of version 1.
        groups: u32,
        /// Which namespaces to enter (`CLONE_NEW*`): those of the process that comes as a pidfd behind the groups.
        namespaces: u32,
        /// Descriptors that the clone has in place of the frozen ones.
        supplied: u32,
        /// What a Landlock domain around the clone keeps inside (`LANDLOCK_SCOPE_*`).
        scopes: u32,
    },
    /// Become a process of a clone, its first. Descriptors: the script (a sealed memory file), the holder's memory,
    /// where the maker hands over what it has made. Answered only if that fails before there is a process that could
    /// report it.
    Become {
        /// Length of the script in bytes.
        length: u32,
    },
    /// Answer, and nothing else. Who answers runs: the kernel has laid its own mappings into the process by then, which
    /// it does after execve(2) has let the parent go.
    Answer,
    /// Offer a range of what is held to be merged with equal pages of others (MADV_MERGEABLE), with which clones are
    /// born from then on; or take that back, by which each has its own pages again.
    Offer {
        /// The first address of the range.
        start: u64,
        /// Length of the range in bytes.
        length: u64,
        /// Whether it is taken back.
        taken_back: bool,
    },
}

/// What a holder answers: 0 or an error number, and the step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the error; 0 for success.
    pub errno: i32,
    /// Which step it was, counted over the whole script.
    pub step: u32,
}

/// What each process of a clone says when all its threads stand at the gate, and any whose step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of the error; 0 for success.
    pub errno: i32,
    /// Which step it was, counted over the whole script; without an error, the pid of the process that stands.
    pub step: u32,
}

impl Request {
    /// The words that are sent on the socket.
    pub fn words(self) -> [u32; WORDS] {
        match self {
            Self::Hold { length, foreign } => [1, length, u32::from(foreign), 0, 0, 0, 0, 0],
            Self::Clone { cgroups, groups, namespaces, supplied, scopes } => {
                [2, cgroups, groups, namespaces, supplied, scopes, 0, 0]
            }
            Self::Become { length } => [3, length, 0, 0, 0, 0, 0, 0],
            Self::Answer => [4, 0, 0, 0, 0, 0, 0, 0],
            Self::Offer { start, length, taken_back } => {
                let [a, b] = halves(start);
                let [c, d] = halves(length);
                [5, a, b, c, d, u32::from(taken_back), 0, 0]
            }
        }
    }

    /// The request or answer that words from the socket mean.
    pub fn from_words(words: [u32; WORDS]) -> Option<Self> {
        match words {
            [1, length, foreign, ..] => Some(Self::Hold { length, foreign: foreign != 0 }),
            [2, cgroups, groups, namespaces, supplied, scopes, ..] => {
                Some(Self::Clone { cgroups, groups, namespaces, supplied, scopes })
            }
            [3, length, ..] => Some(Self::Become { length }),
            [4, ..] => Some(Self::Answer),
            [5, a, b, c, d, taken_back, ..] => {
                Some(Self::Offer { start: whole([a, b]), length: whole([c, d]), taken_back: taken_back != 0 })
            }
            _ => None,
        }
    }
}

/// A number as two words, the lower one first.
fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl Report {
    /// Bytes of a report; a pipe passes them as one.
    pub const LENGTH: usize = 8;

    /// The bytes that are written to the pipe.
    pub fn bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&self.errno.to_le_bytes());
        bytes[4..].copy_from_slice(&self.step.to_le_bytes());
        bytes
    }

    /// The report that bytes from the pipe mean.
    pub fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self { errno: i32::from_le_bytes([a, b, c, d]), step: u32::from_le_bytes([e, f, g, h]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_reports_are_read_as_they_were_written() {
        let clone = Request::Clone { cgroups: 1, groups: 2, namespaces: 3, supplied: 4, scopes: u32::MAX };
        let hold = Request::Hold { length: 7, foreign: true };
        let offer = Request::Offer { start: u64::MAX - 1, length: 1 << 40 | 7, taken_back: true };
        for request in [hold, clone, offer, Request::Become { length: u32::MAX }, Request::Answer] {
            assert_eq!(Request::from_words(request.words()), Some(request));
        }
        let report = Report { errno: i32::MIN, step: u32::MAX };
        assert_eq!(Report::from_bytes(report.bytes()), report);
    }

    #[test]
    fn other_words_are_no_request() {
        for word in (0..u32::BITS).map(|bit| 1 << bit).filter(|word| !(1..6).contains(word)).chain([0, 6, u32::MAX]) {
            assert_eq!(Request::from_words([word; WORDS]), None, "{word}");
        }
    }
}

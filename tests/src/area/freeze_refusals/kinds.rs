//! What cannot be frozen, a kind a row: what somebody does, and the words of the refusal.

/// A kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// What is done, in Python: see `fixtures/refused.py`.
    pub(super) does: &'static str,
    /// What clears up what stays behind who did it.
    pub(super) clears: &'static str,
    /// Words of the refusal: what it is, and what to do.
    pub(super) says: &'static [&'static str],
    /// The program that is named, if it is no Python.
    pub(super) program: &'static str,
    /// Whether it is found out only once the processes stand still.
    pub(super) late: bool,
    /// Whether it takes a kernel that tells of threads.
    pub(super) told: bool,
}

pub(super) const fn kind(does: &'static str, says: &'static [&'static str]) -> Kind {
    Kind { does, clears: "", says, program: "python3", late: false, told: false }
}

pub(super) const fn cleared(kind: Kind, clears: &'static str) -> Kind {
    Kind { clears, ..kind }
}

pub(super) const fn late(kind: Kind) -> Kind {
    Kind { late: true, ..kind }
}

pub(super) const fn told(kind: Kind) -> Kind {
    Kind { told: true, ..kind }
}

pub(super) const fn by(program: &'static str, kind: Kind) -> Kind {
    Kind { program, ..kind }
}

//! What a transaction is asked to be.

use crate::failure::Failure;
use std::ops::{BitOr, BitOrAssign};

/// What a transaction is asked to be, any of it at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// With nothing asked for in particular.
    pub const NONE: Self = Self(0);
    /// Its commit survives a loss of power.
    pub const DURABLE: Self = Self(1);
    /// It is begun again where others were in its way.
    pub const RETRY: Self = Self(2);
    /// The program's memory is restored by an abort. It is not supported yet.
    pub const MEMORY: Self = Self(4);
    /// What it cannot cover is passed over, and not refused.
    pub const WARN: Self = Self(8);
    /// It is the calling thread's alone: others go on outside of it.
    pub const THREAD: Self = Self(16);

    const KNOWN: u32 = 31;

    /// The wishes that a number stands for.
    pub(crate) fn of(bits: u32) -> Result<Self, Failure> {
        match bits & !Self::KNOWN {
            0 => Ok(Self(bits)),
            unknown => Err(Failure::about("flags", format!("no flag has the value {unknown:#x}; see pando_tx(3)"))),
        }
    }

    /// Whether all of these are among them.
    pub fn has(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_stands_for_nothing_is_refused() {
        assert!(Flags::of(3).unwrap().has(Flags::DURABLE | Flags::RETRY));
        assert!(!Flags::of(1).unwrap().has(Flags::RETRY));
        assert!(Flags::of(32).unwrap_err().reason.contains("0x20"));
    }
}

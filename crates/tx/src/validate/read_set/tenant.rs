//! A process that has memory, as the kernel tells of it.

/// One of them, as it was when it was told of: two that are equal are one process, with the same maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenant {
    /// Its pid outside of all namespaces.
    pub(crate) pid: i32,
    /// How many programs have been executed in it.
    execution: u32,
    /// When it was started.
    started: u64,
    /// What counts the changes of its maps, and a bit above that; zero where the kernel has no such count.
    maps: u64,
}

impl Tenant {
    /// Bytes of the program's `struct tenant`.
    const SIZE: usize = 24;

    /// Whether it can be told that its maps have changed.
    pub(crate) fn has_known_maps(&self) -> bool {
        self.maps != 0
    }

    /// As the program writes it.
    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.execution.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.started.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.maps.to_ne_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        Self { pid: half(0).cast_signed(), execution: half(4), started: word(8), maps: word(16) }
    }

    /// All that stand one behind the other.
    pub(crate) fn all_of_bytes(bytes: &[u8]) -> impl Iterator<Item = Self> {
        bytes.as_chunks().0.iter().map(Self::of_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let one = Tenant { pid: -7, execution: 3, started: 1 << 40, maps: 1 << 32 | 9 };
        let other = Tenant { pid: 8, maps: 0, ..one };
        let bytes: Vec<u8> = [one, other].into_iter().flat_map(Tenant::to_bytes).chain([1, 2, 3]).collect();
        assert_eq!(Tenant::all_of_bytes(&bytes).collect::<Vec<_>>(), [one, other]);
        assert!(one.has_known_maps() && !other.has_known_maps());
    }
}

//! What a fuzzer calls of what is kept in the kernel.

use super::layout::{GuestEntry, read_owners};

/// Entries of maps that another version of this program, or nobody, may have written.
pub(crate) fn maps(data: &[u8]) {
    if let Some(entry) = GuestEntry::read(data) {
        let bytes = entry.bytes();
        assert_eq!(bytes.len(), data.len());
        assert_eq!(GuestEntry::read(&bytes).map(|entry| entry.bytes()), Some(bytes));
    }
    assert!(read_owners(data).len() * 4 <= data.len());
}

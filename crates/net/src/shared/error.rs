//! Why something could not be done to the shared stack.

use pando_kernel::CallError;
use std::net::IpAddr;

/// Why a guest could not be given its addresses.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// A system call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The programs did not load, or a map refused.
    #[error("{what}: {reason}")]
    Bpf {
        /// What was tried with the program.
        what: String,
        /// The reason that libbpf gives.
        reason: String,
    },
    /// Too many guests at one address.
    #[error("{0} is shared by {most} guests already, the most there can be", most = super::MOST_OWNERS)]
    Crowded(IpAddr),
    /// Too many addresses at one guest.
    #[error("a guest can have at most {most} addresses of each family", most = super::MOST_ADDRESSES)]
    TooMany,
    /// The guest's number is larger than any that the programs know.
    #[error("the programs know no guest with number {0}")]
    Unknown(u32),
}

/// Names what libbpf was to do.
pub(crate) trait Named<T> {
    fn named(self, what: impl FnOnce() -> String) -> Result<T, SharedError>;
}

impl<T> Named<T> for libbpf_rs::Result<T> {
    fn named(self, what: impl FnOnce() -> String) -> Result<T, SharedError> {
        self.map_err(|error| SharedError::Bpf { what: what(), reason: format!("{error:#}") })
    }
}

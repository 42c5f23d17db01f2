//! What a guest may do, as data.

pub mod capabilities;
pub mod grants;
pub mod limits;
pub mod paths;
pub mod seccomp;

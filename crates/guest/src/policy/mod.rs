//! What a guest may do, as data: `profiles.toml`, and what the user adds or takes.

pub mod capabilities;
pub mod devices;
pub mod grants;
pub mod limits;
pub mod profile;
pub mod seccomp;

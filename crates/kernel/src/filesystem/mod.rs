//! File systems: what they lie on, and what is particular to one kind.

pub mod btrfs;
pub mod erofs;
pub mod ext4;
pub mod kernels_own;
pub mod latch;
pub mod loop_device;
pub mod project_quota;
pub mod spare_room;
pub mod swap_files;

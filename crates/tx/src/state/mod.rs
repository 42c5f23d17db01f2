//! What a transaction consists of on disk and in the kernel: its directory, record, overlay parts, control group and
//! times. Nothing here knows how it runs or commits.

pub(crate) mod begin_timestamp;
pub(crate) mod clock;
pub(crate) mod commit_mark;
pub(crate) mod directory;
pub(crate) mod mount_path;
pub(crate) mod mount_space;
pub(crate) mod name;
pub(crate) mod overlay_part;
pub(crate) mod private_place;
pub(crate) mod record;
pub(crate) mod scope;
pub(crate) mod target;
pub(crate) mod trash;

//! Trees of files: paths that stay below a root, and all that an object has beside its names. Nothing here knows of
//! transactions.

pub(crate) mod attributes;
pub(crate) mod confined;
pub(crate) mod content;
pub(crate) mod copying;
pub(crate) mod identity;
pub(crate) mod inner_ids;
pub(crate) mod inode_flags;
pub(crate) mod path;
pub(crate) mod protection;
pub(crate) mod xattr;

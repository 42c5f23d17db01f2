//! What a transaction did to one mount, as its overlay's upper directory tells.
//!
//! ```text
//!   upper/  ─walk─▶ Node tree        (plain data: what each name was and is)
//!   work/index/ ─▶ Indexed files     (hard-linked files whose changed name was removed again)
//! ```

mod executed;
mod marks;
mod node;
mod walk;

pub(crate) use executed::replace_executed;
pub(crate) use node::{Directory, DirectorySource, File, Indexed, LiveName, Node, Origin, What};
pub(crate) use walk::{Beginning, WalkError, untouched, walk};

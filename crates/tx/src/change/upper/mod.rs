//! What a transaction did to one mount, as its overlay's upper directory tells.
//!
//! ```text
//!   upper/  ─walk─▶ Node tree        (plain data: what each name was and is)
//!   work/index/ ─▶ Indexed files     (hard-linked files whose changed name was removed again)
//! ```

mod aspect;
mod executed;
mod marks;
mod node;
mod walk;

/// What an overlay's attributes say, for a fuzzer.
#[cfg(feature = "fuzz")]
pub(crate) fn marks_of(xattrs: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>) {
    let _ = marks::Marks::of(xattrs);
}

#[cfg(test)]
pub(crate) use aspect::Aspect;
pub(crate) use executed::replace_executed;
pub(crate) use node::{Directory, DirectorySource, File, Indexed, LiveName, Node, Origin, What};
pub(crate) use walk::{Beginning, WalkError, untouched, walk};

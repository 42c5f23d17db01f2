//! Everything of a directory but its names.

use crate::tree::attributes::Attributes;
use crate::tree::confined::{Tree, is_missing, leads_elsewhere};
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use crate::tree::xattr;
use std::io;

/// What a directory is like beside its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Aspect {
    pub(crate) attributes: Attributes,
    pub(crate) protection: Protection,
}

impl Aspect {
    /// Whether a directory of a live tree is still like this, but for its time, which names that come and go in it
    /// change.
    pub(crate) fn is_still_of(&self, live: &Tree, at: &TreePath) -> io::Result<bool> {
        let look = || -> io::Result<_> {
            let path = live.call_path(at)?;
            let attributes = Attributes::new(&live.stat(at)?, xattr::read(&path)?.own);
            Ok(Self { attributes, protection: Protection::of(&path)? })
        };
        match look() {
            Ok(now) => Ok(now.protection == self.protection && now.attributes.is_same_but_for_time(&self.attributes)),
            Err(error) if is_missing(&error) || leads_elsewhere(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

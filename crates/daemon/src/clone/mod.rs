//! Guests out of an image.

pub(crate) mod clone_guest;
pub(crate) mod forking;
pub(crate) mod generation;
pub(crate) mod identity;
pub(crate) mod restore;

//! What is told of a guest and of the walls around it.

pub(crate) mod inspect;
pub(crate) mod security;
pub(crate) mod weakest;

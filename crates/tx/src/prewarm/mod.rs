//! Prewarmed transactions: beginnings that are made before anybody asks for one.

pub(crate) mod prewarmed;
pub(crate) mod ticket;

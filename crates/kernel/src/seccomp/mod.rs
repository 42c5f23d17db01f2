//! System calls that are filtered, answered by another process, or refused in any case.

pub mod forbidden;
pub mod notify;
pub mod unfiltered;

//! Sockets: their options, their queues, and what the kernel tells of them.

pub mod option;
pub mod packet;
pub mod peek;
pub mod tcp_repair;
pub mod unix_diag;

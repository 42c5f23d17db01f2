//! Everything that is made ahead of the request that needs it.

pub(crate) mod pool;
pub(crate) mod ready_files;
pub(crate) mod ready_roots;
pub(crate) mod spawner_link;
pub(crate) mod standby_clones;
pub(crate) mod transaction_reserve;

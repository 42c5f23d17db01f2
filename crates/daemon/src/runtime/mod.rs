//! The daemon's own process: when it idles, what its one thread waits on, and what is kept from it.

pub(crate) mod descriptors;
pub(crate) mod idle;
pub(crate) mod image_turns;
pub(crate) mod memory_trim;
pub(crate) mod process_end;
pub(crate) mod readable;
pub(crate) mod spin_wait;
pub(crate) mod walls;

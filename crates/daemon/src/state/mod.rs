//! What the daemon holds and writes down. Nothing here knows how anything is done to a guest.

pub(crate) mod daemon;
pub(crate) mod damage;
pub(crate) mod ending;
pub(crate) mod events;
pub(crate) mod guest;
pub(crate) mod image;
pub(crate) mod image_records;
pub(crate) mod lives;
pub(crate) mod processes;
pub(crate) mod pulled_images;
pub(crate) mod record;
pub(crate) mod restarts;
pub(crate) mod state_disk;
pub(crate) mod unsettled;

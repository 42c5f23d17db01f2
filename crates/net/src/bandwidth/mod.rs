//! Bandwidth: what of a device's rate a group of processes is guaranteed, how the rest is shared, and what it may not
//! exceed (section 2.2.5 of the EuroSys paper on Linux-VServer).
//!
//! ```text
//!   words ──▶ Grant ──▶ plan of classes ──▶ tc: hierarchical token buckets on each device (htb)
//!                └──▶ tag: the group's packets bear the class's number as priority; what comes in too fast is dropped
//! ```
//!
//! | reservation | share | the group gets |
//! |---|---|---|
//! | yes | no  | its reservation, and never more |
//! | no  | yes | its part of what is left over, by its share |
//! | yes | yes | its reservation, and its part of what is left over |

mod classes;
mod grant;
mod rate;
mod shaper;
mod tag;

pub use classes::{Class, Overbooked, plan};
pub use grant::{Grant, GrantError};
pub use rate::Rate;
pub(crate) use shaper::try_classes;
pub use shaper::{class_id, is_shaped, link_rate, settle, shown};
pub use tag::{Counted, Tags};

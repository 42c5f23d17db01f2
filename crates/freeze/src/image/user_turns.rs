//! Which processes of an image take turns at entering a user namespace.

use crate::image::Image;
use crate::image::namespace::UserSpace;
use crate::image::process::Process;

/// The user namespace of a process.
pub(crate) fn of<'a>(image: &'a Image, process: &Process) -> Option<&'a UserSpace> {
    image.user_spaces.get(process.user_space?)
}

/// The processes whose further threads are numbered by the maker.
pub(crate) fn turns(image: &Image) -> impl Iterator<Item = &Process> {
    image.processes.iter().filter(|process| process.user_space.is_some() && process.threads.len() > 1)
}

/// How many of them there are.
pub(crate) fn count_turns(image: &Image) -> usize {
    turns(image).count()
}

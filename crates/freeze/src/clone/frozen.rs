//! What is frozen: an image, and the holder that has its memory.

use crate::capture::generators::Generator;
use crate::clone::holder::Holder;
use crate::image::Image;
use crate::image::connection::Connection;
use crate::inspect::machine::MappedFile;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A frozen tree of processes.
#[derive(Debug)]
pub struct Frozen {
    /// The image: all but the contents of memory.
    pub image: Image,
    /// The process that has the memory's contents.
    pub holder: Holder,
    /// How long the processes stood still.
    pub pause: Duration,
    /// The TCP connections that they had: those among themselves, and, if they ended where they were frozen, with
    /// others.
    pub connections: Vec<Connection>,
    /// Those of them whose random numbers are the same in all clones, where it was just frozen.
    pub generators: Vec<Generator>,
    /// How many of their TCP connections with themselves nobody has accepted, though something was sent, where it was
    /// just frozen: clones find them reset.
    pub unheard: usize,
    /// The files that they map.
    pub(crate) files: Vec<MappedFile>,
    /// Whether a clone was compared with what was frozen, and found to be that; or none is to be.
    pub(crate) alike: AtomicBool,
}

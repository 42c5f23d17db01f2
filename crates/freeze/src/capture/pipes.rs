//! Captures pipes: what is in them is read and stays in them. A pipe whose other end is outside cannot be captured.

use crate::image::Pipe;
use pando_kernel::{CallError, Context};
use rustix::fs::OFlags;

/// A pipe's capacity and content, which stays in it: read through a description of our own, by tee(2).
pub(crate) fn capture(outer: i32, number: i32) -> Result<Pipe, CallError> {
    let path = format!("/proc/{outer}/fd/{number}");
    let what = || format!("reading the pipe {path}");
    let pipe = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, rustix::fs::Mode::empty())
        .context(what)?;
    let capacity = rustix::pipe::fcntl_getpipe_size(&pipe).context(what)? as u32;
    let waiting = rustix::io::ioctl_fionread(&pipe).context(what)? as usize;
    let mut content = vec![0; waiting];
    if waiting > 0 {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(what)?;
        rustix::pipe::fcntl_setpipe_size(&writer, capacity as usize).context(what)?;
        let copied = rustix::pipe::tee(&pipe, &writer, waiting, rustix::pipe::SpliceFlags::NONBLOCK).context(what)?;
        let mut filled = 0;
        while filled < copied {
            filled += rustix::io::read(&reader, &mut content[filled..copied]).context(what)?;
        }
        content.truncate(filled);
    }
    Ok(Pipe { capacity, content, path: None, mount_space: None })
}

//! Copying files in and out of a guest.
//!
//! The work is done by this very program, executed inside the guest as the guest's root, so that every path is resolved
//! there: no link of a guest leads a copy to the host's files. It reads or writes a tar stream. A guest that is at rest
//! runs for as long as that takes, and runs nothing else.

use crate::failure;
use crate::init::program::ProgramRequest;
use crate::launch::boot::{Task, boot};
use crate::launch::exec::{Started, enter};
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use pando_api::{Copying, Fault, GuestState};
use pando_guest::plan::Stdio;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A copy under way.
#[derive(Debug)]
pub(crate) enum Copy {
    /// In a guest that runs.
    Beside(Started),
    /// In one that runs for this alone.
    Alone(Rc<Running>),
}

/// Starts the copy. `stream` is where the tar stream comes from or goes to; a second descriptor, if there is one, takes
/// messages.
pub(crate) async fn copy(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    path: String,
    direction: Copying,
    stream: Vec<OwnedFd>,
) -> Result<Copy, Fault> {
    let mut streams = stream.into_iter();
    let (Some(stream), messages) = (streams.next(), streams.next()) else {
        return Err(failure::bad("copy", "the call must carry a file descriptor for the tar stream beside it"));
    };
    if !path.starts_with('/') {
        return Err(failure::bad(&path, format!("'{path}' is not an absolute path inside the guest")));
    }
    let prepared = || -> std::io::Result<(Vec<OwnedFd>, OwnedFd)> {
        let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        let messages = messages.map_or_else(null, Ok)?;
        let stdio = match direction {
            Copying::In => vec![stream, null()?, messages],
            Copying::Out => vec![null()?, stream, messages],
        };
        Ok((stdio, own_program()?))
    };
    let (stdio, program) =
        prepared().map_err(|error| failure::io("preparing the copy", guest.name.as_ref(), &error))?;
    let verb = match direction {
        Copying::In => "unpack",
        Copying::Out => "pack",
    };
    let request = ProgramRequest {
        command: ["pando", verb, &path].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        workdir: Some("/".to_owned()),
        user: Some("0:0".to_owned()),
        stdio: Stdio::Given,
        program: Some(Rc::new(program)),
        transaction: None,
    };
    if guest.state.get() != GuestState::Stopped {
        return enter(daemon, guest, request, stdio).await.map(Copy::Beside);
    }
    let _doing = guest.begin("copied")?;
    if direction == Copying::In {
        guest.goes_on(&daemon.places)?;
    }
    boot(daemon, guest, Task::Errand(request), stdio, None).await.map(Copy::Alone)
}

/// This program as a sealed copy: a guest that runs it can read it, and never write to the host's file.
fn own_program() -> std::io::Result<OwnedFd> {
    pando_kernel::memory::file::sealed("pando", &std::fs::read("/proc/self/exe")?, true)
}

//! Guests that freeze themselves: a named pipe in the guest's files, of its root alone, into which a process writes
//! that it wants that, and one of the process's own, through which it is told what came of it, in the guest and in
//! every clone.
//!
//! ```text
//!   /run/pando/freeze      the process writes   NUMBER WORD        and closes it: an image has no end of it
//!   /run/pando/answer.NUMBER         it reads   0 IMAGE            in the guest that goes on
//!                                               1 NAME             in a clone
//!                                               anything else      why the guest was not frozen
//! ```
//!
//! The guest can put there what it likes: paths are resolved inside its root, what is read is bounded, and what is no
//! pipe is left alone.

use crate::freeze::freeze_guest::{Order, freeze};
use crate::runtime::readable::readable;
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::store::images;
use pando_api::Fault;
use pando_guest::GuestName;
use pando_kernel::file::confined::{Links, Place, Root};
use pando_kernel::file::fs_owner::FsOwner;
use pando_kernel::process::held::HeldProcess;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

const DIRECTORIES: [&str; 2] = ["run", "run/pando"];
const REQUESTS: &str = "run/pando/freeze";
const COMMAND: &str = "bin/pando-freeze";
const SCRIPT: &[u8] = include_bytes!("pando-freeze.sh");

/// The longest request, and the longest answer: pipes pass both whole.
const LONGEST: usize = 512;

/// What a process of a guest asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Where it waits for the answer.
    number: u32,
    /// How it wants the image called, if it has a request.
    pub(crate) word: Option<String>,
}

impl Request {
    pub(crate) fn read(line: &str) -> Option<Self> {
        let (number, word) = line.split_once(' ')?;
        Some(Self { number: number.parse().ok()?, word: Some(word.trim().to_owned()).filter(|word| word != "-") })
    }
}

/// Serves a guest's requests for as long as it runs, if it may freeze itself.
pub(crate) fn serve_while_it_runs(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Rc<Running>) {
    if guest.spec.borrow().allow_freeze == 0 {
        return;
    }
    let (daemon, guest, running) = (Rc::clone(daemon), Rc::clone(guest), Rc::clone(running));
    tokio::task::spawn_local(async move {
        let mut over = running.over.subscribe();
        tokio::select! {
            served = serve(&daemon, &guest, &running) => if let Err(error) = served {
                tracing::warn!(%error, guest = %guest.name, "it cannot freeze itself");
            },
            _ = over.wait_for(Option::is_some) => {}
        }
    });
}

/// How long a guest is not heard after it has said nothing that was done: the daemon's time is charged to nobody.
const AFTER_NOTHING: Duration = Duration::from_millis(200);

async fn serve(daemon: &Rc<Daemon>, guest: &Rc<Guest>, running: &Running) -> io::Result<()> {
    let (first, owner) = (running.first.clone(), running.root());
    let requests =
        tokio::task::spawn_blocking(move || open_requests(&first.root()?, owner)).await.map_err(io::Error::other)??;
    let requests = readable(requests)?;
    loop {
        let mut ready = requests.readable().await?;
        let mut bytes = [0; LONGEST];
        let Ok(read) = ready.try_io(|requests| Ok(rustix::io::read(requests.get_ref(), &mut bytes)?)) else { continue };
        let text = String::from_utf8_lossy(&bytes[..read?]).into_owned();
        let mut was_frozen = false;
        // More than one may have come; what is cut off at the end is no request.
        for request in text.lines().filter_map(Request::read) {
            let said = match ask(daemon, guest, &request).await {
                Ok(image) => format!("0 {image}"),
                Err(fault) => fault.message,
            };
            was_frozen |= said.starts_with("0 ");
            answer(&running.first, request.number, &said).await;
        }
        if !was_frozen {
            tokio::time::sleep(AFTER_NOTHING).await;
        }
    }
}

/// Freezes it; the image's name.
async fn ask(daemon: &Rc<Daemon>, guest: &Rc<Guest>, request: &Request) -> Result<String, Fault> {
    let name = guest.name.as_ref();
    let most = guest.spec.borrow().allow_freeze;
    let own = daemon
        .images
        .borrow()
        .values()
        .filter(|held| held.record.guest == name && held.record.answer.is_some())
        .count();
    if own >= most as usize {
        let message = format!("guest '{name}' has frozen itself into {own} images already, of {most} allowed");
        return Err(crate::failure::bad(name, message));
    }
    // All begin with its own, and another guest's is refused: it takes no name that somebody else has.
    let taken = |image: &String| daemon.images.borrow().contains_key(image);
    let image = match &request.word {
        Some(word) => format!("{name}-{word}"),
        None => (1..).map(|number| format!("{name}-{number}")).find(|image| !taken(image)).unwrap_or_default(),
    };
    let called = image.parse::<GuestName>().map_err(|error| crate::failure::bad_name(&image, &error))?;
    if daemon.guests.borrow().contains_key(&called) {
        let message = format!("an image '{image}' would have the name of another guest; use another word");
        return Err(crate::failure::bad(name, message));
    }
    let order =
        Order { image: Some(image), stop: false, memory: false, unchecked: false, answer: Some(request.number) };
    let held = freeze(daemon, guest, order).await?;
    // Behind it; whether that succeeds is told as an event.
    drop(images::keep(daemon, &held));
    Ok(held.name.clone())
}

/// Tells a process that waits for it. One that does not wait any more is not told.
pub(crate) async fn answer(first: &HeldProcess, number: u32, said: &str) {
    let first = first.clone();
    let mut line: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST / 4 - 1).collect();
    line.push('\n');
    let write = move || -> io::Result<()> {
        let path = format!("run/pando/answer.{number}");
        let pipe = open(&first.root()?, &path, OFlags::WRONLY)?;
        File::from(pipe).write_all(line.as_bytes())
    };
    let _ = tokio::task::spawn_blocking(write).await;
}

/// Opens a named pipe inside a guest. What else lies there is not opened: that alone can have effects.
fn open(root: &Root, path: &str, how: OFlags) -> io::Result<OwnedFd> {
    let found = root.place(path, Links::OnTheWay)?;
    if FileType::from_raw_mode(found.about()?.st_mode) != FileType::Fifo {
        return Err(io::Error::other(format!("/{path} is no named pipe")));
    }
    Ok(found.open(how)?)
}

/// Makes the pipe for requests and the command that writes to it, where there are none, and opens the pipe. `owner` is
/// the guest's root on the host.
fn open_requests(root: &Root, owner: u32) -> io::Result<OwnedFd> {
    let _as_owner = (owner != 0).then(|| FsOwner::assume(owner)).transpose()?;
    for directory in DIRECTORIES {
        made(make(root, directory, |at, name| rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755))))?;
    }
    let command = make(root, COMMAND, |at, name| {
        // What is open for writing cannot be executed: it gets its name when it is closed.
        let new = format!("{name}.new");
        let _ = rustix::fs::unlinkat(at, &new, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(at, &new, flags, Mode::from_raw_mode(0o755))?;
        File::from(file).write_all(SCRIPT).map_err(|_| Errno::IO)?;
        rustix::fs::renameat_with(at, &new, at, name, RenameFlags::NOREPLACE)
            .inspect_err(|_| rustix::fs::unlinkat(at, &new, AtFlags::empty()).unwrap_or_default())
    });
    // The guest's own file of that name stays, and one without such a directory does without.
    if !matches!(command, Err(Errno::NOENT)) {
        made(command)?;
    }
    // Last: whoever sees it has the command.
    made(make(root, REQUESTS, |at, name| {
        rustix::fs::mknodat(at, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
    }))?;
    // For writing, too: it does not end when nobody has it open.
    open(root, REQUESTS, OFlags::RDWR)
}

/// Makes something in a directory of the guest's.
fn make(root: &Root, path: &str, with: impl FnOnce(&Place, &str) -> Result<(), Errno>) -> Result<(), Errno> {
    let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
    with(&root.place(above, Links::Followed)?, name)
}

fn made(outcome: Result<(), Errno>) -> io::Result<()> {
    match outcome {
        Err(Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_number_and_a_word() {
        let request = |word: Option<&str>| Some(Request { number: 7, word: word.map(str::to_owned) });
        assert_eq!(Request::read("7 warm"), request(Some("warm")));
        assert_eq!(Request::read("7 -"), request(None));
        for wrong in ["", "7", "x warm", "-7 warm", "99999999999 warm"] {
            assert_eq!(Request::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_pipe_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::from(OwnedFd::from(File::open(directory.path()).unwrap()));
        std::fs::write(directory.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).unwrap();
        for name in ["file", "link", "none"] {
            assert!(open(&root, name, OFlags::RDWR).is_err(), "{name}");
        }
        made(make(&root, "pipe", |at, name| {
            rustix::fs::mknodat(at, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
        }))
        .unwrap();
        open(&root, "pipe", OFlags::RDWR).unwrap();
    }
}

//! A holder: the process that owns an image's memory.

use crate::clone::error::{CloneError, SECONDS};
use crate::clone::planted;
use crate::image::Image;
use crate::inspect::{areas, process_tree};
use crate::origin::Origin;
use crate::restore::facts::Facts;
use crate::restore::first_process;
use crate::restore::script::Script;
use crate::trampoline;
use pando_kernel::release::release;
use pando_kernel::{CallError, Context, memory, process::pidfd, seccomp::unfiltered, socket::packet};
use pando_restorer::{Answer, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, TryLockError};

/// The restorer, as built for this machine.
const PROGRAM: &[u8] = include_bytes!(env!("PANDO_RESTORER"));

/// The program of a holder, and of a first process that waits to become one of an image.
pub fn program() -> Result<OwnedFd, CallError> {
    memory::file::sealed("pando-holder", PROGRAM, true).context(|| "putting the restorer into memory".into())
}

/// A process that holds an image, or will. Dropped, it ends; clones live on.
#[derive(Debug)]
pub struct Holder {
    process: Child,
    /// One request at a time.
    socket: Mutex<OwnedFd>,
    script: Option<Script>,
}

impl Holder {
    /// Starts one that holds nothing yet.
    pub(crate) fn start() -> Result<Self, CallError> {
        let what = || "starting a holder".to_owned();
        let program = program()?;
        let (socket, theirs) = packet::pair().context(what)?;
        // No file of the host's: whoever makes clones has these too, and it opens what an image names.
        let (out, err) = (theirs.try_clone().context(what)?, theirs.try_clone().context(what)?);
        let start = move || {
            Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
                .env_clear()
                .current_dir("/")
                .stdin(Stdio::from(theirs))
                .stdout(Stdio::from(out))
                .stderr(Stdio::from(err))
                .spawn()
        };
        // What guests are made of has none of the daemon's own filter.
        let process = unfiltered::run(start).and_then(|started| started).context(what)?;
        Ok(Self { process, socket: Mutex::new(socket), script: None })
    }

    /// The pid of the holder's process.
    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// Whether it is there still. One that was killed holds nothing any more.
    pub fn is_alive(&self) -> bool {
        let socket = match self.socket.try_lock() {
            Ok(socket) => socket,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody waits for its answer, and hears of its end. Nobody else has to wait for that.
            Err(TryLockError::WouldBlock) => return true,
        };
        let mut polled = [PollFd::new(&*socket, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Between two requests it says nothing; its end is closed when it ends.
        matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(0))
    }

    /// What a script must know of it.
    pub(crate) fn facts(&self, origin: Origin) -> Result<Facts, CallError> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        await_program(&*socket).context(|| "waiting for a holder's program".into())?;
        drop(socket);
        let kernel = areas::kernels(self.pid())?;
        let release = release();
        Ok(Facts { origin, taken: 0, kernel, moves_many: release >= (6, 17), ids_chosen: release >= (6, 15) })
    }

    /// Fills it: it takes the staging steps of a script. Files that are mapped privately are opened below `root`. For
    /// an image that comes from elsewhere (`foreign`) it does without most of its capabilities meanwhile.
    pub(crate) fn hold(&mut self, script: Script, root: BorrowedFd<'_>, foreign: bool) -> Result<(), CallError> {
        let what = || "filling a holder".to_owned();
        let file = memory::file::sealed(trampoline::NAME, &script.bytes, false).context(what)?;
        let length = u32::try_from(script.bytes.len())
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
            .context(what)?;
        let answer = self.ask(Request::Hold { length, foreign }, &[file.as_fd(), root]).context(what)?;
        if answer.errno != 0 {
            let error = io::Error::from_raw_os_error(answer.errno);
            return Err(error).context(|| format!("filling a holder: {}", script.label(answer.step)));
        }
        self.script = Some(script);
        Ok(())
    }

    /// The script of a clone's first process, if that is one of the image, for the process that waits at a socket to
    /// become it.
    pub(crate) fn script_of_first(
        &self,
        image: &Image,
        (pid, handoff): (i32, BorrowedFd<'_>),
    ) -> Result<Option<Script>, CloneError> {
        await_program(handoff).context(|| "waiting for the clone's first process".into())?;
        let (before, release) = (self.script()?.length(), release());
        let mut facts = first_process::Facts::of(pid)?;
        (facts.before, facts.moves_many, facts.ids_chosen) = (before, release >= (6, 17), release >= (6, 15));
        first_process::script(&planted::of(image), &facts).map_err(CloneError::Unmade)
    }

    /// Its memory, to be read from.
    pub(crate) fn memory(&self) -> Result<OwnedFd, CallError> {
        let path = format!("/proc/{}/mem", self.pid());
        File::open(&path).map(OwnedFd::from).context(|| format!("opening {path}"))
    }

    /// Offers a range of its memory to be merged with equal pages, or takes that back.
    pub(crate) fn offer(&self, start: u64, length: u64, taken_back: bool) -> io::Result<()> {
        match self.ask(Request::Offer { start, length, taken_back }, &[])?.errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The script of the image that it holds.
    pub(crate) fn script(&self) -> Result<&Script, CloneError> {
        self.script.as_ref().ok_or(CloneError::Empty)
    }

    /// Asks for something and waits for the answer.
    pub(crate) fn ask(&self, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(&*socket, request, fds)?;
        if matches!(request, Request::Clone { .. }) && !answers_within(&*socket, MAKING)? {
            return Err(self.give_up(&socket));
        }
        answer(&*socket)
    }

    /// Ends those that make a clone, and reads what the holder says of that: it serves the next. One that says nothing
    /// even then is ended itself.
    fn give_up(&self, socket: &OwnedFd) -> io::Error {
        for pid in process_tree::children(self.pid()) {
            // It may have ended, and another have its number, before there is a descriptor of it; not after.
            let Ok(process) = pidfd::open(pid) else { continue };
            if process_tree::children(self.pid()).contains(&pid) {
                let _ = pidfd::send_signal(&process, libc::SIGKILL);
            }
        }
        if matches!(answers_within(socket, BEGINNING), Ok(true)) {
            let _ = answer(socket);
        } else if let Ok(process) = pidfd::open(self.pid()) {
            let _ = pidfd::send_signal(&process, libc::SIGKILL);
        }
        let minutes = MAKING.tv_sec / 60;
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("whoever makes it has waited for {minutes} minutes, and was ended"),
        )
    }
}

/// How long a restorer's program may take to begin.
const BEGINNING: Timespec = Timespec { tv_sec: SECONDS as i64, tv_nsec: 0 };

/// How long the making of a clone may take. None of its steps waits for what may never be, unless the image is one that
/// nobody captured.
const MAKING: Timespec = Timespec { tv_sec: 600, tv_nsec: 0 };

/// Whether an answer comes within a time.
fn answers_within(socket: impl AsFd, limit: Timespec) -> io::Result<bool> {
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&limit)))? > 0)
}

/// Waits until a restorer runs. Before that its memory is not what it is going to be: whoever starts a program, as
/// vfork(2) does, goes on before the kernel has mapped the vDSO into it.
fn await_program(socket: impl AsFd) -> io::Result<()> {
    send(&socket, Request::Answer, &[])?;
    if !answers_within(&socket, BEGINNING)? {
        return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not begin within {SECONDS} seconds")));
    }
    answer(&socket).map(drop)
}

/// Asks a restorer for something.
pub(crate) fn send(socket: impl AsFd, request: Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes: Vec<u8> = request.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    packet::send(socket, &bytes, fds)
}

/// Waits for an answer on the holder's socket.
pub(crate) fn answer(socket: impl AsFd) -> io::Result<Answer> {
    let mut bytes = [0; 8];
    let (length, _) = packet::receive(socket, &mut bytes)?;
    if length != bytes.len() {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the restorer has ended"));
    }
    let [a, b, c, d, e, f, g, h] = bytes;
    Ok(Answer { errno: i32::from_le_bytes([a, b, c, d]), step: u32::from_le_bytes([e, f, g, h]) })
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It would end by itself when the socket closes; it is not left to be anybody's zombie.
        if let Ok(process) = pidfd::open(self.pid()) {
            let _ = pidfd::send_signal(&process, libc::SIGKILL);
        }
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A holder that executes its program later than whoever starts it goes on, as on a slow machine.
    fn late(program: &OwnedFd) -> Holder {
        let (socket, theirs) = packet::pair().unwrap();
        let execute = format!("sleep 0.3; exec /proc/{}/fd/{}", std::process::id(), program.as_raw_fd());
        let process = Command::new("/bin/sh").args(["-c", &execute]).stdin(Stdio::from(theirs)).spawn().unwrap();
        Holder { process, socket: Mutex::new(socket), script: None }
    }

    #[test]
    fn the_kernels_mappings_are_those_of_a_program_that_runs() {
        let program = program().unwrap();
        let holder = late(&program);
        let facts = holder.facts(Origin::default()).unwrap();
        assert_eq!(facts.kernel, areas::kernels(holder.pid()).unwrap());
        assert!(facts.kernel.iter().any(|(name, ..)| name == "[vdso]"), "{facts:?}");
    }

    #[test]
    fn one_that_ended_before_it_began_is_not_waited_for() {
        let (socket, theirs) = packet::pair().unwrap();
        let process = Command::new("/bin/false").stdin(Stdio::from(theirs)).spawn().unwrap();
        let holder = Holder { process, socket: Mutex::new(socket), script: None };
        assert!(holder.facts(Origin::default()).unwrap_err().to_string().contains("waiting for a holder's program"));
    }
}

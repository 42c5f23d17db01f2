//! A file at which the kernel has others wait: one of its attributes is answered late.
//!
//! It is the only file of a FUSE file system that is mounted nowhere. A process of ours executes it, so that a BPF
//! program can find it (bpf_get_task_exe_file), in whose name tasks read the attribute (bpf_get_file_xattr). Each
//! waits until it is let go, gets a signal, or is killed. What has them wait is the kernel: when the server's
//! descriptor is closed, as it is when a process dies, all of them go on (fuse_abort_conn() in fs/fuse/dev.c).
//!
//! The thread that serves opens nothing, takes no lock, and touches no file: whoever waits may hold up what it needs.

mod program;
mod protocol;

use protocol::{Asked, Server};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest request that the kernel sends: what it writes to a file, which here is nothing.
const LONGEST_REQUEST: usize = 64 * 1024;

/// How long each may wait, and what is done once somebody has waited for so long. Then everybody is let go.
pub struct Bound {
    /// The longest time that anybody waits.
    pub longest: Duration,
    /// What is done, before anybody is let go, by the thread that serves: it must take no lock and touch no file.
    pub overdue: Box<dyn FnOnce() + Send>,
}

/// The file, its file system and the process that executes it. Dropped, it lets everybody go.
#[derive(Debug)]
pub struct Latch {
    until: Arc<OnceLock<Instant>>,
    /// Closed to end the thread.
    word: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    holder: Option<Child>,
}

impl Drop for Latch {
    fn drop(&mut self) {
        self.release();
        if let Some(holder) = &mut self.holder {
            // It only sleeps.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

impl Latch {
    /// Makes it. Whoever waits at it does so until it is [released](Self::release), or until the time of
    /// [`hold_until`](Self::hold_until). Should this process be stopped, the kernel lets them go some 15 s after
    /// `longest` (FUSE_REQUEST_TIMEOUT, since Linux 6.14).
    ///
    /// # Errors
    ///
    /// ENOENT and ENODEV without FUSE; EPERM without CAP_SYS_ADMIN; EACCES where the file may not be executed.
    pub fn new(longest: Duration) -> io::Result<Self> {
        Self::with(longest, None)
    }

    /// The same where nobody waits for longer than `bound` says. Whoever is called away by a signal begins to wait
    /// anew.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn bounded(bound: Bound) -> io::Result<Self> {
        Self::with(bound.longest, Some(bound))
    }

    fn with(longest: Duration, bound: Option<Bound>) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        let mount = mount(&device)?;
        let (heard, word) = pipe_with(PipeFlags::CLOEXEC)?;
        let until = Arc::new(OnceLock::new());
        let (told, server) = (Arc::clone(&until), Server::new(program::executable(), longest));
        let thread = std::thread::Builder::new().name("latch".into());
        let thread = thread.spawn(move || serve(&device, &heard, &told, server, bound))?;
        let mut latch = Self { until, word: Some(word), thread: Some(thread), holder: None };
        let file = rustix::fs::openat(&mount, protocol::FILE, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        latch.holder = Some(execute(&file)?);
        Ok(latch)
    }

    /// The pid, as this process sees it, of the process whose executable is the file.
    pub fn holder(&self) -> u32 {
        self.holder.as_ref().map_or(0, Child::id)
    }

    /// Has nobody wait for longer than until then. The first word counts.
    pub fn hold_until(&self, until: Instant) {
        let _ = self.until.set(until);
    }

    /// Lets everybody go who waits, and whoever comes later.
    pub fn release(&mut self) {
        self.word = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The file system, served by whoever reads from this device, and visible to nobody.
fn mount(device: &OwnedFd) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let number = device.as_raw_fd().to_string();
    let options = [("source", "pando"), ("fd", &number), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")];
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    // Whoever waits is somebody else.
    rustix::mount::fsconfig_set_flag(context.as_fd(), "allow_other")?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A process that executes the file, and ends with this thread at the latest.
fn execute(file: &OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    command.arg0("pando-gate").env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes system calls alone, which take no lock and no memory.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // It may have ended before.
            if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        });
    }
    command.spawn()
}

/// Serves the file system until the other end of `heard` is closed. With the device it ends the file system.
fn serve(device: &OwnedFd, heard: &OwnedFd, until: &OnceLock<Instant>, mut server: Server, mut bound: Option<Bound>) {
    let mut buffer = vec![0; LONGEST_REQUEST];
    // Each with the time at which it came, in that order.
    let mut waiting: Vec<(u64, Instant)> = Vec::new();
    let mut is_over = false;
    let answer = |bytes: Vec<u8>| {
        // It fails only for a request whose task was killed meanwhile.
        let _ = rustix::io::write(device, &bytes);
    };
    loop {
        let first_out = waiting.first().zip(bound.as_ref()).map(|((_, since), bound)| *since + bound.longest);
        let left = until.get().copied().into_iter().chain(first_out).min();
        let left = left.map(|until| until.saturating_duration_since(Instant::now()));
        is_over |= left == Some(Duration::ZERO);
        if is_over {
            if let Some(Bound { overdue, .. }) = bound.take() {
                overdue();
            }
            waiting.drain(..).map(|(request, _)| protocol::no_attribute(request)).for_each(answer);
        }
        match wait(device, heard, left.filter(|_| !waiting.is_empty())) {
            Ok(true) => {}
            // Told to end, or there is nothing to serve any more.
            Ok(false) | Err(_) => break,
        }
        loop {
            let length = match rustix::io::read(device, &mut buffer) {
                Ok(length) => length,
                // A request that was taken back, or none.
                Err(Errno::NOENT | Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(_) => return,
            };
            match server.asked(&buffer[..length]) {
                Asked::Answered(bytes) => answer(bytes),
                Asked::Waits(request) if is_over => answer(protocol::no_attribute(request)),
                Asked::Waits(request) => waiting.push((request, Instant::now())),
                Asked::Interrupted(request) => {
                    if let Some(at) = waiting.iter().position(|(one, _)| *one == request) {
                        answer(protocol::interrupted(waiting.remove(at).0));
                    }
                }
                Asked::Nothing => {}
            }
        }
    }
    waiting.drain(..).map(|(request, _)| protocol::no_attribute(request)).for_each(answer);
}

/// Waits for a request, for so long at most; says whether to go on.
fn wait(device: &OwnedFd, heard: &OwnedFd, longest: Option<Duration>) -> io::Result<bool> {
    let longest = longest.map(|longest| Timespec {
        tv_sec: longest.as_secs().cast_signed(),
        tv_nsec: i64::from(longest.subsec_nanos()),
    });
    let mut both = [PollFd::new(device, PollFlags::IN), PollFd::new(heard, PollFlags::IN)];
    match poll(&mut both, longest.as_ref()) {
        Err(Errno::INTR) => return Ok(true),
        polled => polled?,
    };
    Ok(both[1].revents().is_empty() && !both[0].revents().contains(PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the attribute as a task that the kernel has wait, by the executable of the holder.
    fn reads(latch: &Latch) -> Command {
        let mut command = Command::new("python3");
        command.args(["-c", "import os, sys; os.getxattr(sys.argv[1], 'user.pando')"]);
        command.arg(format!("/proc/{}/exe", latch.holder()));
        command.stderr(Stdio::null());
        command
    }

    fn waits(child: &mut Child) -> bool {
        loop {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            let at = std::fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
            if at.contains("fuse") || at.contains("request_wait_answer") {
                return true;
            }
            std::thread::yield_now();
        }
    }

    /// None where this process may have none.
    fn latch() -> Option<Latch> {
        Latch::new(Duration::from_secs(60)).ok()
    }

    #[test]
    fn who_reads_the_attribute_waits_until_it_is_released() {
        let Some(mut latch) = latch() else { return };
        let mut one = reads(&latch).spawn().unwrap();
        assert!(waits(&mut one));
        let mut other = reads(&latch).spawn().unwrap();
        assert!(waits(&mut other));
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(one.try_wait().unwrap().is_none());
        latch.release();
        one.wait().unwrap();
    }

    #[test]
    fn nobody_waits_for_longer_than_until_then() {
        let Some(latch) = latch() else { return };
        latch.hold_until(Instant::now() + Duration::from_millis(300));
        reads(&latch).spawn().unwrap().wait().unwrap();
        reads(&latch).spawn().unwrap().wait().unwrap();
    }

    #[test]
    fn who_has_waited_for_too_long_is_let_go_with_all_others() {
        let (tell, told) = std::sync::mpsc::channel();
        let overdue = Box::new(move || tell.send(()).unwrap());
        let Ok(latch) = Latch::bounded(Bound { longest: Duration::from_millis(300), overdue }) else { return };
        reads(&latch).spawn().unwrap().wait().unwrap();
        told.try_recv().unwrap();
        reads(&latch).spawn().unwrap().wait().unwrap();
        assert!(told.try_recv().is_err(), "once");
    }

    #[test]
    fn the_holder_ends_with_it() {
        let Some(latch) = latch() else { return };
        let holder = crate::process::pidfd::open(latch.holder().cast_signed()).unwrap();
        assert!(!crate::process::pidfd::has_ended(&holder));
        drop(latch);
        assert!(crate::process::pidfd::has_ended(&holder));
    }
}

//! A program and all that it starts, which end together.
//!
//! A process group and a session are left by whoever wants to (setpgid(2), setsid(2)). A pid namespace is not: when its
//! first process ends, the kernel ends all others in it, and lets nobody wait for the first before they have gone
//! (zap_pid_ns_processes() in kernel/pid_namespace.c). Their descriptors are closed by then.

use super::pidfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// A program that runs as the first process of a pid namespace. It is ended with all that it has started when this is
/// dropped.
///
/// Where the caller is not root, who alone can make such a namespace, it is a process like any other.
#[derive(Debug)]
pub struct Contained {
    child: Child,
    process: OwnedFd,
    /// Holds the thread that it was started by: the kernel tells a process of its parent's death when that thread ends
    /// (PR_SET_PDEATHSIG in prctl(2)).
    _keeper: Sender<()>,
}

impl Contained {
    /// Starts it (unshare(2) with CLONE_NEWPID for one thread, since Linux 3.12).
    ///
    /// # Errors
    ///
    /// What [`Command::spawn`] says; ENOSPC where no more namespaces may be made (`user.max_pid_namespaces`).
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (keeper, kept) = channel::<()>();
        let (sender, started) = channel();
        Builder::new().name("contained".into()).spawn(move || {
            let _ = sender.send(own_namespace().and_then(|()| command.spawn()));
            // Nobody sends anything: it ends with the other side.
            let _ = kept.recv();
        })?;
        let mut child = started.recv().map_err(|_| io::Error::other("the thread that starts it has ended"))??;
        match pidfd::open(child.id().cast_signed()) {
            Ok(process) => Ok(Self { child, process, _keeper: keeper }),
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                Err(error)
            }
        }
    }

    /// Its pid, as this process sees it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The pipe from its standard output, once, if there is one.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The pipe from its standard error, once, if there is one.
    pub fn take_errors(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// How it has ended, once all has that it started; `None` while it runs. Does not wait.
    ///
    /// # Errors
    ///
    /// Those of waitpid(2).
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until it has ended, or one of these pipes has something to read or is closed, and tells of each pipe
    /// whether it has. At most so long.
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    pub fn wait_for<const COUNT: usize>(
        &self,
        pipes: [Option<BorrowedFd<'_>>; COUNT],
        most: Duration,
    ) -> io::Result<[bool; COUNT]> {
        let most = Timespec { tv_sec: most.as_secs().cast_signed(), tv_nsec: i64::from(most.subsec_nanos()) };
        let watched = pipes.iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::IN));
        let mut watched: Vec<_> = watched.chain([PollFd::new(&self.process, PollFlags::IN)]).collect();
        retry_on_intr(|| poll(&mut watched, Some(&most)))?;
        let mut found = watched.iter().map(|pipe| !pipe.revents().is_empty());
        Ok(pipes.map(|pipe| pipe.is_some() && found.next().unwrap_or(false)))
    }

    /// Ends it and all that it has started, and waits for that.
    ///
    /// # Errors
    ///
    /// Those of kill(2) and waitpid(2).
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        // It fails where it has been waited for already.
        let _ = self.child.kill();
        self.child.wait()
    }
}

impl AsFd for Contained {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Has the next child of this thread be the first process of a pid namespace. The thread can have no others then.
fn own_namespace() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // SAFETY: no memory is passed; it changes in which namespace children of this thread alone are numbered.
    if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    fn shell(script: &str) -> Contained {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        Contained::start(command).unwrap()
    }

    fn word(of: &mut Contained) -> String {
        let mut said = String::new();
        of.take_output().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn what_it_leaves_running_ends_with_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // In a session of its own, with nothing open but the pipe that tells of its end.
        let mut run = shell("setsid sh -c 'sleep 1000' & exit 3");
        assert_eq!(word(&mut run), "", "the pipe is closed when the last that has it ends");
        let _ = run.wait_for([], Duration::from_secs(60)).unwrap();
        assert_eq!(run.ended().unwrap().and_then(|status| status.code()), Some(3));
    }

    #[test]
    fn it_is_ended_with_what_it_has_started() {
        let mut run = shell("setsid sleep 1000 & sleep 1000");
        let mut pipe = run.take_output().unwrap();
        assert_eq!(run.wait_for([Some(pipe.as_fd())], Duration::from_millis(1)).unwrap(), [false]);
        drop(run);
        if rustix::process::geteuid().is_root() {
            assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let error = Contained::start(Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

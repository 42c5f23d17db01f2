//! The input of a guest in the background that is to have one (`stdin_open`): a pipe that nobody outside keeps.
//!
//! The command has both ends of it in one descriptor. So it never reads an end, whoever attaches and goes, and nothing
//! has to be kept for it: not by a daemon, which may die, and not by a shim. Whoever attaches gets an end to write to,
//! which is found at the command itself.

use crate::failure;
use crate::state::guest::Guest;
use crate::state::processes;
use pando_api::{Fault, FaultKind};
use pando_kernel::cgroup::Field;
use pando_kernel::file::proc_file;
use pando_kernel::process::{self, held::HeldProcess};
use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, fstatfs, open};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;

/// The file system of pipes without a name (linux/magic.h).
const PIPEFS_MAGIC: i64 = 0x5049_5045;

/// Programs open their input by name (/dev/stdin), users other than root too.
const MODE: u32 = 0o644;

/// An input for a command. `root` is the id on the host that is root in the guest.
pub(crate) fn make(root: u32) -> io::Result<OwnedFd> {
    let (reads, _writes) = pipe_with(PipeFlags::CLOEXEC)?;
    fchown(&reads, Some(Uid::from_raw(root)), Some(Gid::from_raw(root)))?;
    fchmod(&reads, Mode::from_raw_mode(MODE))?;
    again(&reads, OFlags::RDWR)
}

fn again(place: impl AsFd, how: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    Ok(open(path, how | OFlags::CLOEXEC, Mode::empty())?)
}

/// An end to write to of the input that a guest's command has. Who writes does not wait: the command reads when it
/// likes.
pub(crate) fn end(field: &Field, guest: &Rc<Guest>) -> Result<OwnedFd, Fault> {
    let life = guest.life()?;
    if !guest.spec.borrow().stdin_open {
        let message =
            format!("guest '{}' has no input: it was made without --interactive (-i), which gives it one", guest.name);
        return Err(failure::bad(guest.name.as_ref(), message));
    }
    // The command is the first process's child, or what that has become; the others may have been given it.
    let all = processes::held(field, life.slot, &processes::pids(field, life.slot));
    let first = life.first.pid();
    let is_command = |one: &&HeldProcess| one.pid() == first || parent(one) == Some(first);
    let found = all.iter().filter(is_command).chain(&all).find_map(|process| of(process).ok().flatten());
    found.ok_or_else(|| {
        let message = format!("the command of guest '{}' reads its input no longer", guest.name);
        Fault::new(FaultKind::BadRequest, guest.name.as_ref(), message)
    })
}

fn parent(process: &HeldProcess) -> Option<i32> {
    process
        .opened(|pid| process::describe(pid).map_err(|error| io::Error::other(error.to_string())))
        .ok()
        .map(|one| one.parent)
}

/// What a process has as its input, if that is such a pipe: one without a name, that it can write to itself. So
/// nothing is written to anybody's but the guest's, whatever it has put there.
fn of(process: &HeldProcess) -> io::Result<Option<OwnedFd>> {
    process.opened(|pid| {
        let place = open(format!("/proc/{pid}/fd/0"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let info = proc_file::text(format!("/proc/{pid}/fdinfo/0"))?;
        let flags = info.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
        let both = flags.is_some_and(|flags| OFlags::from_bits_retain(flags) & OFlags::ACCMODE == OFlags::RDWR);
        let is_pipe = FileType::from_raw_mode(fstat(&place)?.st_mode) == FileType::Fifo;
        if !both || !is_pipe || fstatfs(&place)?.f_type != PIPEFS_MAGIC {
            return Ok(None);
        }
        again(&place, OFlags::WRONLY | OFlags::NONBLOCK).map(Some)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_kernel::process::pidfd;

    #[test]
    fn what_is_written_is_read_and_there_is_no_end() {
        let own = rustix::process::geteuid().as_raw();
        let input = make(own).unwrap();
        let mut child = std::process::Command::new("head")
            .args(["-c", "4"])
            .stdin(input)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = HeldProcess::new(pid, pidfd::open(pid).unwrap());
        let end = of(&process).unwrap().expect("it has one");
        rustix::io::write(&end, b"wo").unwrap();
        drop(end);
        let end = of(&process).unwrap().expect("it has it still");
        rustix::io::write(&end, b"rd").unwrap();
        let mut said = String::new();
        io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut said).unwrap();
        assert_eq!(said, "word");
        child.wait().unwrap();
        let (reads, _writes) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut other = std::process::Command::new("cat").stdin(reads).spawn().unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        let held = HeldProcess::new(pid, pidfd::open(pid).unwrap());
        assert!(of(&held).unwrap().is_none(), "somebody else writes to that one");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

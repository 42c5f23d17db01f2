//! Files that a transaction has changed and that nobody can write to: programs that are being run, and files on which
//! others have a lease (fcntl(2), F_SETLEASE) that they do not give up. The commit puts a new file in their place.
//!
//! Whoever opens a file with a lease waits until the kernel has taken that away, as a rule for 45 seconds
//! (fs.lease-break-time). All leases are broken at once, and waited for together, a second at most.
//!
//! They are found by trying. That is done last, when all is validated: in a target whoever opens a file to write to it
//! has it copied up, and with it the directories on the way, and would be in conflict with himself.

use super::node::{Directory, File, Indexed, Node, What};
use super::walk::WalkError;
use crate::tree::confined::{CallPath, Tree};
use crate::tree::identity::is_gone;
use crate::tree::path::TreePath;
use crate::tree::protection::Protection;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Has such files replaced, of all that were changed. Those that can be written to are put into `open`, where that is
/// asked for: as long as they are open for it, nobody can execute them, or take a lease on them.
///
/// # Errors
///
/// Where one has several names, which a new file would not have; where one cannot be written to for a reason that is
/// none of those.
pub(crate) fn replace_executed(
    live: &Tree,
    root: &mut Node,
    indexed: &mut [Indexed],
    mut open: Option<&mut Vec<OwnedFd>>,
) -> Result<(), WalkError> {
    let begun = Instant::now();
    loop {
        let is_last = begun.elapsed() > PATIENCE;
        let mut search = Search { live, leases: 0, is_last, open: open.is_some().then(Vec::new) };
        search.node(root)?;
        indexed.iter_mut().try_for_each(|one| search.file(&one.path, &mut one.file))?;
        if search.leases == 0 || search.is_last {
            if let (Some(open), Some(found)) = (&mut open, search.open) {
                open.extend(found);
            }
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// How long those who hold leases have to give them up.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether they have.
const PAUSE: Duration = Duration::from_millis(5);

/// One look at all files.
struct Search<'a> {
    live: &'a Tree,
    /// How many have a lease, which is being broken.
    leases: usize,
    /// Whether those are replaced, too.
    is_last: bool,
    /// Those that can be written to, where they are to stay open.
    open: Option<Vec<OwnedFd>>,
}

impl Search<'_> {
    fn node(&mut self, node: &mut Node) -> Result<(), WalkError> {
        match &mut node.what {
            What::Gone => Ok(()),
            What::File(file) => self.file(&node.path, file),
            What::Directory(Directory { children, .. }) => children.iter_mut().try_for_each(|child| self.node(child)),
        }
    }

    fn file(&mut self, path: &TreePath, file: &mut File) -> Result<(), WalkError> {
        let live = self.live;
        let Some(origin) = file.origin.as_ref().filter(|_| file.content_differs) else { return Ok(()) };
        let found = origin.identity.open(live).and_then(|object| {
            let names = rustix::fs::fstat(&object)?.st_nlink;
            Ok((names, Written::of(&CallPath::of(object)?)?))
        });
        match found {
            Ok((_, Written::InPlace(file))) => {
                if let Some(open) = &mut self.open {
                    open.push(file);
                }
                Ok(())
            }
            Ok((_, Written::Leased)) if !self.is_last => {
                self.leases += 1;
                Ok(())
            }
            // A new file in the place of one that nobody may write to is lost to nobody.
            Ok((1, _)) => {
                file.origin = None;
                Ok(())
            }
            Ok((_, Written::Untold)) => Ok(()),
            Ok((_, Written::Leased)) => Err(WalkError::Leased(live.shown(path))),
            Ok((_, Written::NotWhileRun)) => Err(WalkError::Executed(live.shown(path))),
            Err(error) if is_gone(&error) => Err(WalkError::Lost(live.shown(path))),
            Err(source) => Err(WalkError::Read { path: live.shown(path), source }),
        }
    }
}

/// Whether a file can be written to.
enum Written {
    /// It is open for that.
    InPlace(OwnedFd),
    /// It is a program that is being run (ETXTBSY).
    NotWhileRun,
    /// Others have a lease on it (EAGAIN), which is being broken.
    Leased,
    /// It is immutable, so that this cannot be told.
    Untold,
}

impl Written {
    /// Tries. What else is in the way of writing to a file is an error, and better now than after the commit point. One
    /// that may only grow is opened as such: others may have it open.
    fn of(file: &CallPath) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(file.text.as_c_str(), flags, Mode::empty()) {
            Ok(file) => Ok(Self::InPlace(file)),
            Err(Errno::AGAIN) => Ok(Self::Leased),
            Err(Errno::TXTBSY) => Ok(Self::NotWhileRun),
            Err(Errno::PERM) if !Protection::of(file)?.is_none() => Ok(Self::Untold),
            Err(errno) => Err(errno.into()),
        }
    }
}

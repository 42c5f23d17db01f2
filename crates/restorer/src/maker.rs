//! From a request to a clone: enter its cgroups and namespaces, make what its processes share, fork them.
//!
//! Two tasks do that, both in the holder's memory. The *entrant* is born in the clone's cgroup, because page tables are
//! charged to whom they are forked by, and enters the namespaces; it is not itself in the clone's pid namespace. The
//! *maker*, which it makes, is, so that what the maker forks falls to the clone's first process when it exits. The
//! holder waits for both, since either may be killed. While they live a process of the clone could reach the holder's
//! memory through them, were that memory not undumpable; they are gone before anything of the clone runs.

use crate::bare::{self, ECHILD, number, plain};
use crate::packet::Message;
use crate::run::{self, Failure, Script};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// A clone that is wanted.
pub(crate) struct MakeRequest<'a> {
    fds: &'a [u64],
    cgroups: usize,
    groups: usize,
    namespaces: u32,
    scopes: u32,
    script: &'a Script,
}

/// Where the tasks say what failed: they share the holder's memory.
static FAILED_ERRNO: AtomicI32 = AtomicI32::new(0);
static FAILED_STEP: AtomicU32 = AtomicU32::new(0);

impl<'a> MakeRequest<'a> {
    /// The request of a message whose counts fit its descriptors.
    pub(crate) fn new(
        message: &'a Message,
        counts: [usize; 3],
        (namespaces, scopes): (u32, u32),
        script: &'a Script,
    ) -> Option<Self> {
        let [cgroups, groups, supplied] = counts;
        let all = [2, cgroups, groups, 1, supplied].into_iter().try_fold(0_usize, usize::checked_add)?;
        let fds = &message.fds[..message.count];
        (all == fds.len() && cgroups <= 1).then_some(Self { fds, cgroups, groups, namespaces, scopes, script })
    }

    fn groups(&self) -> &[u64] {
        &self.fds[2 + self.cgroups..][..self.groups]
    }

    /// Whose namespaces are entered.
    fn process(&self) -> u64 {
        self.fds[2 + self.cgroups + self.groups]
    }

    fn supplied(&self) -> &[u64] {
        &self.fds[2 + self.cgroups + self.groups + 1..]
    }
}

/// Forks a clone; its threads report for themselves.
pub(crate) fn grow(request: &MakeRequest<'_>) -> Result<(), Failure> {
    FAILED_ERRNO.store(0, Ordering::Relaxed);
    let cgroup = (request.cgroups == 1).then(|| request.fds[2]);
    let ended = bare::entrant(cgroup, enter, core::ptr::from_ref(request) as usize);
    bare::undumpable();
    match (ended.map_err(Failure::of_call)?, FAILED_ERRNO.load(Ordering::Relaxed)) {
        (0, 0) => Ok(()),
        (_, 0) => Err(Failure::of_call(ECHILD)),
        (_, errno) => Err(Failure { errno, step: FAILED_STEP.load(Ordering::Relaxed) }),
    }
}

fn end(outcome: Result<(), Failure>) -> ! {
    if let Err(failure) = &outcome {
        FAILED_STEP.store(failure.step, Ordering::Relaxed);
        FAILED_ERRNO.store(failure.errno, Ordering::Relaxed);
    }
    bare::exit(u64::from(outcome.is_err()))
}

extern "C" fn enter(request: usize) -> ! {
    // SAFETY: the request stands on the holder's stack, and the holder waits for this task's end and the maker's.
    let request = unsafe { &*(request as *const MakeRequest<'_>) };
    end(entrant(request))
}

fn entrant(request: &MakeRequest<'_>) -> Result<(), Failure> {
    for group in request.groups() {
        bare::write(*group, b"0").map_err(Failure::of_call)?;
    }
    plain(number::SETNS, [request.process(), u64::from(request.namespaces), 0]).map_err(Failure::of_call)?;
    bare::undumpable();
    let pid = request.script.header().maker as i32;
    bare::maker(pid, make, core::ptr::from_ref(request) as usize).map_err(Failure::of_call)
}

extern "C" fn make(request: usize) -> ! {
    // SAFETY: as for `enter`.
    let request = unsafe { &*(request as *const MakeRequest<'_>) };
    end(maker(request))
}

fn maker(request: &MakeRequest<'_>) -> Result<(), Failure> {
    let root = |number, ids| plain(number, ids).map_err(Failure::of_call);
    root(number::SETGROUPS, [0, 0, 0])?;
    root(number::SETRESGID, [0, 0, 0])?;
    root(number::SETRESUID, [0, 0, 0])?;
    bare::undumpable();
    if request.scopes != 0 {
        // Where the kernel keeps nothing inside, guests do without, and it is said of them.
        let _ = bare::keep_inside(request.scopes);
    }
    let free = request.script.header().free;
    let given = request.fds[..2].iter().chain(request.supplied());
    for (number, fd) in given.enumerate() {
        plain(number::DUP3, [*fd, free + number as u64, 0]).map_err(Failure::of_call)?;
    }
    // What came with the request is the host's, its control groups among it. From here on names are resolved that
    // whoever made the image has chosen, and a name may lead to any descriptor.
    let kept = free..free + 2 + request.supplied().len() as u64;
    for fd in request.fds.iter().filter(|fd| !kept.contains(fd)) {
        plain(number::CLOSE, [*fd, 0, 0]).map_err(Failure::of_call)?;
    }
    run::steps(request.script, request.script.making())
}

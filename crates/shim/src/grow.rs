//! Taking the steps of a plan, one after another. The first that fails is reported by its number, and ends the process.

use crate::bare::memory::{self, Mapped, Room};
use crate::bare::{self, Forked};
use crate::held_mounts::HeldMounts;
use crate::{command, container, init, mountpoint, packet};
use core::cell::Cell;
use core::ffi::CStr;
use pando_shim::{ADMITTED, Attributes, IN_FILE, MAX_FDS, MAX_REST, Make, Mountpoint, ROUSED, Report, Step, next_step};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, UnmountFlags};
use rustix::net::SocketFlags;
use rustix::thread::CpuSet;

/// Exit codes of the shell: the command could not be executed; there is none of that name; something else stood in the
/// way.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
const FAILED: i32 = 125;

/// The descriptors of a launch: the plan, the report's socket, and those that the plan names.
#[derive(Default)]
pub(crate) struct Luggage {
    plan: Option<OwnedFd>,
    report: Option<OwnedFd>,
    named: Named,
    count: usize,
    /// A socket that is kept beside the report's.
    listener: Option<OwnedFd>,
    /// Whether the plan's descriptors are closed: their values mean nothing any more.
    closed: Cell<bool>,
    /// How many descriptors after the standard ones are for what is executed.
    inherited: u32,
    /// The plan and the rest of it, wherever they lie, and a child's stack.
    mapped: [Option<Mapped>; 4],
}

/// The last of the standard descriptors. Those of a shim are sockets of its own until a plan puts others there.
const STANDARD: u32 = 2;

/// The last of what is mapped.
const STACK: usize = 3;

struct Named([Option<OwnedFd>; MAX_FDS]);

impl Default for Named {
    fn default() -> Self {
        Self([const { None }; MAX_FDS])
    }
}

impl Luggage {
    /// Takes the next descriptor off a message. More than there is room for are closed.
    pub(crate) fn add(&mut self, fd: OwnedFd) {
        match self.count {
            0 => self.plan = Some(fd),
            1 => self.report = Some(fd),
            n if n - 2 < MAX_FDS => self.named.0[n - 2] = Some(fd),
            _ => return,
        }
        self.count += 1;
    }

    /// The steps.
    fn plan(&mut self) -> Result<&'static [u8], Errno> {
        let plan = self.plan.as_ref().ok_or(Errno::BADF)?;
        let length = rustix::fs::fstat(plan)?.st_size;
        let mapped = memory::map(plan, usize::try_from(length).map_err(|_| Errno::FBIG)?)?;
        Ok(self.keep(mapped))
    }

    fn keep(&mut self, mapped: Mapped) -> &'static [u8] {
        if let Some(place) = self.mapped.iter_mut().find(|place| place.is_none()) {
            *place = Some(mapped);
        }
        mapped.bytes()
    }

    /// Lets go of everything but the report's socket, and takes what comes over that: more steps, in the message or in
    /// the last of its files.
    fn renew(&mut self) -> Result<&'static [u8], Errno> {
        let report = self.report.take().ok_or(Errno::BADF)?;
        // Both places before those that the plan names are taken.
        let listener = self.listener.take();
        if self.closed.get() {
            core::mem::forget(core::mem::take(&mut self.named));
        }
        *self = Self { count: 2, mapped: self.mapped, listener, ..Self::default() };
        // Made before anybody waits.
        let mut room = Room::new(MAX_REST)?;
        let length = self.hear(&report, room.bytes())?;
        self.report = Some(report);
        let rest = self.keep(room.filled());
        if rest.starts_with(&[IN_FILE]) {
            self.plan = self.count.checked_sub(3).and_then(|last| self.named.0.get_mut(last)?.take());
            return self.plan();
        }
        rest.get(1..length).ok_or(Errno::BADMSG)
    }

    /// Receives a message. One that says that another is about to come is worth staying awake for: a processor that
    /// sleeps takes long to come back.
    fn hear(&mut self, socket: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Errno> {
        let length = packet::receive(socket, bytes, |fd| self.add(fd))?;
        let Some([ROUSED, processors @ ..]) = bytes.get(..length) else { return Ok(length) };
        let mut allowed = CpuSet::new();
        for (byte, bits) in processors.iter().enumerate().take(CpuSet::MAX_CPU / 8) {
            (0..8).filter(|bit| bits & 1 << bit != 0).for_each(|bit| allowed.set(byte * 8 + bit));
        }
        look_out(socket);
        let length = packet::receive(socket, bytes, |fd| self.add(fd))?;
        // It was sent out of the daemon's way. What its groups allow of that the kernel sees to.
        let _ = rustix::thread::sched_setaffinity(None, &allowed);
        Ok(length)
    }

    /// What comes along with [`Request::Console`](pando_shim::Request::Console) and
    /// [`Request::Log`](pando_shim::Request::Log), in the places of other requests: where what is printed comes out,
    /// the log, and its times.
    pub(crate) fn printed(mut self) -> Option<(OwnedFd, OwnedFd, Option<OwnedFd>)> {
        let times = self.named.0[0].take();
        Some((self.plan?, self.report?, times))
    }

    /// Closes every descriptor but the standard ones, the report's socket and the one that the plan calls `index`:
    /// names that a guest can arrange are resolved next, and what is open then is within its reach. The values stay, of
    /// numbers that mean nothing any more: the process is about to become a program or to end, and its memory may be
    /// lent.
    fn close_others(&self, index: Option<u8>) {
        self.closed.set(true);
        let named = index.and_then(|index| self.named.0.get(usize::from(index))).unwrap_or(&None);
        let last = STANDARD + self.inherited;
        let mut kept =
            [&self.report, &self.listener, named].map(|fd| fd.as_ref().map_or(STANDARD, |fd| fd.as_raw_fd() as u32));
        kept.sort_unstable();
        let mut first = last + 1;
        for fd in kept.into_iter().filter(|fd| *fd > last) {
            bare::close_range(first, fd - 1);
            first = fd + 1;
        }
        bare::close_range(first, u32::MAX);
    }

    /// Keeps one of the plan's descriptors as the listening socket.
    fn keep_listener(&mut self, index: u8) -> Result<(), Errno> {
        let place = self.named.0.get_mut(usize::from(index)).ok_or(Errno::BADF)?;
        self.listener = Some(place.take().ok_or(Errno::BADF)?);
        Ok(())
    }

    /// Waits at the listening socket for a connection on which the word comes: the report's from here on. Others only
    /// look whether somebody listens.
    fn await_start(&mut self, word: u8) -> Result<(), Errno> {
        let listener = self.listener.take().ok_or(Errno::BADF)?;
        loop {
            let connection = match rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                connection => connection?,
            };
            let mut heard = [0];
            if packet::receive(&connection, &mut heard, drop).is_ok() && heard == [word] {
                self.report = Some(connection);
                return Ok(());
            }
        }
    }

    /// Puts descriptors of the plan where what is executed finds them, from 3 on. Those at hand may have these numbers:
    /// the ones that stay go above first, and the values of the others mean nothing any more.
    fn hand_on(&mut self, first: u8, count: u8) -> Result<(), Errno> {
        let above = STANDARD as i32 + 1 + 2 * MAX_FDS as i32;
        let raised = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, above);
        let raise = |fd: &mut Option<OwnedFd>| -> Result<(), Errno> {
            let copy = fd.as_ref().map(raised).transpose()?;
            core::mem::forget(core::mem::replace(fd, copy));
            Ok(())
        };
        raise(&mut self.report)?;
        raise(&mut self.listener)?;
        for index in first..first.checked_add(count).ok_or(Errno::INVAL)? {
            raise(self.named.0.get_mut(usize::from(index)).ok_or(Errno::BADF)?)?;
        }
        for (onto, index) in (STANDARD as i32 + 1..).zip(first..first + count) {
            bare::duplicate(self.fd(index)?, onto)?;
        }
        self.inherited = u32::from(count);
        Ok(())
    }

    /// The descriptor that the plan calls `index`.
    pub(crate) fn fd(&self, index: u8) -> Result<BorrowedFd<'_>, Errno> {
        self.named.0.get(usize::from(index)).and_then(Option::as_ref).map(AsFd::as_fd).ok_or(Errno::BADF)
    }
}

/// Stays awake until something has come, or for a while.
fn look_out(socket: &OwnedFd) {
    /// How often to look: somewhat longer than the daemon takes to put a root file system's plan together.
    const LOOKS: u32 = 1000;
    let has_come = || {
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())) != Ok(0)
    };
    for _ in 0..LOOKS {
        if has_come() {
            return;
        }
        rustix::thread::sched_yield();
    }
}

/// What the steps so far have led to.
struct Growing {
    luggage: Luggage,
    /// The new root, once there is one.
    root: Option<OwnedFd>,
    /// The mounts in it that are looked at again.
    mounts: HeldMounts,
    /// Whether standard input is a terminal made by this plan.
    terminal: bool,
    /// What is left of the plan.
    plan: &'static [u8],
    /// The number of the step that comes next.
    number: u32,
}

/// Takes the steps that came with a launch. Does not return.
pub(crate) fn grow(luggage: Luggage) -> ! {
    let mut growing = Growing::new(luggage);
    match growing.luggage.plan() {
        Ok(plan) => growing.plan = plan,
        Err(errno) => growing.fail(errno),
    }
    growing.go_on()
}

/// Takes plans that come over a socket, from the first step on. Does not return.
pub(crate) fn directly(socket: BorrowedFd<'_>) -> ! {
    let report = rustix::io::fcntl_dupfd_cloexec(socket, STANDARD as i32 + 1).ok();
    let luggage = Luggage { report, count: 2, ..Luggage::default() };
    let mut growing = Growing::new(luggage);
    match growing.rest() {
        Ok(plan) => growing.plan = plan,
        Err(errno) => growing.fail(errno),
    }
    growing.go_on()
}

impl Growing {
    fn new(luggage: Luggage) -> Self {
        let mounts = HeldMounts::default();
        Self { luggage, root: None, mounts, terminal: false, plan: &[], number: 0 }
    }

    /// Takes what steps are left.
    fn go_on(&mut self) -> ! {
        while let Some(step) = next_step(&mut self.plan) {
            let outcome = match step {
                Ok(Step::Init { word }) => self.init(word),
                Ok(Step::Adopt { pid }) => self.stand(Some(pid), None),
                Ok(Step::Await) => self.rest().map(|rest| self.plan = rest),
                Ok(Step::Admission) => self.admission(),
                Ok(step) => self.take(step),
                Err(_) => Err(Errno::BADMSG),
            };
            if let Err(errno) = outcome {
                self.fail(errno);
            }
            self.number += 1;
        }
        self.fail(Errno::NODATA)
    }

    fn fail(&self, errno: Errno) -> ! {
        let mut bytes = [0; 16];
        let report = Report { step: self.number, errno: errno.raw_os_error() };
        if let (Some(socket), Ok(bytes)) = (&self.luggage.report, postcard::to_slice(&report, &mut bytes)) {
            let _ = rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL);
        }
        bare::exit(match errno {
            Errno::NOENT => NOT_FOUND,
            Errno::ACCESS | Errno::NOEXEC => NOT_EXECUTABLE,
            _ => FAILED,
        })
    }

    /// Becomes the guest's init. What more there is to do a child does.
    fn init(&mut self, word: Option<u8>) -> Result<(), Errno> {
        if self.plan.is_empty() {
            self.stand(None, None);
        }
        // While no process is there yet that would have to go again.
        word.map(|index| self.luggage.fd(index)).transpose()?;
        let mut stack = Room::for_stack()?;
        let command = bare::lend(&mut stack, self, |growing| {
            growing.number += 1;
            growing.go_on()
        })?;
        self.luggage.mapped[STACK] = Some(stack.filled());
        let word = word.map(|index| self.luggage.fd(index)).transpose()?;
        self.stand(Some(command), word)
    }

    fn stand(&self, command: Option<i32>, word: Option<BorrowedFd<'_>>) -> ! {
        init::stand(command, word, self.luggage.mapped.into_iter().flatten())
    }

    /// Waits for the rest of the plan. A daemon that has gone sends none.
    fn rest(&mut self) -> Result<&'static [u8], Errno> {
        match self.luggage.renew() {
            Err(Errno::PIPE | Errno::CONNRESET) => bare::exit(0),
            outcome => outcome,
        }
    }

    /// Waits for the word that the guest has been admitted, which is on its way.
    fn admission(&self) -> Result<(), Errno> {
        let report = self.luggage.report.as_ref().ok_or(Errno::BADF)?;
        look_out(report);
        let mut word = [0];
        match packet::receive(report, &mut word, drop) {
            Ok(_) if word == [ADMITTED] => Ok(()),
            Ok(_) => Err(Errno::BADMSG),
            Err(Errno::PIPE | Errno::CONNRESET) => bare::exit(0),
            Err(errno) => Err(errno),
        }
    }

    fn take(&mut self, step: Step<'static>) -> Result<(), Errno> {
        match step {
            Step::Private => {
                const MS_PRIVATE: u64 = 1 << 18;
                bare::mount_setattr(rustix::fs::CWD, c"/", true, 0, MS_PRIVATE)
            }
            Step::Share => {
                const MS_SHARED: u64 = 1 << 20;
                bare::mount_setattr(rustix::fs::CWD, c"/", true, 0, MS_SHARED)
            }
            Step::EnterRoot { fd, over } => self.enter_root(fd, over.c_str()),
            Step::Attach { fd, on } => {
                let root = self.root.as_ref().ok_or(Errno::NOTDIR)?;
                self.mounts.attach(self.luggage.fd(fd)?, root.as_fd(), &on)
            }
            Step::Mount { kind, options, attributes, on } => self.mount((kind.c_str(), options), attributes, &on),
            Step::MountPlainly { kind, options, attributes, at } => {
                let tree = new_file_system(kind.c_str(), options, attributes)?;
                let root = self.root.as_ref().ok_or(Errno::NOTDIR)?;
                self.mounts.attach_new(tree, root.as_fd(), &Mountpoint { at, make: Make::Directory })
            }
            Step::Mask { at } => self.mount_on_itself(at.c_str(), Some(c"dev/null"), Attributes::READ_ONLY),
            Step::Protect { at } => self.mount_on_itself(at.c_str(), None, Attributes::READ_ONLY),
            Step::Bring { from, on } => {
                let mounted =
                    rustix::mount::open_tree(rustix::fs::CWD, from.c_str(), OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
                let (root, at) = self.mounts.place(self.root()?, on.at.c_str());
                mountpoint::attach(mounted.as_fd(), root, at, on.make)
            }
            Step::TakeRoot => {
                rustix::process::chroot(c".")?;
                self.leave_roots();
                rustix::process::chdir(c"/")
            }
            Step::Pivot => {
                rustix::process::pivot_root(c".", c".")?;
                rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
                self.leave_roots();
                rustix::process::chdir(c"/")
            }
            Step::HostName { name } => rustix::system::sethostname(name),
            Step::Terminal { fd, rows, columns } => {
                self.luggage.close_others(Some(fd));
                command::terminal(self.luggage.fd(fd)?, rows, columns)?;
                self.terminal = true;
                Ok(())
            }
            Step::WorkingDirectory { .. } | Step::Exec { .. } => {
                self.luggage.close_others(None);
                command::take(&self.luggage, self.terminal, step)
            }
            Step::Filter { program, flags, word } => self.filter(program, flags, word),
            Step::Say { word } => self.say(word),
            Step::Sibling { word } => self.go_on_as_sibling(word),
            Step::Listener { fd } => self.luggage.keep_listener(fd),
            Step::Started { word } => self.luggage.await_start(word),
            Step::Inherit { first, count } => self.luggage.hand_on(first, count),
            other => match container::take(self.root.as_ref(), &self.mounts, &self.luggage, other) {
                Some(outcome) => outcome,
                None => command::take(&self.luggage, self.terminal, other),
            },
        }
    }

    /// Mounts a new file system of a kind.
    fn mount(
        &mut self,
        (kind, options): (&CStr, &str),
        attributes: Attributes,
        on: &Mountpoint<'static>,
    ) -> Result<(), Errno> {
        if on.make == Make::Skip && self.is_missing(on.at.c_str())? {
            return Ok(());
        }
        let tree = new_file_system(kind, options, attributes)?;
        let root = self.root.as_ref().ok_or(Errno::NOTDIR)?;
        self.mounts.attach_new(tree, root.as_fd(), on)
    }

    fn say(&self, word: u8) -> Result<(), Errno> {
        let report = self.luggage.report.as_ref().ok_or(Errno::BADF)?;
        rustix::net::send(report, &[word], rustix::net::SendFlags::NOSIGNAL).map(drop)
    }

    /// Installs a filter of system calls, after which the listener's number and the answer are all that is said.
    fn filter(&self, program: &[u8], flags: u32, word: u8) -> Result<(), Errno> {
        let report = self.luggage.report.as_ref().ok_or(Errno::BADF)?;
        let Some(listener) = bare::filter_with(program, flags)? else { return Ok(()) };
        let number = listener.as_raw_fd();
        // It closes when the program is executed: to close it here is one more call that may not be allowed.
        core::mem::forget(listener);
        let number = number.to_ne_bytes();
        let message = [word, number[0], number[1], number[2], number[3]];
        rustix::net::send(report, &message, rustix::net::SendFlags::NOSIGNAL)?;
        match rustix::net::recv(report, &mut [0_u8; 1], rustix::net::RecvFlags::empty())? {
            (0, _) => Err(Errno::PIPE),
            _ => Ok(()),
        }
    }

    /// Returns in the sibling alone.
    fn go_on_as_sibling(&self, word: u8) -> Result<(), Errno> {
        match bare::fork_sibling()? {
            Forked::Child => Ok(()),
            Forked::Parent { pidfd, .. } => {
                let report = self.luggage.report.as_ref().ok_or(Errno::BADF)?;
                command::send_with(report.as_fd(), &[word], &pidfd)?;
                bare::exit(0)
            }
        }
    }

    fn root(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.root.as_ref().map(AsFd::as_fd).ok_or(Errno::NOTDIR)
    }

    /// Lets go of what the new root was reached by: no descriptor of it is at hand in the guest.
    fn leave_roots(&mut self) {
        self.root = None;
        self.mounts = HeldMounts::default();
    }

    fn enter_root(&mut self, fd: u8, over: &CStr) -> Result<(), Errno> {
        let tree = self.luggage.fd(fd)?;
        let flags = rustix::mount::MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(tree, c"", rustix::fs::CWD, over, flags)?;
        rustix::process::fchdir(tree)?;
        self.root = Some(rustix::io::fcntl_dupfd_cloexec(tree, 3)?);
        Ok(())
    }

    /// Whether the new root has no such path. Asked before a tree is made for it: one that is closed unused waits for a
    /// grace period.
    fn is_missing(&self, at: &CStr) -> Result<bool, Errno> {
        match self.mounts.resolve(self.root()?, at) {
            Err(Errno::NOENT) => Ok(true),
            found => found.map(|_| false),
        }
    }

    /// Mounts `what` (default: the path itself) on a path of the new root. A path that is missing is passed over.
    fn mount_on_itself(&self, at: &CStr, what: Option<&CStr>, attributes: Attributes) -> Result<(), Errno> {
        let root = self.root()?;
        let find = |path: &CStr| match self.mounts.resolve(root, path) {
            Err(Errno::NOENT) => Ok(None),
            found => found.map(Some),
        };
        // The path is looked up once: what is shown there in its own place is what was there.
        let Some(place) = find(at)? else { return Ok(()) };
        let other = what.map(find).transpose()?;
        let source = match &other {
            Some(None) => return Ok(()),
            Some(Some(other)) => other,
            None => &place,
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = rustix::mount::open_tree(source, c"", flags)?;
        bare::mount_setattr(tree.as_fd(), c"", false, attributes.bits(), 0)?;
        mountpoint::attach_to(tree.as_fd(), place.as_fd())
    }
}

/// A new file system, not attached anywhere yet.
pub(crate) fn new_file_system(kind: &CStr, options: &str, attributes: Attributes) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some((key, value)) => rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?,
            None => rustix::mount::fsconfig_set_flag(context.as_fd(), option)?,
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    rustix::mount::fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::from_bits_retain(attributes.bits()),
    )
}

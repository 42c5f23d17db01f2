//! System calls that are answered by another process (seccomp_unotify(2), since Linux 5.0).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

/// `AUDIT_ARCH_…` of the machine that this is built for.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// The architecture of older programs that this machine runs as well.
#[cfg(target_arch = "x86_64")]
const OLDER: u32 = 0x4000_0003;
#[cfg(target_arch = "aarch64")]
const OLDER: u32 = 0x4000_0028;

/// Set in a call's number by programs of x86-64 that have short addresses (`__X32_SYSCALL_BIT`).
#[cfg(target_arch = "x86_64")]
const SHORT: u32 = 0x4000_0000;
#[cfg(target_arch = "aarch64")]
const SHORT: u32 = 0;

/// `_IOWR('!', 0, struct seccomp_notif)`, of 80 bytes, and `_IOWR('!', 1, struct seccomp_notif_resp)`, of 24.
const RECEIVE: libc::c_ulong = 0xC050_2100;
const SEND: libc::c_ulong = 0xC018_2101;
/// `_IOW('!', 2, __u64)`
const IS_VALID: libc::c_ulong = 0x4008_2102;
/// `_IOW('!', 4, __u64)`, since Linux 6.6, and `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SET_FLAGS: libc::c_ulong = 0x4008_2104;
const SYNC_WAKE_UP: u64 = 1;

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`, since Linux 5.19.
const WAIT_KILLABLE_RECEIVED: libc::c_ulong = 1 << 5;

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`, since Linux 5.5.
const CONTINUE: u32 = 1;

/// Where the calls of the filtered processes arrive. With it goes the filter's meaning: the calls fail with ENOSYS from
/// then on.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// `struct seccomp_notif`
#[repr(C)]
#[derive(Default)]
struct Raw {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// A call that waits for its answer.
#[derive(Debug)]
pub struct Call {
    id: u64,
    /// The thread that makes it.
    pub pid: i32,
    /// The number of the system call.
    pub number: i64,
    /// Whether the number is one of the older architecture's.
    pub older: bool,
    /// Its arguments. What they point to may change at any moment.
    pub arguments: [u64; 6],
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel carries it out, as if nothing had been asked.
    Continue,
    /// The call returns this number.
    Return(i64),
    /// The call fails with this error number.
    Fail(i32),
}

impl From<OwnedFd> for Listener {
    /// The listener of a descriptor that another process has handed over.
    fn from(listener: OwnedFd) -> Self {
        Self(listener)
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> Self {
        listener.0
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A call that is a matter only with some values of one of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct With {
    /// The number of the system call.
    pub number: i64,
    /// The index of the argument, from 0.
    pub argument: u8,
    /// The values that it is a matter with.
    pub matters: Matters,
}

/// With which values of an argument a call is a matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matters {
    /// Any but zero: it is a pointer, perhaps.
    Set,
    /// One of two, of which the kernel takes the lower half: the word that says what is to be done.
    Either([u32; 2]),
}

/// From now on the calls `numbers` of this thread, and of everything that it starts, wait for answers, and those of
/// `with` that have their argument; for 32-bit programs, which number their calls another way, those in `older`, of the
/// same form. All others cost what they do without: the kernel remembers that they are allowed. Needs CAP_SYS_ADMIN, so
/// that setuid programs keep their meaning.
///
/// # Errors
///
/// EBUSY where this thread is filtered so already. InvalidInput for more than some hundred calls.
pub fn listen(numbers: &[i64], with: &[With], older: (&[i64], &[With])) -> io::Result<Listener> {
    let filter = filter(numbers, with, older).ok_or(io::ErrorKind::InvalidInput)?;
    // A call that has been received is answered once, whatever signals its thread gets meanwhile: a program that asked
    // to be interrupted by them would see EINTR from calls that never fail so, and make again what has been done.
    match install(&filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECEIVED) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            install(&filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)
        }
        listener => listener,
    }
}

/// The filter that [`listen`] installs, as the kernel takes it (`struct sock_filter`s), for a thread of another program
/// to install. `None` for more than some hundred calls.
pub fn program(numbers: &[i64], with: &[With], older: (&[i64], &[With])) -> Option<Vec<u8>> {
    let encoded = |one: libc::sock_filter| {
        let [code, k] = [one.code.to_ne_bytes().to_vec(), one.k.to_ne_bytes().to_vec()];
        [code, vec![one.jt, one.jf], k].concat()
    };
    Some(filter(numbers, with, older)?.into_iter().flat_map(encoded).collect())
}

fn install(filter: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<Listener> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program lives until the call returns, and is as long as it says.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(Listener(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn filter(numbers: &[i64], with: &[With], older: (&[i64], &[With])) -> Option<Vec<libc::sock_filter>> {
    let load = |at: u32| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let is = |value: u32, jt: u8, jf: u8| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value);
    let (of_this, of_older) = (one_of(numbers, with)?, one_of(older.0, older.1)?);
    let mut program = vec![load(ARCHITECTURE_AT), is(ARCHITECTURE, 0, u8::try_from(of_this.len() + 1).ok()?)];
    program.push(load(NUMBER_AT));
    program.extend(of_this);
    // What comes here is not of this architecture.
    program.push(is(OLDER, 0, u8::try_from(of_older.len() + 1).ok()?));
    program.push(load(NUMBER_AT));
    program.extend(of_older);
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    Some(program)
}

/// How many instructions ask for an argument.
const WITH_ARGUMENT: usize = 7;

/// Answers for one call whether it has its argument; for others the number stays loaded.
fn with_argument(one: &With) -> Option<[libc::sock_filter; WITH_ARGUMENT]> {
    let load = |at: u32| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let is = |value: u32, jt: u8, jf: u8| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value);
    let answer = |value: u32| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let at = ARGUMENTS_AT + 8 * u32::from(one.argument);
    let is_it = is(u32::try_from(one.number).ok()?, 0, WITH_ARGUMENT as u8 - 1);
    let (allow, ask) = (answer(libc::SECCOMP_RET_ALLOW), answer(libc::SECCOMP_RET_USER_NOTIF));
    Some(match one.matters {
        Matters::Set => [is_it, load(at), is(0, 0, 3), load(at + 4), is(0, 0, 1), allow, ask],
        // The last is never come to: it keeps both of one length.
        Matters::Either([this, that]) => [is_it, load(at), is(this, 2, 0), is(that, 1, 0), allow, ask, allow],
    })
}

/// Answers, for a call whose number is loaded, whether it is one of these.
fn one_of(numbers: &[i64], with: &[With]) -> Option<Vec<libc::sock_filter>> {
    let mut program = vec![instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, !SHORT)];
    for one in with {
        program.extend(with_argument(one)?);
    }
    let sorted: BTreeSet<u32> = numbers.iter().map(|number| u32::try_from(*number).ok()).collect::<Option<_>>()?;
    program.extend(search(&Vec::from_iter(sorted))?);
    Some(program)
}

/// The same, by halves: when a filter is installed the kernel runs it once for each call that there is, and so each
/// time for one that it cannot remember to be allowed. `None` where a jump would be longer than can be said in a byte.
fn search(sorted: &[u32]) -> Option<Vec<libc::sock_filter>> {
    /// So few are looked at one by one.
    const FEW: usize = 5;
    let jump = |how: u32, value: u32, jt: u8| instruction(libc::BPF_JMP | how | libc::BPF_K, jt, 0, value);
    let answer = |value: u32| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    if sorted.len() > FEW {
        let (low, high) = sorted.split_at(sorted.len() / 2);
        let (from, low) = (high.first().copied()?, search(low)?);
        let mut program = vec![jump(libc::BPF_JGE, from, u8::try_from(low.len()).ok()?)];
        program.extend(low);
        program.extend(search(high)?);
        return Some(program);
    }
    // Over those that follow, and over the answer for all others.
    let mut program: Vec<_> = sorted
        .iter()
        .zip((1..=sorted.len() as u8).rev())
        .map(|(number, jt)| jump(libc::BPF_JEQ, *number, jt))
        .collect();
    program.extend([answer(libc::SECCOMP_RET_ALLOW), answer(libc::SECCOMP_RET_USER_NOTIF)]);
    Some(program)
}

impl Listener {
    /// From now on the process that makes a call and the one that answers it take turns on one processor: neither runs
    /// while the other does, and to wake another processor takes longer than most answers. Before Linux 6.6 nothing
    /// changes.
    pub fn take_turns(&self) {
        // SAFETY: the kernel takes the flags as a number, not as an address.
        unsafe { libc::ioctl(self.0.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
    }

    /// The next call; blocks until there is one. `None` if it was taken back: its thread got a signal.
    ///
    /// # Errors
    ///
    /// EINTR where a signal came; ENODEV where the filter's last process has ended.
    pub fn receive(&self) -> io::Result<Option<Call>> {
        let mut raw = Raw::default();
        // SAFETY: the request's number says how large the structure is that the kernel fills in; it is zeroed, as the
        // call wants.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut raw) } != 0 {
            let error = io::Error::last_os_error();
            return if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        let number = i64::from(raw.number.cast_unsigned() & !SHORT);
        let older = raw.architecture == OLDER;
        Ok(Some(Call { id: raw.id, pid: raw.pid.cast_signed(), number, older, arguments: raw.arguments }))
    }

    /// Lets every call through, until no process is left that could make one (POLLHUP, since Linux 5.9).
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    pub fn let_all_through(&self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let mut fds = [PollFd::new(self, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            if fds[0].revents().contains(PollFlags::IN) {
                if let Some(call) = self.receive()? {
                    self.answer(&call, Answer::Continue)?;
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Another descriptor of the same.
    ///
    /// # Errors
    ///
    /// EMFILE where this process may have no more descriptors.
    pub fn duplicate(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Whether no process is left that could make a call (POLLHUP, since Linux 5.9; before, nobody knows).
    pub fn is_abandoned(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(self, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// Whether a call still waits. What was looked up by its pid before this was its thread's.
    pub fn still_waits(&self, call: &Call) -> bool {
        // SAFETY: the kernel reads one number.
        unsafe { libc::ioctl(self.0.as_raw_fd(), IS_VALID, &raw const call.id) == 0 }
    }

    /// Answers. A thread that is gone needs none.
    ///
    /// # Errors
    ///
    /// EINVAL where the kernel does not know the answer's flags. That the thread has gone is no error.
    pub fn answer(&self, call: &Call, answer: Answer) -> io::Result<()> {
        let (value, error, flags) = match answer {
            Answer::Continue => (0, 0, CONTINUE),
            Answer::Return(value) => (value, 0, 0),
            Answer::Fail(number) => (0, -number, 0),
        };
        let mut response = Response { id: call.id, value, error, flags };
        // SAFETY: the request's number says how large the structure is that the kernel reads.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), SEND, &raw mut response) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOENT) { Ok(()) } else { Err(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_call_is_asked_about_and_no_other_is() {
        let (numbers, older) = ([62, 200, 234, 9, 165, 166, 41, 42, 321, 318, 0, 399, 77], [37, 238]);
        let with = [
            With { number: 44, argument: 4, matters: Matters::Set },
            With { number: 72, argument: 4, matters: Matters::Either([8, 15]) },
        ];
        let with_older = [With { number: 55, ..with[1] }];
        let program = filter(&numbers, &with, (&older, &with_older)).unwrap();
        let run_with = |architecture: u32, number: u32, argument: u64| {
            let (mut at, mut value) = (0_usize, 0);
            loop {
                let now = program[at];
                match u32::from(now.code) & 7 {
                    libc::BPF_LD => {
                        value = match now.k {
                            ARCHITECTURE_AT => architecture,
                            NUMBER_AT => number,
                            48 => argument as u32,
                            52 => (argument >> 32) as u32,
                            other => panic!("{other}"),
                        }
                    }
                    libc::BPF_ALU => value &= now.k,
                    libc::BPF_JMP => {
                        let holds =
                            if u32::from(now.code) & 0xf0 == libc::BPF_JGE { value >= now.k } else { value == now.k };
                        at += usize::from(if holds { now.jt } else { now.jf });
                    }
                    _ => return now.k,
                }
                at += 1;
            }
        };
        for argument in [0, 1, 1 << 31, 1 << 32, u64::MAX] {
            let asked = argument != 0;
            assert_eq!(run_with(ARCHITECTURE, 44, argument) == libc::SECCOMP_RET_USER_NOTIF, asked, "{argument:#x}");
            assert_eq!(run_with(ARCHITECTURE, 43, argument), libc::SECCOMP_RET_ALLOW);
            assert_eq!(run_with(ARCHITECTURE, 62, argument), libc::SECCOMP_RET_USER_NOTIF);
        }
        for argument in [0, 7, 8, 9, 15, 16, 1 << 32 | 8, 15 << 32] {
            let asked = [8, 15].contains(&(argument & 0xffff_ffff));
            for (architecture, number) in [(ARCHITECTURE, 72), (OLDER, 55)] {
                let answer = run_with(architecture, number, argument);
                assert_eq!(answer == libc::SECCOMP_RET_USER_NOTIF, asked, "{number} {argument:#x}");
                assert!(asked || answer == libc::SECCOMP_RET_ALLOW);
            }
        }
        let run = |architecture, number| run_with(architecture, number, 0);
        for number in 0..400 {
            let asked = numbers.contains(&i64::from(number));
            assert_eq!(run(ARCHITECTURE, number) == libc::SECCOMP_RET_USER_NOTIF, asked, "{number}");
            assert_eq!(run(ARCHITECTURE, number | SHORT) == libc::SECCOMP_RET_USER_NOTIF, asked, "{number}");
            let asked = older.contains(&i64::from(number));
            assert_eq!(run(OLDER, number) == libc::SECCOMP_RET_USER_NOTIF, asked, "{number}");
            assert_eq!(run(7, number), libc::SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn hundred_calls_fit_and_a_thousand_do_not() {
        assert!(filter(&Vec::from_iter(0..100), &[], (&Vec::from_iter(0..100), &[])).is_some());
        assert!(filter(&Vec::from_iter(0..1000), &[], (&[], &[])).is_none());
    }

    #[test]
    fn a_call_gets_the_answer_that_it_is_given() {
        let thread = std::thread::spawn(|| {
            let Ok(listener) = listen(&[libc::SYS_getppid], &[], (&[], &[])) else {
                eprintln!("skipped: filtering needs root");
                return;
            };
            // The answer comes from another thread, which is not filtered.
            let (sender, receiver) = std::sync::mpsc::channel::<Listener>();
            let other = std::thread::spawn(move || {
                let listener = receiver.recv().unwrap();
                let call = listener.receive().unwrap().unwrap();
                assert!(listener.still_waits(&call) && call.number == libc::SYS_getppid);
                listener.answer(&call, Answer::Return(4242)).unwrap();
            });
            sender.send(listener).unwrap();
            assert_eq!(rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()), Some(4242));
            other.join().unwrap();
        });
        thread.join().unwrap();
    }
}

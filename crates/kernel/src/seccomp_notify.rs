//! System calls that are answered by another process (seccomp_unotify(2), since Linux 5.0).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

/// `AUDIT_ARCH_…` of the machine that this is built for.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// `_IOWR('!', 0, struct seccomp_notif)`, of 80 bytes, and `_IOWR('!', 1, struct seccomp_notif_resp)`, of 24.
const RECEIVE: libc::c_ulong = 0xC050_2100;
const SEND: libc::c_ulong = 0xC018_2101;
/// `_IOW('!', 2, __u64)`
const IS_VALID: libc::c_ulong = 0x4008_2102;

/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`, since Linux 5.5.
const CONTINUE: u32 = 1;

/// Where the calls of the filtered processes arrive. With it goes the filter's meaning: the calls fail with ENOSYS from then on.
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
    /// Which call.
    pub number: i64,
    /// Its arguments. What they point to may change at any moment.
    pub arguments: [u64; 6],
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The kernel carries it out, as if nothing had been asked.
    Continue,
    /// It returns this.
    Return(i64),
    /// It fails with this error number.
    Fail(i32),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// From now on the calls `numbers` of this thread, and of everything that it starts, wait for answers. Programs for another architecture are not
/// filtered. Needs CAP_SYS_ADMIN, so that setuid programs keep their meaning.
///
/// # Errors
///
/// EBUSY where this thread is filtered so already. InvalidInput for more than 200 calls.
pub fn listen(numbers: &[i64]) -> io::Result<Listener> {
    let filter = filter(numbers).ok_or(io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program lives until the call returns, and is as long as it says.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(Listener(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

fn filter(numbers: &[i64]) -> Option<Vec<libc::sock_filter>> {
    /// Jumps are counted in a byte.
    const MOST: usize = 200;
    if numbers.len() > MOST {
        return None;
    }
    let instruction = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let equal = |value: u32, jt: u8, jf: u8| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, value);
    let give = |value: u32| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let count = numbers.len() as u8;
    let mut program = vec![load(ARCHITECTURE_AT), equal(ARCHITECTURE, 0, count + 1), load(NUMBER_AT)];
    for (index, number) in numbers.iter().enumerate() {
        // Over those that follow, and over the answer for all others.
        program.push(equal(u32::try_from(*number).ok()?, count - index as u8, 0));
    }
    program.push(give(libc::SECCOMP_RET_ALLOW));
    program.push(give(libc::SECCOMP_RET_USER_NOTIF));
    Some(program)
}

impl Listener {
    /// The next call; blocks until there is one. `None` if it was taken back: its thread got a signal.
    pub fn receive(&self) -> io::Result<Option<Call>> {
        let mut raw = Raw::default();
        // SAFETY: the request's number says how large the structure is that the kernel fills in; it is zeroed, as the call wants.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, &raw mut raw) } != 0 {
            let error = io::Error::last_os_error();
            return if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        Ok(Some(Call { id: raw.id, pid: raw.pid.cast_signed(), number: raw.number.into(), arguments: raw.arguments }))
    }

    /// Whether a call still waits. What was looked up by its pid before this was its thread's.
    pub fn still_waits(&self, call: &Call) -> bool {
        // SAFETY: the kernel reads one number.
        unsafe { libc::ioctl(self.0.as_raw_fd(), IS_VALID, &raw const call.id) == 0 }
    }

    /// Answers. A thread that is gone needs none.
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
    fn every_listed_call_jumps_to_the_last_instruction_and_no_other_does() {
        let numbers = [62, 200, 234];
        let program = filter(&numbers).unwrap();
        let run = |architecture: u32, number: u32| {
            let (mut at, mut value) = (0_usize, 0);
            loop {
                let now = program[at];
                match u32::from(now.code) & 7 {
                    libc::BPF_LD => value = if now.k == ARCHITECTURE_AT { architecture } else { number },
                    libc::BPF_JMP => at += usize::from(if value == now.k { now.jt } else { now.jf }),
                    _ => return now.k,
                }
                at += 1;
            }
        };
        for number in 0..400 {
            let asked = numbers.contains(&i64::from(number));
            assert_eq!(run(ARCHITECTURE, number) == libc::SECCOMP_RET_USER_NOTIF, asked, "{number}");
            assert_eq!(run(7, number), libc::SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn a_call_gets_the_answer_that_it_is_given() {
        let thread = std::thread::spawn(|| {
            let Ok(listener) = listen(&[libc::SYS_getppid]) else {
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

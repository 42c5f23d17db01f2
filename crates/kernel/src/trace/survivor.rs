//! A task that goes on when the process that made it is killed, for as long as it takes to put right what was begun.
//!
//! A tracer that is killed leaves its thread as it is at that moment: with registers of the tracer's choice, it runs
//! into nowhere. So tracing is done by a task that SIGKILL does not reach with its maker: a process of its own that has
//! the same memory (CLONE_VM), on a stack of its own. It and the thread that made it take turns: while the one runs,
//! the other waits; so it can use that thread's thread-local storage, and everything that is safe on that thread is
//! safe on it. Of that thread's end it hears by a signal (PR_SET_PDEATHSIG), whatever it is doing then, and puts back
//! what is still to be undone: every [borrowed](crate::trace::injected_thread) thread, every connection in
//! [repair](crate::socket::tcp_repair::Repair). That takes system calls alone: locks in the memory that it shares may
//! be held by a thread that is no more.

use crate::trace;
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString};
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Such a task. It has no descriptors but the standard ones, and those that it opens are nobody else's. Dropped, it
/// ends, and what it traced runs on.
#[derive(Debug)]
pub struct SurvivorTask {
    pid: i32,
    desk: Box<Desk>,
    _stack: Stack,
    /// Not `Send`: it takes turns with the thread that made it.
    _here: PhantomData<*const ()>,
}

/// What is to be done, between the two.
#[derive(Debug)]
struct Desk {
    /// Whose turn it is.
    turn: AtomicU32,
    job: UnsafeCell<(Take, *mut ())>,
    /// The process that made it.
    maker: i32,
    name: CString,
}

/// Does a job, which it is given the place of.
type Take = unsafe fn(*mut ());

/// The maker's turn.
const MAKERS: u32 = 0;
const TASKS: u32 = 1;
/// Nobody's any more.
const OVER: u32 = 2;

/// What tells the task that it is alone: a real-time signal that neither the C library nor anybody here uses.
const ALONE: i32 = 50;

/// Bytes of the kernel's signal set.
const SIGNAL_SET: usize = 8;

impl SurvivorTask {
    /// Makes one, which waits. Its name is for ps(1).
    ///
    /// # Errors
    ///
    /// Those of clone(2) and mmap(2): EAGAIN, ENOMEM.
    pub fn new(name: &CStr) -> io::Result<Self> {
        let stack = Stack::new()?;
        let desk = Box::new(Desk {
            turn: AtomicU32::new(TASKS),
            job: UnsafeCell::new((nothing, ptr::null_mut())),
            maker: std::process::id() as i32,
            name: name.to_owned(),
        });
        let argument = ptr::from_ref::<Desk>(&desk).cast_mut().cast();
        // It begins with what this thread has blocked: handlers of ours must not run there.
        let before = block(u64::MAX);
        // SAFETY: the stack is the task's alone until it has been waited for, and the desk lives as long. This thread
        // waits for its turn below, so that the two never run at once on one thread-local storage. The task has copies
        // of descriptors and handlers, not ours.
        let pid = unsafe { libc::clone(live, stack.top(), libc::CLONE_VM, argument) };
        if pid < 0 {
            let failed = io::Error::last_os_error();
            set_mask(before);
            return Err(failed);
        }
        let task = Self { pid, desk, _stack: stack, _here: PhantomData };
        let waited = task.wait_for_turn();
        set_mask(before);
        waited.map(|()| task)
    }

    /// The pid of the task, as this process sees it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Has it do something, and waits for that. What it traces it must go on tracing: threads that were seized in one
    /// turn are of use in other turns, and nowhere else. Descriptors that it opens must not leave it.
    ///
    /// # Errors
    ///
    /// That the task was killed: nothing was done, or nobody knows what.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> io::Result<T> {
        /// # Safety
        ///
        /// `job` must point at a `Job<F, T>` that nobody else touches.
        unsafe fn take<F: FnOnce() -> T, T>(job: *mut ()) {
            // SAFETY: as promised.
            let job = unsafe { &mut *job.cast::<Job<F, T>>() };
            if let Some(body) = job.body.take() {
                job.outcome = Some(catch_unwind(AssertUnwindSafe(body)));
            }
        }
        struct Job<F, T> {
            body: Option<F>,
            outcome: Option<std::thread::Result<T>>,
        }
        fn taker<F: FnOnce() -> T, T>(_: &Job<F, T>) -> Take {
            take::<F, T>
        }
        let mut job = Job { body: Some(body), outcome: None };
        let taker = taker(&job);
        // A handler would run on this thread while the task has its thread-local storage.
        let before = block(u64::MAX);
        // SAFETY: it is our turn, so the task does not look at it.
        unsafe { *self.desk.job.get() = (taker, (&raw mut job).cast()) };
        self.desk.give(TASKS);
        let waited = self.wait_for_turn();
        set_mask(before);
        waited?;
        match job.outcome {
            Some(Ok(outcome)) => Ok(outcome),
            Some(Err(panic)) => resume_unwind(panic),
            None => Err(io::Error::other("the task that was to do it did not")),
        }
    }

    fn wait_for_turn(&self) -> io::Result<()> {
        loop {
            let seen = self.desk.turn.load(Ordering::Acquire);
            if seen == MAKERS {
                return Ok(());
            }
            let moment = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            futex(&self.desk.turn, libc::FUTEX_WAIT, seen, &raw const moment);
            // SAFETY: the kernel writes nothing.
            let ended = unsafe { libc::waitpid(self.pid, ptr::null_mut(), libc::__WALL | libc::WNOHANG) } == self.pid;
            if ended && self.desk.turn.load(Ordering::Acquire) != MAKERS {
                self.desk.turn.store(OVER, Ordering::Release);
                return Err(io::Error::other("somebody killed the task that was to do it"));
            }
        }
    }
}

impl Drop for SurvivorTask {
    fn drop(&mut self) {
        if self.desk.turn.load(Ordering::Acquire) != OVER {
            self.desk.give(OVER);
            // SAFETY: the kernel writes nothing.
            while unsafe { libc::waitpid(self.pid, ptr::null_mut(), libc::__WALL) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

impl Desk {
    fn give(&self, turn: u32) {
        self.turn.store(turn, Ordering::Release);
        futex(&self.turn, libc::FUTEX_WAKE, 1, ptr::null());
    }
}

/// # Safety
///
/// None is needed.
unsafe fn nothing(_: *mut ()) {}

/// Waits for a word, or wakes the one that waits. Failures are no matter, and go nowhere: the place of error numbers is
/// shared by two that run at once here.
fn futex(word: &AtomicU32, what: i32, value: u32, limit: *const libc::timespec) {
    // SAFETY: the word lives as long as the call; the limit is null or a time. A system call changes nothing but what
    // is named.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") libc::SYS_futex => _, in("rdi") word.as_ptr(),
            in("rsi") u64::from((what | libc::FUTEX_PRIVATE_FLAG) as u32), in("rdx") u64::from(value), in("r10") limit,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
}

/// The task's life.
extern "C" fn live(desk: *mut libc::c_void) -> i32 {
    // SAFETY: the maker keeps it until it has seen our end; should it be gone, its memory is not.
    let desk = unsafe { &*desk.cast::<Desk>() };
    // SAFETY: plain system calls; the handler uses nothing that a lock guards. The structure's zeroes mean "nothing".
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = alone as *const () as usize;
        libc::sigaction(ALONE, &raw const action, ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, ALONE);
        libc::prctl(libc::PR_SET_NAME, desk.name.as_ptr());
        // What a terminal or a shell kills together with the maker does not reach it.
        libc::setsid();
        // Locks that the maker holds must end with it, and so must its sockets.
        libc::close_range(3, u32::MAX, 0);
        if libc::getppid() != desk.maker {
            libc::_exit(0);
        }
    }
    set_mask(!bit(ALONE));
    desk.give(MAKERS);
    loop {
        match desk.turn.load(Ordering::Acquire) {
            TASKS => {
                // SAFETY: it is our turn, and the maker has put down what belongs together.
                unsafe {
                    let (take, job) = *desk.job.get();
                    take(job);
                }
                desk.give(MAKERS);
            }
            OVER => {
                // SAFETY: exiting touches nothing; what the maker has to do at its end is not done here.
                unsafe { libc::_exit(0) }
            }
            seen => futex(&desk.turn, libc::FUTEX_WAIT, seen, ptr::null()),
        }
    }
}

/// The maker is no more.
extern "C" fn alone(_: i32) {
    trace::pending_undo::put_back_all();
    // SAFETY: exiting touches nothing. What is traced still runs on.
    unsafe { libc::_exit(0) }
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Blocks signals; those that were blocked before.
fn block(signals: u64) -> u64 {
    change_mask(libc::SIG_BLOCK, signals)
}

fn set_mask(signals: u64) {
    change_mask(libc::SIG_SETMASK, signals);
}

fn change_mask(how: i32, signals: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel reads and writes eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const signals, &raw mut before, SIGNAL_SET) };
    before
}

/// While there is one, a task hears of its maker's end only later: what is done meanwhile is done as a whole. It must
/// be short, and take no lock that others may hold, which allocating does.
#[derive(Debug)]
pub struct Undivided {
    before: u64,
    _here: PhantomData<*const ()>,
}

impl Undivided {
    /// Begins to hold the signal back, until the value is dropped.
    pub fn begin() -> Self {
        Self { before: block(bit(ALONE)), _here: PhantomData }
    }
}

impl Drop for Undivided {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Memory for a task's calls, with a page below it that nobody may touch.
#[derive(Debug)]
struct Stack(*mut libc::c_void);

impl Stack {
    const LENGTH: usize = 2 << 20;
    const PAGE: usize = 4096;

    fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a new mapping, where the kernel likes.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), Self::LENGTH, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(start);
        // SAFETY: the mapping's own first page.
        if unsafe { libc::mprotect(start, Self::PAGE, libc::PROT_NONE) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    }

    /// Where it begins: it grows downwards.
    fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_byte_add(Self::LENGTH)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and the task on it has ended.
        unsafe { libc::munmap(self.0, Self::LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn it_does_what_it_is_told_in_the_same_memory_and_in_another_process() {
        let task = SurvivorTask::new(c"test").unwrap();
        let mut words = vec!["one".to_owned()];
        let pid = task.run(|| words.push("two".into())).and_then(|()| task.run(std::process::id)).unwrap() as i32;
        assert_eq!(words, ["one", "two"]);
        assert_eq!(pid, task.pid());
        assert_ne!(pid, std::process::id() as i32);
        drop(task);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it has ended, and nobody has to ask for it");
    }

    #[test]
    fn a_panic_comes_to_who_asked() {
        let task = SurvivorTask::new(c"test").unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| task.run(|| panic!("on purpose"))));
        assert!(caught.is_err());
        assert_eq!(task.run(|| 7).unwrap(), 7);
    }

    #[test]
    fn one_that_is_killed_is_told_of() {
        let task = SurvivorTask::new(c"test").unwrap();
        let killed = || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        let error = task.run(killed).unwrap_err();
        assert!(error.to_string().contains("killed"), "{error}");
    }

    #[test]
    fn its_descriptors_are_its_own() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let task = SurvivorTask::new(c"test").unwrap();
        let there = task.run(|| std::path::Path::new(&format!("/proc/self/fd/{number}")).exists()).unwrap();
        assert!(!there);
    }

    /// The maker is a copy of this test's thread, which is killed while its task has another process's thread borrowed.
    #[test]
    fn what_it_borrowed_runs_on_when_its_maker_is_killed() {
        use crate::{
            trace::injected_thread::InjectedThread,
            trace::{Stop, Thread},
        };
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("mark");
        let script = format!("while [ ! -e {0}.now ]; do sleep 0.01; done; echo on >{0}", mark.display());
        let mut victim = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let pid = victim.id() as i32;
        let mut maker = std::process::Command::new("sleep");
        maker.arg("1000");
        let (seen, said) = std::io::pipe().unwrap();
        let said = std::os::fd::AsRawFd::as_raw_fd(&said);
        // SAFETY: the copy does nothing that depends on another thread of this process.
        unsafe {
            maker.pre_exec(move || {
                let task = SurvivorTask::new(c"test")?;
                task.run(|| {
                    let thread = Box::leak(Box::new(Thread::seize(pid).unwrap()));
                    thread.interrupt().unwrap();
                    assert_eq!(thread.wait().unwrap(), Stop::Trapped);
                    let before = thread.registers().unwrap();
                    let borrowed = InjectedThread::new(thread, before, thread.signal_mask().unwrap(), 0, 0).unwrap();
                    let astray = crate::trace::Registers { rip: 0, orig_rax: u64::MAX, ..before };
                    thread.set_registers(&astray).unwrap();
                    std::mem::forget(borrowed);
                })?;
                libc::write(said, b"x".as_ptr().cast(), 1);
                libc::kill(libc::getpid(), libc::SIGKILL);
                Ok(())
            });
        }
        let _ = maker.status();
        std::io::Read::read_exact(&mut { seen }, &mut [0]).unwrap();
        std::fs::write(mark.with_extension("now"), "").unwrap();
        assert!(victim.wait().unwrap().success(), "it ran on as it was");
        assert_eq!(std::fs::read_to_string(mark).unwrap(), "on\n");
    }
}

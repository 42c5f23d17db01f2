//! How long a thread of the usual kind runs before it has to let others (sched(7); settable for each since Linux 6.12).
//! One whose slice is shorter than that of the thread that runs when it wakes has its turn at once; what each gets in
//! all is the weights' affair.

use std::io;
use std::time::Duration;

/// The slice of a thread, as the scheduler will have it.
///
/// # Errors
///
/// ESRCH where there is no such thread; EOPNOTSUPP where the kernel has one slice for all (before 6.12) and for threads
/// that are not of the usual kind.
pub fn of(thread: i32) -> io::Result<Duration> {
    let now = read(thread)?;
    if !is_usual(&now) || now.sched_runtime == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(Duration::from_nanos(now.sched_runtime))
}

/// Gives a thread a slice, which what it starts from then on has too; `None` for the kernel's own. The kernel keeps it
/// between 0.1 and 100 ms. One before 6.12 does nothing, and threads that are not of the usual kind stay as they are.
///
/// # Errors
///
/// ESRCH where there is no such thread; EPERM for others' without CAP_SYS_NICE.
pub fn set(thread: i32, slice: Option<Duration>) -> io::Result<()> {
    let mut wanted = read(thread)?;
    if !is_usual(&wanted) {
        return Ok(());
    }
    wanted.sched_runtime = slice.map_or(0, |slice| u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX));
    // SAFETY: the kernel reads what the structure says is its size, and it outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const wanted, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn is_usual(attributes: &libc::sched_attr) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH].iter().any(|policy| u32::try_from(*policy) == Ok(attributes.sched_policy))
}

fn read(thread: i32) -> io::Result<libc::sched_attr> {
    const SIZE: usize = size_of::<libc::sched_attr>();
    // SAFETY: all of it are numbers, for which 0 is a value.
    let mut now: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most as many bytes as it is told, which is the structure's size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut now, SIZE, 0) };
    if result == 0 { Ok(now) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_kept_inherited_and_given_back() {
        std::thread::spawn(|| {
            let Ok(usual) = of(0) else {
                eprintln!("skipped: this kernel has one slice for all");
                return;
            };
            let short = Duration::from_micros(300);
            set(0, Some(short)).unwrap();
            assert_eq!((of(0).unwrap(), std::thread::spawn(|| of(0).unwrap()).join().unwrap()), (short, short));
            set(0, None).unwrap();
            assert_eq!(of(0).unwrap(), usual);
        })
        .join()
        .unwrap();
        assert_eq!(set(i32::MAX, None).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}

//! Calls that change the machine for everybody, made so that the kernel refuses them in any case: what it says shows
//! whether it has looked at what was asked, or whether a filter did before. For tests of such filters.

use std::io;

/// What each of them answers.
pub fn tried() -> Vec<(&'static str, io::Error)> {
    let none = std::ptr::null::<libc::c_void>();
    let wrong_time = libc::timeval { tv_sec: 0, tv_usec: -1 };
    // SAFETY: none of these can succeed: there is no such file, process, magic number, time or operation, and no memory
    // at the addresses that are read. None is written to.
    unsafe {
        let answers: [(&str, &dyn Fn() -> i64); 8] = [
            ("init_module", &|| libc::syscall(libc::SYS_init_module, none, 0, none)),
            ("kexec_load", &|| libc::syscall(libc::SYS_kexec_load, 0, 1_u64 << 40, none, 0)),
            ("reboot", &|| libc::syscall(libc::SYS_reboot, 0, 0, 0, none)),
            ("swapoff", &|| libc::syscall(libc::SYS_swapoff, c"/proc/no such file".as_ptr())),
            ("settimeofday", &|| libc::syscall(libc::SYS_settimeofday, &raw const wrong_time, none)),
            ("ptrace", &|| libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, 0, none, none)),
            ("perf_event_open", &|| libc::syscall(libc::SYS_perf_event_open, none, 0, -1, -1, 0)),
            ("keyctl", &|| libc::syscall(libc::SYS_keyctl, -1)),
        ];
        answers
            .into_iter()
            .map(|(name, call)| {
                (name, {
                    call();
                    io::Error::last_os_error()
                })
            })
            .collect()
    }
}

//! Pseudo-terminals as the kernel keeps them (ioctl_tty(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of `struct termios2`: four words of flags, the line discipline, 19 characters, two speeds.
pub const SETTINGS: usize = 44;

/// TCGETS2, `_IOR('T', 0x2A, struct termios2)`.
const TCGETS2: libc::c_ulong = 0x802c_542a;
/// TIOCGPTN, `_IOR('T', 0x30, unsigned int)`.
const TIOCGPTN: libc::c_ulong = 0x8004_5430;
/// TIOCGPKT, `_IOR('T', 0x38, int)`.
const TIOCGPKT: libc::c_ulong = 0x8004_5438;

/// The settings of a terminal, by any of its ends.
///
/// # Errors
///
/// ENOTTY where the descriptor is no terminal.
pub fn settings(terminal: impl AsFd) -> io::Result<[u8; SETTINGS]> {
    let mut settings = [0; SETTINGS];
    // SAFETY: the kernel writes as many bytes as the number of the request says, which are there.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), TCGETS2, settings.as_mut_ptr()) };
    if result == 0 { Ok(settings) } else { Err(io::Error::last_os_error()) }
}

/// The number under which a pseudo-terminal's other end lies in /dev/pts, by its master.
///
/// # Errors
///
/// ENOTTY for what is no master.
pub fn number(master: impl AsFd) -> io::Result<u32> {
    word(master, TIOCGPTN)
}

/// Whether a master is in packet mode (TIOCPKT).
///
/// # Errors
///
/// ENOTTY for what is no master.
pub fn is_in_packet_mode(master: impl AsFd) -> io::Result<bool> {
    word(master, TIOCGPKT).map(|mode| mode != 0)
}

fn word(terminal: impl AsFd, request: libc::c_ulong) -> io::Result<u32> {
    let mut word = 0_u32;
    // SAFETY: both requests write one word.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), request, &raw mut word) };
    if result == 0 { Ok(word) } else { Err(io::Error::last_os_error()) }
}

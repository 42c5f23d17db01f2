//! What a call that is not supported is about, as far as its arguments say so: a path, a key, a group of processes. It
//! is told to people, and decides nothing.

use super::namespace::Entered;
use super::receiver::pid_of_descriptor;
use pando_kernel::seccomp::notify::Call;
use pando_kernel::trace::foreign_memory;

/// The longest path that is told.
const LONGEST: usize = 256;

/// Memory is there or not by the page.
const PAGE: u64 = 4096;

/// The object of a call by its name; nothing where there is none, or the call is one of many in one.
pub(super) fn of(call: &Call, name: &str) -> Option<String> {
    let path = |number: usize| text(call.pid, call.arguments[number]);
    let number = |number: usize| call.arguments[number] as i32;
    match name {
        "mount" | "mount_setattr" | "open_tree_attr" | "fspick" => path(1),
        "fsconfig" => path(3),
        "move_mount" => path(3),
        "umount" | "umount2" | "pivot_root" | "swapon" | "swapoff" | "acct" | "mq_open" | "mq_unlink" => path(0),
        "quotactl" => path(1),
        "sethostname" | "setdomainname" => path(0),
        "shmget" | "semget" | "msgget" => Some(format!("key {:#x}", number(0))),
        "kill" if number(0) == -1 => Some("all processes".to_owned()),
        "kill" if number(0) == 0 => Some("its process group".to_owned()),
        "kill" if number(0) < 0 => Some(format!("process group {}", number(0).unsigned_abs())),
        "kill" | "tkill" | "rt_sigqueueinfo" | "rt_tgsigqueueinfo" | "tgkill" => Some(format!("process {}", number(0))),
        "setns" => match Entered::by(call).ok()?? {
            Entered::OfProcess(pid) => Some(format!("process {pid}")),
            Entered::Namespace { link, .. } => Some(format!("namespace {}", link.display())),
        },
        "pidfd_getfd" => pid_of_descriptor(call.pid, number(0)).ok()?.map(|pid| format!("process {pid}")),
        _ => None,
    }
}

/// A text in a process's memory as it is told to people: no more of it than a bound, and nothing that drives a
/// terminal.
fn text(pid: i32, at: u64) -> Option<String> {
    let text = c_string(pid, at, LONGEST)?;
    Some(String::from_utf8_lossy(&text).escape_debug().to_string())
}

/// The bytes in a process's memory up to a closing zero, the end of the memory or a bound; nothing where there are
/// none.
pub(super) fn c_string(pid: i32, at: u64, most: usize) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < most && !found.contains(&0) {
        let from = at.checked_add(found.len() as u64)?;
        let left = (PAGE - from % PAGE).min((most - found.len()) as u64);
        match bytes(pid, from, left as usize) {
            Some(more) => found.extend(more),
            None => break,
        }
    }
    let end = found.iter().position(|byte| *byte == 0).unwrap_or(found.len());
    found.truncate(end);
    (!found.is_empty()).then_some(found)
}

fn bytes(pid: i32, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    foreign_memory::read(pid, at, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_at_its_zero_or_at_the_bound() {
        let me = std::process::id().cast_signed();
        let read = |bytes: &[u8]| text(me, bytes.as_ptr() as u64);
        assert_eq!(read(b"/mnt\x1b\0more"), Some("/mnt\\u{1b}".to_owned()));
        assert_eq!(read(b"\0"), None);
        assert_eq!(read(&[b'x'; 1000]).map(|text| text.len()), Some(LONGEST));
        assert_eq!(text(me, 16), None);
    }
}

//! What a process is kept from that others of its user are not. Whoever does something for a process's user, as a
//! server does, would do for a restrained process what the kernel keeps it from.

use super::read;
use crate::file::confined::{Links, Root};
use std::fs::read_link;
use std::io;

/// The namespaces in which a process could see, or be, something else than this one.
const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// What a process is kept from and this one is not, in words; nothing if it is as free as any other of its user's. What
/// has the pid must be looked at afterwards.
///
/// # Errors
///
/// ENOENT and ESRCH where it has gone.
pub fn of(pid: i32) -> io::Result<Option<String>> {
    for kind in NAMESPACES {
        let link = |process: &str| read_link(format!("/proc/{process}/ns/{kind}"));
        if link(&pid.to_string())? != link("self")? {
            return Ok(Some(format!("is in a namespace of its own ({kind})")));
        }
    }
    let own = std::process::id().cast_signed();
    let root = |pid: i32| Root::of_process(pid)?.place(c".", Links::Followed)?.about();
    let (its, ours) = (root(pid)?, root(own)?);
    if (its.st_dev, its.st_ino) != (ours.st_dev, ours.st_ino) {
        return Ok(Some("has a root directory of its own".to_owned()));
    }
    let (its, ours) = (read(pid, "status")?, read(own, "status")?);
    for (name, what) in [
        ("NoNewPrivs:", "has given up to gain privileges (no_new_privs)"),
        ("Seccomp:", "has a filter of system calls"),
    ] {
        if number(&its, name) > number(&ours, name) {
            return Ok(Some(what.to_owned()));
        }
    }
    let label = |pid: i32| read(pid, "attr/current").map(|text| text.trim_end_matches(['\0', '\n']).to_owned());
    let label = (label(pid).ok(), label(own).ok());
    Ok(match label {
        (Some(its), Some(ours)) if its != ours && !is_unconfined(&its) => Some(format!("is confined as {its:?}")),
        _ => None,
    })
}

/// The number in a line of a status.
fn number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Whether a label of AppArmor or of SELinux is that of who is not confined.
fn is_unconfined(label: &str) -> bool {
    label.is_empty() || label == "unconfined" || label.split(':').nth(2) == Some("unconfined_t")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_as_free_as_itself() {
        assert_eq!(of(std::process::id().cast_signed()).unwrap(), None);
        assert_eq!((number("A:\t1\nSeccomp:\t2\n", "Seccomp:"), number("", "Seccomp:")), (2, 0));
        let free = ["unconfined", "", "unconfined_u:unconfined_r:unconfined_t:s0"];
        assert!(free.iter().all(|label| is_unconfined(label)) && !is_unconfined("firefox (enforce)"));
    }
}

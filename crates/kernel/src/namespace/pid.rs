//! Processes as another pid namespace numbers them.

use crate::process;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// `NS_GET_PID_FROM_PIDNS`: `_IOR(0xb7, 6, int)`, since Linux 6.11.
const PID_FROM_NAMESPACE: libc::c_ulong = 0x8004_b706;

/// The pid namespace that a process is in.
#[derive(Debug)]
pub struct PidNamespace {
    /// As its link under /proc/PID/ns reads.
    link: PathBuf,
    /// `None` for this process's own.
    foreign: Option<Foreign>,
}

#[derive(Debug)]
struct Foreign {
    namespace: File,
    /// How many namespaces, each in the one before, lead to it from this one.
    depth: usize,
}

impl PidNamespace {
    /// The pid namespace that a process is in.
    ///
    /// # Errors
    ///
    /// ENOENT where the process has gone.
    pub fn of(pid: i32) -> io::Result<Self> {
        let path = format!("/proc/{pid}/ns/pid");
        let link = std::fs::read_link(&path)?;
        if std::fs::read_link("/proc/self/ns/pid")? == link {
            return Ok(Self { link, foreign: None });
        }
        let namespace = File::open(&path)?;
        let depth = numbers(pid, "NSpid:")?.len().saturating_sub(1);
        Ok(Self { link, foreign: Some(Foreign { namespace, depth }) })
    }

    /// The pid here of the process or thread with a number there; `None` if there is none. A process that ends and
    /// another that takes its number cannot be told apart by this.
    pub fn here(&self, number: i32) -> Option<i32> {
        let Some(foreign) = &self.foreign else { return Some(number) };
        // SAFETY: the kernel takes the number as it is, and touches no memory.
        let found = unsafe { libc::ioctl(foreign.namespace.as_raw_fd(), PID_FROM_NAMESPACE, number) };
        if found > 0 {
            return Some(found);
        }
        let is_older = io::Error::last_os_error().raw_os_error() == Some(libc::ENOTTY);
        if is_older { self.members("NSpid:", number).next() } else { None }
    }

    /// The pids here of the processes in the group that has a number there.
    ///
    /// # Errors
    ///
    /// That the processes cannot be listed.
    pub fn in_group(&self, number: i32) -> io::Result<Vec<i32>> {
        let groups: Vec<i32> = match &self.foreign {
            None => vec![number],
            Some(_) => self.members("NSpgid:", number).filter_map(|pid| process::group(pid).ok()).collect(),
        };
        let is_member = |pid: &i32| process::group(*pid).is_ok_and(|group| groups.contains(&group));
        Ok(process::all()?.into_iter().filter(is_member).collect())
    }

    /// Processes of this namespace whose line of /proc/PID/status has a number for it.
    fn members(&self, line: &'static str, number: i32) -> impl Iterator<Item = i32> {
        let depth = self.foreign.as_ref().map_or(0, |foreign| foreign.depth);
        let is_member = move |pid: &i32| {
            std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|link| link == self.link)
                && numbers(*pid, line).is_ok_and(|numbers| numbers.get(depth) == Some(&number))
        };
        process::all().unwrap_or_default().into_iter().filter(is_member)
    }
}

/// Its own number in the innermost namespace that it is in.
///
/// # Errors
///
/// ENOENT where the process has gone; InvalidData where the kernel does not tell.
pub fn innermost(pid: i32) -> io::Result<i32> {
    numbers(pid, "NSpid:")?.last().copied().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The numbers of a line of /proc/PID/status, that of this namespace first.
fn numbers(pid: i32, line: &str) -> io::Result<Vec<i32>> {
    let status = process::read(pid, "status")?;
    let rest = status.lines().find_map(|found| found.strip_prefix(line)).unwrap_or_default();
    Ok(rest.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn in_its_own_namespace_a_number_is_the_pid() {
        let me = std::process::id().cast_signed();
        let own = PidNamespace::of(me).unwrap();
        assert_eq!((own.here(me), innermost(me).is_ok()), (Some(me), true));
        assert!(own.in_group(process::group(me).unwrap()).unwrap().contains(&me));
    }

    /// The first process of a new namespace; `None` where none can be made.
    fn elsewhere() -> Option<(Child, i32)> {
        let mut child = Command::new("unshare")
            .args(["-p", "-f", "--kill-child", "sleep", "100"])
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        for _ in 0..200 {
            let parent = child.id().cast_signed();
            let of_it = |pid: &i32| {
                process::describe(*pid).is_ok_and(|found| found.parent == parent && found.command.starts_with("sleep"))
            };
            if let Some(first) = process::all().unwrap().into_iter().find(of_it) {
                return Some((child, first));
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        None
    }

    #[test]
    fn another_namespaces_numbers_lead_to_its_processes() {
        let Some((mut child, first)) = elsewhere() else {
            eprintln!("skipped: a pid namespace needs root");
            return;
        };
        let namespace = PidNamespace::of(first).unwrap();
        let found =
            (namespace.here(1), namespace.here(77), namespace.members("NSpid:", 1).next(), innermost(first).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (Some(first), None, Some(first), 1));
    }
}

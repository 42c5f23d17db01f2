//! Captures POSIX message queues (mq_overview(7)): every one of the ipc namespace, with what waits in it, whether or
//! not a process has it open.

use crate::capture::sysv::inside;
use crate::image::ipc::{LONGEST_MESSAGE, MOST_MESSAGES, MOST_QUEUES};
use crate::image::namespace_kind::IPC;
use crate::image::{FileKind, Image, Queue};
use crate::inspect::credentials::IdMaps;
use crate::inspect::descriptors::{Found, Outside, is, supplied};
use crate::inspect::process_tree::Member;
use crate::refusal::Refusal;
use pando_kernel::{CallError, Context, ipc::mqueue};
use rustix::fs::{FileType, Mode, OFlags};
use std::io::{self, Read};
use std::os::fd::OwnedFd;

/// The queues of an ipc namespace.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Their file system, and its root; none where the kernel has no queues.
    root: Option<[OwnedFd; 2]>,
    device: u64,
    /// Whether the namespace is our own: what is there is not the guest's.
    ours: bool,
}

impl Queues {
    /// Those of the namespace that a path leads to.
    pub(crate) fn of(at: &str) -> Result<Self, CallError> {
        let what = || "looking for message queues".to_owned();
        let ours = IPC.is_ours(at)?;
        let root = inside(at, || match mqueue::all() {
            Ok(root) => Ok(Some(root)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error).context(what),
        })?;
        let device = root
            .as_ref()
            .map(|[_, root]| rustix::fs::fstat(root))
            .transpose()
            .context(what)?
            .map_or(0, |stat| stat.st_dev);
        Ok(Self { root, device, ours })
    }

    /// The device that they are on, as /proc/PID/mountinfo has it.
    pub(crate) fn device(&self) -> String {
        format!("{}:{}", rustix::fs::major(self.device), rustix::fs::minor(self.device))
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> Result<bool, CallError> {
        self.each().map(|all| !all.is_empty()).context(|| "listing message queues".into())
    }

    /// Whether a descriptor is one.
    pub(crate) fn is_one(&self, found: &Found) -> bool {
        self.root.is_some() && found.stat.st_dev == self.device && is(found, FileType::RegularFile)
    }

    /// Each of them, open, by name.
    fn each(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let Some([_, root]) = self.root.as_ref().filter(|_| !self.ours) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for entry in rustix::fs::Dir::read_from(root)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                return Err(io::Error::other("a message queue's name is no text"));
            };
            if name == "." || name == ".." {
                continue;
            }
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            all.push((name.to_owned(), rustix::fs::openat(root, name, flags, Mode::empty())?));
        }
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(all)
    }

    /// Captures all of them. Their processes stand still.
    pub(crate) fn capture(&self, maps: &IdMaps) -> Result<Vec<Queue>, CallError> {
        let one = |(name, file): (String, OwnedFd)| {
            let what = || format!("reading the message queue /{name}");
            let (bytes, _) = told(&file).context(what)?;
            let (about, stat) = (mqueue::attributes(&file).context(what)?, rustix::fs::fstat(&file).context(what)?);
            Ok(Queue {
                messages: mqueue::messages(&file, bytes).context(what)?,
                mode: stat.st_mode & 0o7777,
                owner: (maps.user(stat.st_uid).unwrap_or(0), maps.group(stat.st_gid).unwrap_or(0)),
                capacity: about.capacity,
                longest: about.longest,
                name,
            })
        };
        self.each().context(|| "listing message queues".into())?.into_iter().map(one).collect()
    }

    /// The queue of a descriptor, in an image that has all of them.
    pub(crate) fn kind(&self, found: &Found, image: &Image) -> Result<FileKind, CallError> {
        let name = found.target.rsplit('/').next().unwrap_or_default();
        let queue = image.queues.iter().position(|one| one.name == name);
        let queue = queue.ok_or(io::Error::from(io::ErrorKind::NotFound));
        Ok(FileKind::Queue { queue: queue.context(|| format!("reading the message queue {}", found.target))? })
    }

    /// What stands in the way.
    pub(crate) fn objections(
        &self,
        members: &[Member],
        all: &[(&Member, Vec<Found>)],
        outside: &[Outside],
    ) -> Result<Vec<Refusal>, CallError> {
        let mut refusals = Vec::new();
        for (member, found) in all.iter().flat_map(|(member, found)| found.iter().map(move |one| (*member, one))) {
            if !self.is_one(found) || supplied(found, outside).is_some() {
                continue;
            }
            let (kind, advice) = match (self.ours, found.stat.st_nlink) {
                (true, _) => ("a message queue of the host", "start the program in an ipc namespace of its own"),
                (false, 0) => ("a message queue that was unlinked", "close it"),
                _ => continue,
            };
            let kind = format!("{kind} ({})", found.target);
            let (pid, name) = (member.pid, member.name.clone());
            refusals.push(Refusal { pid, name, descriptor: Some(found.number), kind, advice });
        }
        let (pid, process) = members.first().map_or((1, String::new()), |member| (member.pid, member.name.clone()));
        let what = || "looking at message queues".to_owned();
        let each = self.each().context(what)?;
        let mut refuse = |kind: String, advice| {
            refusals.push(Refusal { pid, name: process.clone(), descriptor: None, kind, advice });
        };
        if each.len() > MOST_QUEUES {
            refuse(format!("{} message queues, more than a new system takes", each.len()), "unlink some");
        }
        for (name, file) in each {
            let (_, awaited) = told(&file).context(what)?;
            let about = mqueue::attributes(&file).context(what)?;
            if awaited {
                refuse(
                    format!("the message queue /{name}, of which it wants to be told (mq_notify)"),
                    "have it wait instead",
                );
            }
            if about.capacity > MOST_MESSAGES || about.longest > LONGEST_MESSAGE {
                let kind = format!("the message queue /{name}, which takes more than a new system lets it");
                refuse(kind, "make it for at most 10 messages of 8192 bytes");
            }
        }
        Ok(refusals)
    }
}

/// What reading a queue's file tells: how many bytes wait, and whether somebody is to be told of the next message.
fn told(file: &OwnedFd) -> io::Result<(usize, bool)> {
    let mut text = String::new();
    std::fs::File::from(file.try_clone()?).take(256).read_to_string(&mut text)?;
    parse(&text).ok_or(io::Error::from(io::ErrorKind::InvalidData))
}

/// `QSIZE:129        NOTIFY:2     SIGNO:0     NOTIFY_PID:8260`
pub(crate) fn parse(text: &str) -> Option<(usize, bool)> {
    let number =
        |key: &str| text.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.parse::<usize>().ok());
    Some((number("QSIZE:")?, number("NOTIFY_PID:")? != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_queues_file_tells_is_read() {
        let text = "QSIZE:129        NOTIFY:2     SIGNO:0     NOTIFY_PID:8260  \n";
        assert_eq!(parse(text), Some((129, true)));
        assert_eq!(parse(&text.replace("8260", "0")), Some((129, false)));
        assert_eq!(parse("QSIZE:"), None);
    }
}

//! Ipc namespaces of a process's own (ipc_namespaces(7)): a clone has them again where nothing is in them. What is in the first process's is another matter: see
//! `sysv` and `queues`.

use crate::image::{Image, Process};
use crate::objects::Slots;
use crate::proc_file;
use crate::queues::Queues;
use crate::refusal::Refusal;
use crate::script::{Chapter, Writer};
use crate::staging::AT_FDCWD;
use crate::sysv;
use crate::tree::Member;
use pando_kernel::CallError;

const NAMESPACE: &str = "ns/ipc";
const OWN: &str = "/proc/self/ns/ipc";
const NEW: u64 = libc::CLONE_NEWIPC as u64;

/// The most of them.
pub(crate) const MOST: usize = 256;

/// Which there are, as /proc/PID/ns shows them, that of the first process first; and a process that is in each.
#[derive(Debug)]
pub(crate) struct Notes {
    known: Vec<(String, Member)>,
}

impl Notes {
    /// Of some processes below a first one. One that has gone meanwhile is in none.
    pub(crate) fn of<'a>(init: i32, members: impl IntoIterator<Item = &'a Member>) -> Result<Self, CallError> {
        let first = Member { outer: init, pid: 0, name: String::new(), state: 'S' };
        let mut known = vec![(proc_file::link(init, NAMESPACE)?, first)];
        for member in members.into_iter().filter(|member| member.state != 'Z') {
            let Ok(link) = proc_file::link(member.outer, NAMESPACE) else { continue };
            if known.iter().all(|(other, _)| *other != link) {
                known.push((link, member.clone()));
            }
        }
        Ok(Self { known })
    }

    /// How many there are beside the first process's.
    pub(crate) fn count(&self) -> usize {
        self.known.len() - 1
    }

    /// Which one a process is in; none if it is in that of the first process.
    pub(crate) fn of_process(&self, outer: i32) -> Result<Option<usize>, CallError> {
        let link = proc_file::link(outer, NAMESPACE)?;
        Ok(self.known.iter().position(|(known, _)| *known == link).and_then(|place| place.checked_sub(1)))
    }

    /// What is in them, which a clone's would not have. While processes stand still nobody waits for what was looked through to go: it goes with who looks.
    pub(crate) fn objections(&self, stopped: bool) -> Result<Vec<Refusal>, CallError> {
        const ADVICE: &str = "remove it (ipcrm, mq_unlink), or start the program in the guest's own ipc namespace";
        let mut refusals = Vec::new();
        for (number, (_, member)) in self.known.iter().enumerate().skip(1) {
            let held = match sysv::held(member.outer) {
                Ok(None) => queue(member.outer, stopped),
                held => held,
            };
            let kind = match held {
                _ if number > MOST => format!("more than {MOST} ipc namespaces"),
                Ok(Some(what)) => format!("{what} in an ipc namespace of its own"),
                Ok(None) => continue,
                // One that has ended meanwhile has nothing against it.
                Err(_) if proc_file::link(member.outer, NAMESPACE).is_err() => continue,
                Err(error) => return Err(error),
            };
            let (pid, name) = (member.pid, member.name.clone());
            refusals.push(Refusal { pid, name, descriptor: None, kind, advice: ADVICE });
        }
        Ok(refusals)
    }
}

fn queue(outer: i32, stopped: bool) -> Result<Option<&'static str>, CallError> {
    let queues = Queues::of(outer)?;
    let any = queues.any();
    if stopped {
        std::mem::forget(queues);
    }
    any.map(|any| any.then_some("a message queue"))
}

/// Writes the maker's steps: a namespace for each, and one to go back to.
pub(crate) fn make(writer: &mut Writer, image: &Image, slots: Slots) {
    if image.ipc_spaces == 0 {
        return;
    }
    let chapter = Writer::MAKING;
    let path = writer.string(OWN);
    let arguments = [AT_FDCWD, path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64];
    writer.open(chapter, "keeping the ipc namespace", libc::SYS_openat, &arguments, slots.ipc_space(None));
    for number in 0..image.ipc_spaces {
        writer.call(chapter, "making an ipc namespace", libc::SYS_unshare, &[NEW]);
        writer.open(chapter, "keeping an ipc namespace", libc::SYS_openat, &arguments, slots.ipc_space(Some(number)));
    }
    writer.call(chapter, "coming back from other ipc namespaces", libc::SYS_setns, &[slots.ipc_space(None), NEW]);
}

/// Writes a process's entering of its own, whosever it has been forked with. The first process of an image is in its own.
pub(crate) fn enter(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    if image.ipc_spaces > 0 && process.pid != image.init {
        let arguments = [slots.ipc_space(process.ipc_space), NEW];
        writer.call(chapter, "entering an ipc namespace", libc::SYS_setns, &arguments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_enters_its_own_and_nobody_where_there_is_but_one() {
        let mut image =
            Image { processes: vec![Process { pid: 2, ..Process::default() }], init: 1, ..Image::default() };
        let steps = |image: &Image| {
            let mut writer = Writer::new();
            let slots = Slots::of(image);
            make(&mut writer, image, slots);
            enter(&mut writer, Writer::MAKING, image, &image.processes[0], slots);
            format!("{:?}", writer.finish(1, 1, 0, 0)).lines().count()
        };
        assert_eq!(steps(&image), 0);
        image.ipc_spaces = 2;
        assert_eq!(steps(&image), 1 + 4 + 1 + 1);
    }
}

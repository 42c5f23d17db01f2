//! Ipc namespaces of a process's own (ipc_namespaces(7)): a clone has them again where nothing is in them. What is in the first process's is another matter: see
//! `sysv` and `queues`.

use crate::image::{Image, Process};
use crate::namespaces::IPC;
use crate::objects::Slots;
use crate::queues::Queues;
use crate::refusal::Refusal;
use crate::script::{Chapter, Writer};
use crate::sysv;
use crate::tree::Member;
use pando_kernel::CallError;

/// The most of them.
pub(crate) const MOST: usize = 256;

/// Those beside the first process's, as /proc/PID/ns shows them, and a process that is in each.
#[derive(Debug)]
pub(crate) struct Notes(Vec<(String, Member)>);

impl Notes {
    /// Of some processes below a first one. One that has gone meanwhile is in none.
    pub(crate) fn of<'a>(init: i32, members: impl IntoIterator<Item = &'a Member>) -> Result<Self, CallError> {
        let (home, mut others) = (IPC.of(init)?, Vec::<(String, Member)>::new());
        for member in members.into_iter().filter(|member| member.state != 'Z') {
            let Ok(link) = IPC.of(member.outer) else { continue };
            if link != home && others.iter().all(|(other, _)| *other != link) {
                others.push((link, member.clone()));
            }
        }
        Ok(Self(others))
    }

    /// How many there are beside the first process's.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Which one a process is in; none if it is in that of the first process.
    pub(crate) fn of_process(&self, outer: i32) -> Result<Option<usize>, CallError> {
        let link = IPC.of(outer)?;
        Ok(self.0.iter().position(|(other, _)| *other == link))
    }

    /// What is in them, which a clone's would not have. While processes stand still nobody waits for what was looked through to go: it goes with who looks.
    pub(crate) fn objections(&self, stopped: bool) -> Result<Vec<Refusal>, CallError> {
        const ADVICE: &str = "remove it (ipcrm, mq_unlink), or start the program in the guest's own ipc namespace";
        let mut refusals = Vec::new();
        for (number, (_, member)) in self.0.iter().enumerate() {
            let held = match sysv::held(member.outer) {
                Ok(None) => queue(member.outer, stopped),
                held => held,
            };
            let kind = match held {
                _ if number >= MOST => format!("more than {MOST} ipc namespaces"),
                Ok(Some(what)) => format!("{what} in an ipc namespace of its own"),
                Ok(None) => continue,
                // One that has ended meanwhile has nothing against it.
                Err(_) if IPC.of(member.outer).is_err() => continue,
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
    IPC.keep(writer, slots.ipc_space(None));
    for number in 0..image.ipc_spaces {
        IPC.make(writer);
        IPC.keep(writer, slots.ipc_space(Some(number)));
    }
    IPC.enter(writer, Writer::MAKING, slots.ipc_space(None));
}

/// Writes a process's entering of its own, whosever it has been forked with. The first process of an image is in its own.
pub(crate) fn enter(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    if image.ipc_spaces > 0 && process.pid != image.init {
        IPC.enter(writer, chapter, slots.ipc_space(process.ipc_space));
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

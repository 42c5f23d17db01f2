//! Captures a stopped tree of processes, all but its memory.

use crate::capture::descriptors::Notebook;
use crate::capture::epoll::Watched;
use crate::capture::findings::{Findings, Known};
use crate::capture::in_flight::Flight;
use crate::capture::nested::{Nested, capture_host_names};
use crate::capture::process::{fill, processors, read_areas, relatives};
use crate::capture::{aio, leases, networks, sysv, terminals, unix_socket, user_spaces};
use crate::image::{Image, MountChange, Process, mount};
use crate::inspect::credentials::IdMaps;
use crate::inspect::proc_file::{Lines, Stat};
use crate::inspect::{descriptors, process_tree};
use crate::refusal::{FreezeError, Refusal};
use crate::stop::seize::Stopped;
use crate::subject::Subject;
use pando_kernel::{CallError, Context};
use std::collections::{HashMap, HashSet};

/// Reads every process and what is in flight between them, except for which pages it has, which
/// [`crate::inspect::areas::find_pages`] tells, and their content. Parents come before children.
pub(crate) fn capture(
    subject: &Subject<'_>,
    stopped: &[Stopped],
    known: &Known<'_>,
    found: Findings,
) -> Result<(Image, Flight), FreezeError> {
    let Known { searched, ipc: kept, ahead, .. } = *known;
    let Subject { init, outside, in_memory, .. } = *subject;
    let mut image = Image { init: process_tree::number_inside(init), ..Image::default() };
    let maps = IdMaps::of(init)?;
    let Findings { mut areas, mut descriptors, told, nested, groups, flight: (mut flight, waiting), .. } = found;
    let spaces = &nested.mounts;
    let mut notebook = Notebook::new(init, &nested, searched, &kept.queues)?;
    image.queues = notebook.queues.capture(&maps)?;
    if let Some(number) = subject.console {
        terminals::console(init, number, &mut image)?;
    }
    image.host_names = capture_host_names(&nested.host_names)?;
    image.ipc_spaces = nested.ipc.all().len();
    image.net_spaces = networks::capture(&nested.networks, &nested.nets);
    image.net_settings = known.net_settings.to_vec();
    image.net_device = known.net_device.cloned();
    image.user_spaces = user_spaces::capture(&nested.users, &maps)?;
    if let Some(groups) = &groups {
        image.control_groups = groups.capture(&maps)?;
    }
    let mut watched = Watched::default();
    for process in stopped {
        let outer = process.member.outer;
        let (stat, status) = (Stat::read(outer, "")?, Lines::read(outer, "status")?);
        let mut captured = relatives(process, &stat, &status)?;
        if !process.threads.is_empty() {
            let mut areas = areas.remove(&outer).map_or_else(|| read_areas(outer, ahead), Ok)?;
            aio::capture(outer, told.get(&outer), &mut areas)?;
            // Whom it tells nothing of is asked.
            fill(&mut captured, (process, &areas), (&stat, &status), &maps, told.get(&outer))?;
            captured.areas = areas;
            spaces.translate(process.member.outer, &mut captured);
            nested.note(outer, &mut captured)?;
            if let Some(groups) = &groups {
                captured.control_group = image.control_groups.place(&groups.of_process(process.member.outer)?);
            }
            let found = descriptors.remove(&outer).map_or_else(|| descriptors::list(outer), Ok)?;
            notebook.contents.of_areas(process.member.outer, captured.pid, &mut captured.areas, &mut image)?;
            captured.descriptors = notebook.capture(&process.member, &found, outside, &mut image)?;
            captured.deleted_directory = notebook.contents.of_working_directory(outer, captured.pid, &mut image)?;
            captured.deleted_executable = notebook.contents.of_program(outer, &captured, &mut image)?;
            captured.leases = leases::capture(outer, (&found, &captured.descriptors), &image, &maps)?;
            captured.locks = found.iter().flat_map(descriptors::record_locks).collect();
            watched.note((outer, image.processes.len()), &found, &mut captured);
        }
        image.processes.push(captured);
    }
    let lost = watched.find_files(&mut image)?;
    if !lost.is_empty() {
        return Err(FreezeError::Refused(lost));
    }
    flight.capture(&waiting, &mut notebook, outside, &mut image)?;
    (image.mounts, image.shared_mounts) = spaces.first();
    notebook.contents.expect(image.mounts.iter().filter(|one| mount::is_made(one)).map(mount::path));
    for directory in in_memory.iter().filter(|path| !spaces.is_changed_at(path)) {
        notebook.contents.of_tree(directory, subject.own_files, &mut image)?;
    }
    own_mounts(&nested, (init, image.init), &mut notebook, &mut image)?;
    let lost = notebook.contents.objections();
    if !lost.is_empty() {
        let (pid, name) = stopped.first().map_or((0, String::new()), |one| (one.member.pid, one.member.name.clone()));
        let refusal = |(kind, advice)| Refusal { pid, name: name.clone(), descriptor: None, kind, advice };
        return Err(FreezeError::Refused(lost.into_iter().map(refusal).collect()));
    }
    image.keyed = sysv::capture(&kept.keys, init, &maps)?;
    terminals::sessions(&mut image, stopped);
    unix_socket::capture(init, &nested, &mut image, (notebook.places(), &mut flight))?;
    parents_first(&mut image.processes);
    leave_out_usual(&mut image.processes, init)?;
    Ok((image, flight))
}

/// What is mounted in each namespace, the first process's before the others, and what is in those that are in memory.
fn own_mounts(
    nested: &Nested,
    first: (i32, i32),
    notebook: &mut Notebook<'_>,
    image: &mut Image,
) -> Result<(), FreezeError> {
    let mut changes = std::mem::take(&mut image.mounts);
    complete(&mut changes, first, nested, notebook, image)?;
    image.mounts = changes;
    for (mut space, outer, pid) in nested.mounts.each() {
        complete(&mut space.changes, (outer, pid), nested, notebook, image)?;
        image.mount_spaces.push(space);
    }
    Ok(())
}

/// Says what is in file systems in memory, and which namespaces others are of. A process that sees them is known by its
/// pid here and inside.
fn complete(
    changes: &mut [MountChange],
    process: (i32, i32),
    nested: &Nested,
    notebook: &mut Notebook<'_>,
    image: &mut Image,
) -> Result<(), FreezeError> {
    for change in changes {
        match change {
            MountChange::Memory { path, contents, .. } => {
                *contents = notebook.contents.of_mount(process, path, image)?;
            }
            MountChange::Queues { space, device, .. } => *space = nested.queues_on(device).unwrap_or(0),
            MountChange::Devices { space, device, .. } => *space = nested.devices_on(device).unwrap_or(0),
            _ => {}
        }
    }
    Ok(())
}

/// Orders processes so that each comes before its children, and a subtree lies together.
fn parents_first(processes: &mut Vec<Process>) {
    let mut ordered: Vec<Process> = Vec::with_capacity(processes.len());
    let pids: HashSet<i32> = processes.iter().map(|process| process.pid).collect();
    let mut children: HashMap<i32, Vec<usize>> = HashMap::new();
    for (place, process) in processes.iter().enumerate() {
        // Whose parent is none of them is a child of nobody.
        let parent = if pids.contains(&process.parent) { process.parent } else { 0 };
        children.entry(parent).or_default().push(place);
    }
    let mut next = children.remove(&0).unwrap_or_default();
    next.reverse();
    while let Some(place) = next.pop() {
        let process = std::mem::take(&mut processes[place]);
        next.extend(children.remove(&process.pid).unwrap_or_default().into_iter().rev());
        ordered.push(process);
    }
    *processes = ordered;
}

/// Who may run where the first process may is not told of: a clone's may have others.
fn leave_out_usual(processes: &mut [Process], init: i32) -> Result<(), CallError> {
    let usual = processors(init).context(|| format!("asking where process {init} may run"))?;
    let threads = processes.iter_mut().flat_map(|process| &mut process.threads);
    for thread in threads.filter(|thread| thread.scheduling.processors == usual) {
        thread.scheduling.processors.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_first_and_subtrees_lie_together() {
        let process = |pid, parent| Process { pid, parent, ..Process::default() };
        let mut processes = vec![process(9, 2), process(2, 1), process(3, 1), process(5, 2), process(4, 3)];
        parents_first(&mut processes);
        let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [2, 9, 5, 3, 4]);
    }
}

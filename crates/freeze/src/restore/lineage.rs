//! Who forks whom in a clone.
//!
//! A process's parent and session cannot be chosen, they are inherited: the session from whoever forks it, as of then.
//! So a child that is in the session that its parent was born into is forked before the parent makes its own, others
//! after. An orphan whose session's leader lives is forked by a *ghost* below that leader; one whose leader has gone by
//! a ghost with the leader's pid. Ghosts end as soon as they have forked, and what they forked falls to the clone's
//! first process, as it once did.
//!
//! A first process that is one of the image is forked by nobody: it is there already, and forks itself who is in the
//! session that it leads and in none of their own. All others fall to it.

use crate::image::{Image, Process};
use crate::refusal::{FreezeError, Refusal};

/// A task that a clone forks, and what it forks in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Birth {
    /// Its pid.
    pub(crate) pid: i32,
    /// Which process it becomes, an index into [`Image::processes`]; a ghost becomes none.
    pub(crate) process: Option<usize>,
    /// Whether it makes a session.
    pub(crate) leads: bool,
    /// What it forks before it does.
    pub(crate) early: Vec<Birth>,
    /// What it forks after.
    pub(crate) late: Vec<Birth>,
}

/// A process whose place in the tree cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unplaced {
    /// Its pid.
    pub(crate) pid: i32,
}

/// All births of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    /// What the maker forks.
    pub(crate) roots: Vec<Birth>,
    /// The first process, if it is one of the image.
    pub(crate) first: Option<Birth>,
    /// The next pid that nothing uses: the maker's.
    pub(crate) maker: i32,
}

/// Decides who forks whom in a clone of an image.
pub(crate) fn births(image: &Image) -> Result<Family, Unplaced> {
    let mut plan = Plan { image, next_pid: 1 + highest_pid(image), ghosts: Vec::new() };
    let mut roots = Vec::new();
    let mut first = image.first().map(|index| Birth {
        pid: image.init,
        process: Some(index),
        leads: plan.leads(&image.processes[index]),
        ..Birth::default()
    });
    for (index, process) in image.processes.iter().enumerate() {
        if !plan.is_orphan(process) {
            continue;
        }
        if let Some(first) = first.as_mut().filter(|first| first.leads && process.session == first.pid) {
            first.late.push(plan.birth(index, process.session)?);
        } else if plan.leads(process) || plan.session(process) == 0 {
            let birth = plan.birth(index, 0)?;
            roots.push(birth);
        } else {
            plan.ghosts.push(index);
        }
    }
    while let Some(index) = plan.ghosts.pop() {
        let session = plan.session(&image.processes[index]);
        let birth = plan.birth(index, session)?;
        let leader = image.processes.iter().position(|process| process.pid == session);
        match leader {
            Some(leader) => {
                let ghost = Birth { pid: plan.next_pid, late: vec![birth], ..Birth::default() };
                plan.next_pid += 1;
                let place = find(&mut roots, leader)
                    .or_else(|| find(first.as_mut_slice(), leader))
                    .ok_or(Unplaced { pid: image.processes[index].pid })?;
                place.late.push(ghost);
            }
            None => match roots.iter_mut().find(|root| root.pid == session) {
                Some(ghost) => ghost.late.push(birth),
                None => roots.push(Birth { pid: session, leads: true, late: vec![birth], ..Birth::default() }),
            },
        }
    }
    Ok(Family { roots, first, maker: plan.next_pid })
}

fn highest_pid(image: &Image) -> i32 {
    let threads = image.processes.iter().flat_map(|process| process.threads.iter().map(|thread| thread.tid));
    let ids = image.processes.iter().flat_map(|process| [process.pid, process.session, process.group]);
    threads.chain(ids).max().unwrap_or(image.init).max(image.init)
}

fn find(births: &mut [Birth], process: usize) -> Option<&mut Birth> {
    births.iter_mut().find_map(|birth| {
        if birth.process == Some(process) {
            return Some(birth);
        }
        let Birth { early, late, .. } = birth;
        find(early, process).or_else(|| find(late, process))
    })
}

struct Plan<'a> {
    image: &'a Image,
    next_pid: i32,
    /// Orphans that are yet to be placed.
    ghosts: Vec<usize>,
}

impl Plan<'_> {
    fn is_orphan(&self, process: &Process) -> bool {
        let has_parent = || self.image.processes.iter().any(|other| other.pid == process.parent);
        process.pid != self.image.init && (process.parent == self.image.init || !has_parent())
    }

    fn leads(&self, process: &Process) -> bool {
        process.session == process.pid
    }

    /// A session that a first process leads counts as one of the outside where that is not of the image: a clone's
    /// makes its own.
    fn session(&self, process: &Process) -> i32 {
        let foreign = process.session == self.image.init && self.image.first().is_none();
        if foreign { 0 } else { process.session }
    }

    /// The birth of a process into a session, with all below it.
    fn birth(&mut self, index: usize, into: i32) -> Result<Birth, Unplaced> {
        let image = self.image;
        let process = &image.processes[index];
        let own = self.session(process);
        let leads = self.leads(process);
        if !leads && own != into {
            return Err(Unplaced { pid: process.pid });
        }
        let mut birth = Birth { pid: process.pid, process: Some(index), leads, ..Birth::default() };
        for (child, below) in image.processes.iter().enumerate().filter(|(_, below)| below.parent == process.pid) {
            let session = self.session(below);
            if self.leads(below) || session == own {
                let late = self.birth(child, own)?;
                birth.late.push(late);
            } else {
                let early = self.birth(child, into)?;
                birth.early.push(early);
            }
        }
        Ok(birth)
    }
}

impl Birth {
    /// The processes of this birth and all below, in the order in which they are forked.
    pub(crate) fn processes(&self) -> Vec<usize> {
        let below = self.early.iter().chain(&self.late).flat_map(Birth::processes);
        self.process.into_iter().chain(below).collect()
    }
}

/// Who forks whom in a clone of an image.
pub(crate) fn family(image: &Image) -> Result<Family, FreezeError> {
    let refused = |unplaced: Unplaced| {
        FreezeError::Refused(vec![Refusal {
            pid: unplaced.pid,
            name: name_of(image, unplaced.pid),
            descriptor: None,
            kind: "it is in a session that none of its ancestors was in".into(),
            advice: "start it again",
        }])
    };
    births(image).map_err(refused)
}

fn name_of(image: &Image, pid: i32) -> String {
    let thread = image.processes.iter().find(|process| process.pid == pid).and_then(|process| process.threads.first());
    thread.map(|thread| String::from_utf8_lossy(&thread.name).into_owned()).unwrap_or_default()
}

/// The paths of all programs that the processes run.
pub(crate) fn executables(image: &Image) -> Vec<String> {
    let mut paths: Vec<String> = image.processes.iter().map(|process| process.executable.clone()).collect();
    paths.retain(|path| !path.is_empty());
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(processes: &[(i32, i32, i32)]) -> Image {
        let process = |&(pid, parent, session)| Process { pid, parent, session, ..Process::default() };
        Image { processes: processes.iter().map(process).collect(), init: 1, ..Image::default() }
    }

    #[test]
    fn a_child_of_the_old_session_is_forked_early() {
        let births = births(&image(&[(2, 1, 2), (3, 2, 3), (4, 3, 2), (5, 3, 3)])).unwrap().roots;
        let below = &births[0].late[0];
        assert_eq!((below.early[0].pid, below.late[0].pid), (4, 5));
        assert_eq!(births[0].processes(), [0, 1, 2, 3]);
    }

    #[test]
    fn orphans_are_forked_by_ghosts() {
        let Family { roots: births, maker: next, .. } = births(&image(&[(2, 1, 2), (7, 1, 2), (9, 1, 8)])).unwrap();
        assert_eq!(births.len(), 2);
        let ghost = &births[0].late[0];
        assert_eq!((ghost.process, ghost.late[0].pid, ghost.pid), (None, 7, 10));
        let leader = &births[1];
        assert_eq!((leader.pid, leader.process, leader.leads, leader.late[0].pid), (8, None, true, 9));
        assert_eq!(next, 11);
    }

    #[test]
    fn a_first_process_of_the_image_forks_who_is_in_its_session_alone() {
        let family = births(&image(&[(1, 0, 1), (2, 1, 2), (3, 1, 1), (4, 3, 4), (5, 1, 4), (6, 1, 9)])).unwrap();
        let pids = |births: &[Birth]| births.iter().map(|birth| birth.pid).collect::<Vec<_>>();
        assert_eq!(pids(&family.roots), [2, 9]);
        let first = family.first.unwrap();
        assert_eq!((first.process, first.leads, pids(&first.late)), (Some(0), true, vec![3]));
        // The orphan of a session whose leader is below the first process.
        assert_eq!(pids(&first.late[0].late[0].late), [10]);
        assert_eq!(pids(&first.late[0].late[0].late[0].late), [5]);
    }

    #[test]
    fn a_session_that_no_ancestor_was_in_cannot_be_had() {
        assert_eq!(births(&image(&[(2, 1, 2), (3, 1, 3), (4, 3, 2)])), Err(Unplaced { pid: 4 }));
    }
}

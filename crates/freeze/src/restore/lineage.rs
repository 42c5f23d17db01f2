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
use std::collections::{HashMap, HashSet};

/// A task that a clone forks, and what it forks in turn: places in [`Family::births`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Birth {
    /// Its pid.
    pub(crate) pid: i32,
    /// Which process it becomes, an index into [`Image::processes`]; a ghost becomes none.
    pub(crate) process: Option<usize>,
    /// Whether it makes a session.
    pub(crate) leads: bool,
    /// What it forks before it does.
    pub(crate) early: Vec<usize>,
    /// What it forks after.
    pub(crate) late: Vec<usize>,
}

/// How many processes may lie below one another. Each that forks has the memory of all below it mapped until they are
/// there: what the kernel keeps of that grows with the square.
pub(crate) const DEEPEST: usize = 1024;

/// A process whose place in the tree cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unplaced {
    /// The process of this pid is in a session that none of its ancestors was in.
    Session(i32),
    /// More than [`DEEPEST`] lie above the process of this pid.
    Depth(i32),
}

/// All births of an image. They name one another by their places: a program may have a line of as many processes as it
/// may have processes, and what calls itself for each child had no stack for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    births: Vec<Birth>,
    /// What the maker forks.
    pub(crate) roots: Vec<usize>,
    /// The first process, if it is one of the image.
    pub(crate) first: Option<usize>,
    /// The next pid that nothing uses: the maker's.
    pub(crate) maker: i32,
}

impl Family {
    /// The birth of a place.
    pub(crate) fn birth(&self, place: usize) -> &Birth {
        &self.births[place]
    }

    /// A birth and all below it, in the order in which they are forked: each with whoever forks it, of these.
    pub(crate) fn all_of(&self, place: usize) -> Vec<(usize, Option<usize>)> {
        let mut all = Vec::new();
        let mut next = vec![(place, None)];
        while let Some((place, forker)) = next.pop() {
            let birth = self.birth(place);
            all.push((place, forker));
            next.extend(birth.early.iter().chain(&birth.late).rev().map(|child| (*child, Some(place))));
        }
        all
    }

    /// The processes of a birth and of all below it, in the order in which they are forked.
    pub(crate) fn processes(&self, place: usize) -> Vec<usize> {
        self.all_of(place).into_iter().filter_map(|(place, _)| self.birth(place).process).collect()
    }

    fn add(&mut self, birth: Birth) -> usize {
        self.births.push(birth);
        self.births.len() - 1
    }
}

/// Decides who forks whom in a clone of an image.
pub(crate) fn births(image: &Image) -> Result<Family, Unplaced> {
    let mut plan = Plan::of(image);
    let first = image.first().map(|index| {
        let leads = plan.leads(&image.processes[index]);
        plan.family.add(Birth { pid: image.init, process: Some(index), leads, ..Birth::default() })
    });
    plan.family.first = first;
    for (index, process) in image.processes.iter().enumerate() {
        if !plan.is_orphan(process) {
            continue;
        }
        let its_first = first.filter(|_| process.session == image.init);
        if let Some(first) = its_first.filter(|first| plan.family.birth(*first).leads) {
            let birth = plan.birth(index, process.session)?;
            plan.family.births[first].late.push(birth);
        } else if plan.leads(process) || plan.session(process) == 0 {
            let birth = plan.birth(index, 0)?;
            plan.family.roots.push(birth);
        } else {
            plan.ghosts.push(index);
        }
    }
    plan.place_orphans()?;
    Ok(Family { maker: plan.next_pid, ..plan.family })
}

fn highest_pid(image: &Image) -> i32 {
    let threads = image.processes.iter().flat_map(|process| process.threads.iter().map(|thread| thread.tid));
    let ids = image.processes.iter().flat_map(|process| [process.pid, process.session, process.group]);
    threads.chain(ids).max().unwrap_or(image.init).max(image.init)
}

struct Plan<'a> {
    image: &'a Image,
    /// The session that counts as one of the outside.
    foreign: Option<i32>,
    pids: HashSet<i32>,
    /// The children of each process, by its pid.
    children: HashMap<i32, Vec<usize>>,
    family: Family,
    next_pid: i32,
    /// Orphans that are yet to be placed.
    ghosts: Vec<usize>,
}

impl<'a> Plan<'a> {
    fn of(image: &'a Image) -> Self {
        let mut children: HashMap<i32, Vec<usize>> = HashMap::new();
        for (index, process) in image.processes.iter().enumerate() {
            children.entry(process.parent).or_default().push(index);
        }
        let pids = image.processes.iter().map(|process| process.pid).collect();
        let next_pid = 1 + highest_pid(image);
        let foreign = image.first().is_none().then_some(image.init);
        Self { image, foreign, pids, children, family: Family::default(), next_pid, ghosts: Vec::new() }
    }

    fn is_orphan(&self, process: &Process) -> bool {
        let has_parent = || self.pids.contains(&process.parent);
        process.pid != self.image.init && (process.parent == self.image.init || !has_parent())
    }

    fn leads(&self, process: &Process) -> bool {
        process.session == process.pid
    }

    /// A session that a first process leads counts as one of the outside where that is not of the image: a clone's
    /// makes its own.
    fn session(&self, process: &Process) -> i32 {
        if self.foreign == Some(process.session) { 0 } else { process.session }
    }

    /// The birth of a process into a session, with all below it.
    fn birth(&mut self, index: usize, into: i32) -> Result<usize, Unplaced> {
        let image = self.image;
        let top = self.family.births.len();
        let mut next = vec![(index, into, None, 0)];
        while let Some((index, into, forker, depth)) = next.pop() {
            let process = &image.processes[index];
            let (own, leads) = (self.session(process), self.leads(process));
            if !leads && own != into {
                return Err(Unplaced::Session(process.pid));
            }
            if depth >= DEEPEST {
                return Err(Unplaced::Depth(process.pid));
            }
            let place = self.family.add(Birth { pid: process.pid, process: Some(index), leads, ..Birth::default() });
            if let Some((forker, early)) = forker {
                let forker: &mut Birth = &mut self.family.births[forker];
                if early { &mut forker.early } else { &mut forker.late }.push(place);
            }
            for child in self.children.get(&process.pid).into_iter().flatten().rev() {
                let below = &image.processes[*child];
                let late = self.leads(below) || self.session(below) == own;
                next.push((*child, if late { own } else { into }, Some((place, !late)), depth + 1));
            }
        }
        Ok(top)
    }

    /// Has ghosts fork those that are in a session that neither the maker nor a first process leads.
    fn place_orphans(&mut self) -> Result<(), Unplaced> {
        let mut leaders = HashMap::new();
        let mut gone: HashMap<i32, usize> = HashMap::new();
        let mut noted = 0;
        while let Some(index) = self.ghosts.pop() {
            let process = &self.image.processes[index];
            let session = self.session(process);
            // Before its own: one that is below it cannot fork it.
            for (place, one) in self.family.births.iter().enumerate().skip(noted) {
                leaders.extend(one.process.map(|_| (one.pid, place)));
            }
            noted = self.family.births.len();
            let birth = self.birth(index, session)?;
            if self.pids.contains(&session) {
                let ghost = Birth { pid: self.next_pid, late: vec![birth], ..Birth::default() };
                self.next_pid += 1;
                let place = *leaders.get(&session).ok_or(Unplaced::Session(process.pid))?;
                let ghost = self.family.add(ghost);
                self.family.births[place].late.push(ghost);
            } else if let Some(ghost) = gone.get(&session) {
                self.family.births[*ghost].late.push(birth);
            } else {
                let ghost = Birth { pid: session, leads: true, late: vec![birth], ..Birth::default() };
                let ghost = self.family.add(ghost);
                self.family.roots.push(ghost);
                gone.insert(session, ghost);
            }
        }
        Ok(())
    }
}

/// Who forks whom in a clone of an image.
pub(crate) fn family(image: &Image) -> Result<Family, FreezeError> {
    let refused = |unplaced: Unplaced| {
        let (pid, kind) = match unplaced {
            Unplaced::Session(pid) => (pid, "it is in a session that none of its ancestors was in".to_owned()),
            Unplaced::Depth(pid) => (pid, format!("{DEEPEST} others are above it, each the child of the one before")),
        };
        let name = name_of(image, pid);
        FreezeError::Refused(vec![Refusal { pid, name, descriptor: None, kind, advice: "start it again" }])
    };
    births(image).map_err(refused)
}

fn name_of(image: &Image, pid: i32) -> String {
    let thread = image.processes.iter().find(|process| process.pid == pid).and_then(|process| process.threads.first());
    thread.map(|thread| String::from_utf8_lossy(&thread.name).into_owned()).unwrap_or_default()
}

/// The paths of all programs that the processes run, but for those that were deleted.
pub(crate) fn executables(image: &Image) -> Vec<String> {
    let there = image.processes.iter().filter(|process| process.deleted_executable.is_none());
    let mut paths: Vec<String> = there.map(|process| process.executable.clone()).collect();
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

    /// The pids of some births.
    fn pids(family: &Family, places: &[usize]) -> Vec<i32> {
        places.iter().map(|place| family.birth(*place).pid).collect()
    }

    /// What the last of some births forks late.
    fn late<'a>(family: &'a Family, places: &[usize]) -> &'a [usize] {
        &family.birth(*places.last().unwrap()).late
    }

    #[test]
    fn a_child_of_the_old_session_is_forked_early() {
        let family = births(&image(&[(2, 1, 2), (3, 2, 3), (4, 3, 2), (5, 3, 3)])).unwrap();
        let below = family.birth(late(&family, &family.roots)[0]);
        assert_eq!((pids(&family, &below.early), pids(&family, &below.late)), (vec![4], vec![5]));
        assert_eq!(family.processes(family.roots[0]), [0, 1, 2, 3]);
    }

    #[test]
    fn orphans_are_forked_by_ghosts() {
        let family = births(&image(&[(2, 1, 2), (7, 1, 2), (9, 1, 8)])).unwrap();
        assert_eq!(pids(&family, &family.roots), [2, 8]);
        let ghost = family.birth(late(&family, &family.roots[..1])[0]);
        assert_eq!((ghost.process, pids(&family, &ghost.late), ghost.pid), (None, vec![7], 10));
        let leader = family.birth(family.roots[1]);
        assert_eq!((leader.process, leader.leads, pids(&family, &leader.late)), (None, true, vec![9]));
        assert_eq!(family.maker, 11);
    }

    #[test]
    fn a_first_process_of_the_image_forks_who_is_in_its_session_alone() {
        let family = births(&image(&[(1, 0, 1), (2, 1, 2), (3, 1, 1), (4, 3, 4), (5, 1, 4), (6, 1, 9)])).unwrap();
        assert_eq!(pids(&family, &family.roots), [2, 9]);
        let first = family.birth(family.first.unwrap());
        assert_eq!((first.process, first.leads, pids(&family, &first.late)), (Some(0), true, vec![3]));
        // The orphan of a session whose leader is below the first process.
        let ghosts = late(&family, late(&family, &first.late));
        assert_eq!(pids(&family, ghosts), [10]);
        assert_eq!(pids(&family, late(&family, ghosts)), [5]);
    }

    #[test]
    fn a_session_that_no_ancestor_was_in_cannot_be_had() {
        assert_eq!(births(&image(&[(2, 1, 2), (3, 1, 3), (4, 3, 2)])), Err(Unplaced::Session(4)));
        // Nor one whose leader is below.
        assert_eq!(births(&image(&[(2, 1, 3), (3, 2, 3)])), Err(Unplaced::Session(2)));
    }

    #[test]
    fn a_line_may_be_so_long() {
        let line = |length: usize| image(&(0..length as i32).map(|n| (n + 2, n + 1, 2)).collect::<Vec<_>>());
        let family = births(&line(DEEPEST)).unwrap();
        let all = family.all_of(family.roots[0]);
        assert_eq!(all.last(), Some(&(DEEPEST - 1, Some(DEEPEST - 2))));
        assert_eq!(family.processes(family.roots[0]).len(), DEEPEST);
        assert_eq!(births(&line(DEEPEST + 1)), Err(Unplaced::Depth(DEEPEST as i32 + 2)));
    }
}

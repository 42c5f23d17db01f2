//! Waiting until the processes of a clone stand at the gate. Each says so itself; one that is ended by a signal, or by
//! the kernel where memory is short, says nothing, and others may wait for it. So whenever nobody has come for a while,
//! all of them are looked after.

use crate::clone::error::{CloneError, SECONDS};
use crate::clone::hindrance::Hindrance;
use crate::image::{Image, Process};
use crate::inspect::proc_file::Stat;
use crate::inspect::process_tree::{Member, Roots};
use crate::refusal::FreezeError;
use crate::restore::lineage;
use pando_kernel::{CallError, Context, process::pidfd};
use pando_restorer::Report;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a clone may take from one process's coming to the next one's.
const LIMIT: Duration = Duration::from_secs(SECONDS);

/// How long nobody has come before they are looked after, and from one look to the next.
const QUIET: Duration = Duration::from_millis(20);

/// Waits until all of them have said that they stand. `init` is the first process of the clone's pid namespace.
pub(crate) fn stand(reports: &OwnedFd, image: &Image, init: i32) -> Result<(), Hindrance> {
    let expected = image.processes.iter().filter(|process| !process.threads.is_empty());
    let waited = Waited { image, init, expected: expected.collect(), forkers: None, seen: Vec::new(), missed: None };
    waited.stand(reports)
}

/// Whether there is a report, or the end of them, within a time.
pub(crate) fn is_readable(reports: &OwnedFd, within: Duration) -> Result<bool, CallError> {
    poll(&mut [PollFd::new(reports, PollFlags::IN)], within)
}

fn poll(polled: &mut [PollFd<'_>], within: Duration) -> Result<bool, CallError> {
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(polled, Some(&limit)));
    ready.map(|ready| ready > 0).context(|| "waiting for a clone".into())
}

/// The step that failed first, and the error, of those who have said so already.
pub(crate) fn failure(reports: &OwnedFd) -> Result<Option<(i32, u32)>, CloneError> {
    while is_readable(reports, Duration::ZERO)? {
        match report(reports)? {
            Some(Report { errno: 0, .. }) => {}
            Some(Report { errno, step }) => return Ok(Some((errno, step))),
            None => break,
        }
    }
    Ok(None)
}

/// The next report; `None` when nobody is left who could make one.
pub(crate) fn report(reports: &OwnedFd) -> Result<Option<Report>, CallError> {
    let mut bytes = [0; Report::LENGTH];
    match rustix::io::read(reports, &mut bytes).context(|| "waiting for a clone".into())? {
        Report::LENGTH => Ok(Some(Report::from_bytes(bytes))),
        _ => Ok(None),
    }
}

/// The processes of a clone.
struct Waited<'a> {
    image: &'a Image,
    init: i32,
    /// All that are to come.
    expected: Vec<&'a Process>,
    /// By whom each is forked; `None` in it for those that the maker has forked. Found out when somebody is missed.
    forkers: Option<HashMap<i32, Option<i32>>>,
    /// Those that a look has found, whether or not they have come.
    seen: Vec<Seen<'a>>,
    /// Whom the last look has not found, although whoever forks it had done so.
    missed: Option<i32>,
}

/// One that was seen to live.
struct Seen<'a> {
    process: &'a Process,
    outer: i32,
    descriptor: OwnedFd,
}

impl Waited<'_> {
    fn stand(mut self, reports: &OwnedFd) -> Result<(), Hindrance> {
        let mut come = HashSet::new();
        let mut last = Instant::now();
        while come.len() < self.expected.len() {
            let mut polled = vec![PollFd::new(reports, PollFlags::IN)];
            polled.extend(self.seen.iter().map(|seen| PollFd::new(&seen.descriptor, PollFlags::IN)));
            if !poll(&mut polled, QUIET).map_err(CloneError::from)? {
                self.look(&come)?;
                if last.elapsed() > LIMIT {
                    return Err(CloneError::Late.into());
                }
                continue;
            }
            let (said, ended) = (!polled[0].revents().is_empty(), polled.iter().skip(1));
            let ended = ended.zip(&self.seen).find(|(polled, _)| !polled.revents().is_empty()).map(|(_, seen)| seen);
            match if said { report(reports).map_err(CloneError::from)? } else { None } {
                Some(Report { errno: 0, step: pid }) => {
                    last = Instant::now();
                    come.insert(pid as i32);
                }
                Some(Report { errno, step }) => return Err((errno, step).into()),
                None if said => return Err(self.all_lost().into()),
                None => return Err(ended.map_or(CloneError::Ended, |seen| lost(seen.process, seen.status())).into()),
            }
        }
        Ok(())
    }

    /// Looks for who is there, and who is not any more.
    fn look(&mut self, come: &HashSet<i32>) -> Result<(), CloneError> {
        let members = Roots::below(self.init, self.image.first().is_some()).members();
        let mut missed = None;
        for process in self.expected.clone() {
            if self.seen.iter().any(|seen| seen.process.pid == process.pid) {
                continue;
            }
            match members.iter().find(|member| member.pid == process.pid) {
                Some(Member { outer, state: 'Z', .. }) => return Err(lost(process, dead_status(*outer))),
                // One that has gone since is not found the next time.
                Some(Member { outer, .. }) => {
                    let descriptor = pidfd::open(*outer).ok();
                    self.seen.extend(descriptor.map(|descriptor| Seen { process, outer: *outer, descriptor }));
                }
                None if missed.is_none() && self.was_forked(process.pid, come)? => missed = Some(process),
                None => {}
            }
        }
        // It may be about to come for the first time.
        let before = std::mem::replace(&mut self.missed, missed.map(|process| process.pid));
        match missed.filter(|process| before == Some(process.pid)) {
            Some(process) => Err(lost(process, None)),
            None => Ok(()),
        }
    }

    /// Who was ended first, where nobody is left: whoever forks the others, as a rule. The kernel closes what a process
    /// has before it tells of its end.
    fn all_lost(&mut self) -> CloneError {
        const MOMENT: Duration = Duration::from_millis(100);
        for _ in 0..2 {
            if let Err(error) = self.look(&HashSet::new()) {
                return error;
            }
        }
        let ended = self.seen.iter().find(|seen| pidfd::wait_for_end(&seen.descriptor, MOMENT));
        ended.map_or(CloneError::Ended, |seen| lost(seen.process, seen.status()))
    }

    /// Whether whoever forks a process has done that: the maker has when it has ended, and others when they have come.
    fn was_forked(&mut self, pid: i32, come: &HashSet<i32>) -> Result<bool, CloneError> {
        if self.forkers.is_none() {
            self.forkers = Some(forkers(self.image).map_err(CloneError::Unmade)?);
        }
        let forker = self.forkers.as_ref().and_then(|forkers| forkers.get(&pid));
        Ok(forker.is_some_and(|forker| forker.is_none_or(|forker| come.contains(&forker))))
    }
}

/// By whom each process of a clone is forked.
fn forkers(image: &Image) -> Result<HashMap<i32, Option<i32>>, FreezeError> {
    let family = lineage::family(image)?;
    let mut forkers: HashMap<i32, Option<i32>> = HashMap::new();
    for root in family.roots.iter().chain(&family.first) {
        // Whom each of these births leaves what it forks to. What is forked by one that only helps, is forked by the
        // time that whoever waits for that goes on.
        let mut left_to: HashMap<usize, Option<i32>> = HashMap::new();
        for (place, above) in family.all_of(*root) {
            let (birth, forker) = (family.birth(place), above.and_then(|above| left_to[&above]));
            if birth.process.is_some() {
                forkers.insert(birth.pid, forker);
            }
            left_to.insert(place, birth.process.map(|_| birth.pid).or(forker));
        }
    }
    Ok(forkers)
}

impl Seen<'_> {
    /// How it has ended, as wait(2) gives it: the kernel tells either who looks at the dead, or, once somebody has
    /// waited for it, who has a descriptor.
    fn status(&self) -> Option<i32> {
        const LOOKS: u32 = 20;
        for _ in 0..LOOKS {
            if let Some(status) = dead_status(self.outer).or_else(|| pidfd::exit_status(&self.descriptor)) {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

/// How a process has ended that nobody has waited for.
fn dead_status(outer: i32) -> Option<i32> {
    let stat = Stat::read(outer, "").ok().filter(|stat| stat.field::<char>(3).is_ok_and(|state| state == 'Z'))?;
    stat.field(52).ok()
}

fn lost(process: &Process, status: Option<i32>) -> CloneError {
    let name = process.threads.first().map(|thread| String::from_utf8_lossy(&thread.name).into_owned());
    let how = match status {
        Some(status) if libc::WIFSIGNALED(status) => {
            format!("was ended by {}", pando_kernel::process::signal::name(libc::WTERMSIG(status)))
        }
        Some(status) => format!("ended with exit code {}", libc::WEXITSTATUS(status)),
        None => "was ended".into(),
    };
    CloneError::Lost { pid: process.pid, name: name.unwrap_or_default(), how }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Thread;

    fn image() -> Image {
        let process = |pid, parent, session, name: &[u8]| Process {
            pid,
            parent,
            session,
            threads: vec![Thread { tid: pid, name: name.to_vec(), ..Thread::default() }],
            ..Process::default()
        };
        // 4 is an orphan in the session of 2, so that one that helps forks it.
        let processes = vec![process(2, 1, 2, b"sh"), process(3, 2, 2, b"cat"), process(4, 1, 2, b"late")];
        Image { processes, init: 1, ..Image::default() }
    }

    #[test]
    fn each_has_a_forker_that_is_a_process_or_the_maker() {
        let forkers = forkers(&image()).unwrap();
        assert_eq!([2, 3, 4].map(|pid| forkers[&pid]), [None, Some(2), Some(2)]);
    }

    #[test]
    fn one_that_is_nowhere_is_missed_by_the_second_look() {
        let image = image();
        let (reports, report) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&report, &Report { errno: 0, step: 2 }.bytes()).unwrap();
        // Nobody is below this process.
        let hindrance = stand(&reports, &image, std::process::id() as i32).unwrap_err();
        let Hindrance::Other(error) = hindrance else { panic!("it is no step") };
        assert_eq!(error.to_string(), "process 2 (sh) of the clone was ended before it ran");
        drop(report);
    }

    #[test]
    fn how_it_ended_is_said() {
        let image = image();
        let process = &image.processes[1];
        let said = |status| lost(process, status).to_string();
        assert_eq!(said(Some(9)), "process 3 (cat) of the clone was ended by SIGKILL before it ran");
        assert_eq!(said(Some(7 << 8)), "process 3 (cat) of the clone ended with exit code 7 before it ran");
    }
}

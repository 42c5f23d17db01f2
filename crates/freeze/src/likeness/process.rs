//! Who a process is, below whom it is, and what it may.

use crate::image::{ByHost, Image, Process, Thread};
use crate::inspect::credentials::{self, IdMaps};
use crate::inspect::proc_file::{self, Lines, Stat};
use crate::inspect::process_tree::{self, Member};
use crate::inspect::{limits, posix_timers, thread_settings};
use crate::likeness::{Said, inner, lives, unlike, unlike_bits};
use pando_kernel::CallError;

/// How a clone's processes are told: the ids of its user namespace.
pub(super) struct Ids<'a> {
    image: &'a Image,
    maps: IdMaps,
}

impl<'a> Ids<'a> {
    pub(super) fn of(image: &'a Image, init: i32) -> Result<Self, CallError> {
        Ok(Self { image, maps: IdMaps::of(init)? })
    }

    /// Says how a clone's process differs from the image.
    pub(super) fn compare(&self, process: &Process, member: &Member) -> Result<Said, CallError> {
        let outer = member.outer;
        let (stat, status) = (Stat::read(outer, "")?, Lines::read(outer, "status")?);
        let mut said: Said = self.relatives(process, &stat, &status)?;
        match process.ended {
            Some(was) if member.state == 'Z' => said.extend(unlike_bits("how it ended", status_of(&stat)?, shown(was))),
            Some(_) => said.push("it has not ended".into()),
            None if member.state == 'Z' => said.push("it has ended".into()),
            None => said.extend(self.living(process, outer, (&stat, &status))?),
        }
        Ok(said)
    }

    /// Parent, group and session; but for those that are of the outside, or of a first process that is not of the
    /// image: a clone has its own.
    fn relatives(&self, process: &Process, stat: &Stat, status: &Lines) -> Result<Said, CallError> {
        let last = |key: &str| status.words(key).last().and_then(|word| word.parse::<i32>().ok()).unwrap_or(0);
        let mut said = Said::new();
        if process.pid != self.image.init {
            let parent =
                Lines::read(stat.field(4)?, "status").ok().and_then(|lines| process_tree::inner(&lines)).unwrap_or(0);
            let was = if lives(self.image, process.parent) { process.parent } else { self.image.init };
            said.extend(unlike("its parent", &parent, &was));
        }
        let is_ours = |id: i32| id > 0 && id != self.image.init;
        if is_ours(process.session) {
            said.extend(unlike("its session", &last("NSsid"), &process.session));
        }
        let led = self.image.processes.iter().any(|other| other.pid == process.group);
        if is_ours(process.group) && (led || process.group == process.session) {
            said.extend(unlike("its process group", &last("NSpgid"), &process.group));
        }
        Ok(said)
    }

    fn living(&self, process: &Process, outer: i32, (stat, status): (&Stat, &Lines)) -> Result<Said, CallError> {
        let mut said = Said::new();
        said.extend(unlike_bits("its umask", status.number("Umask", 8)?, u64::from(process.umask)));
        if process.deleted_directory.is_none() {
            said.extend(unlike("its working directory", &proc_file::link(outer, "cwd")?, &process.directory));
        }
        let root = proc_file::root(outer)?.unwrap_or_else(|| "/".to_owned());
        said.extend(unlike("its root directory", &root.as_str(), &process.root.as_deref().unwrap_or("/")));
        // Of a mount namespace of its own the image says what leads to the program from the first process's.
        if process.mount_space.is_none() && process.deleted_executable.is_none() {
            said.extend(unlike("its program", &proc_file::link(outer, "exe")?, &process.executable));
        }
        let now = limits::read(outer)?;
        for (number, soft, hard) in &process.limits {
            let is = now.iter().find(|(other, ..)| other == number).map_or((0, 0), |(_, soft, hard)| (*soft, *hard));
            said.extend(unlike(&format!("its limit number {number}"), &is, &(*soft, *hard)));
        }
        let by_host = ByHost::of(outer)?;
        if !self.image.adopted {
            said.extend(unlike("what is set of it from outside", &by_host, &process.by_host));
        }
        said.extend(layout(process, outer, stat)?);
        said.extend(own_timers(process, outer)?);
        said.extend(self.threads(process, outer)?);
        Ok(said)
    }

    fn threads(&self, process: &Process, outer: i32) -> Result<Said, CallError> {
        let mut said = Said::new();
        let mut seen = Vec::new();
        for tid in process_tree::threads(outer)? {
            let (number, status) = inner(outer, tid)?;
            seen.push(number);
            let Some(thread) = process.threads.iter().find(|thread| thread.tid == number) else {
                said.push(format!("it has a thread {number} that was not frozen"));
                continue;
            };
            let differs = self.thread(thread, (outer, tid), &status)?;
            let of_thread =
                |what: String| if number == process.pid { what } else { format!("of thread {number} {what}") };
            said.extend(differs.into_iter().map(of_thread));
        }
        let missing = process.threads.iter().filter(|thread| !seen.contains(&thread.tid));
        said.extend(missing.map(|thread| format!("its thread {} is not there", thread.tid)));
        Ok(said)
    }

    fn thread(&self, thread: &Thread, (outer, tid): (i32, i32), status: &Lines) -> Result<Said, CallError> {
        let (was, below) = (&thread.credentials, format!("task/{tid}/"));
        // Secure bits are told by nobody but the thread.
        let is = credentials::read(status, &self.maps, was.secure_bits)?;
        let mut said = Said::new();
        said.extend(unlike("users", &is.users, &was.users));
        said.extend(unlike("groups", &is.groups, &was.groups));
        said.extend(unlike("further groups", &is.further, &was.further));
        const SETS: [&str; 5] = ["inheritable", "permitted", "effective", "bounding", "ambient"];
        for (name, (is, was)) in SETS.iter().zip(is.capabilities.iter().zip(was.capabilities)) {
            said.extend(unlike_bits(&format!("{name} capabilities"), *is, was));
        }
        said.extend(unlike("that it gains no privileges", &is.no_new_privileges, &was.no_new_privileges));
        let mode = if thread.filters.is_empty() { "0" } else { "2" };
        said.extend(unlike("seccomp mode", &status.get("Seccomp"), &mode));
        // Reported since Linux 5.9.
        if let Ok(filters) = status.number("Seccomp_filters", 10) {
            said.extend(unlike("number of system-call filters", &(filters as usize), &thread.filters.len()));
        }
        let mut name = proc_file::bytes(outer, &format!("{below}comm"))?;
        name.pop();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        said.extend(unlike("name", &text(&name), &text(&thread.name)));
        let personality = proc_file::text(outer, &format!("{below}personality"))?;
        let personality = u32::from_str_radix(personality.trim(), 16).unwrap_or(0);
        let settings = thread_settings::read(Stat::read(outer, &below)?.field(9)?, status, personality);
        said.extend(unlike("treatment by the kernel", &settings, &thread.settings));
        Ok(said)
    }
}

/// A zombie's status without whether there was a core dump, which a clone's has none of.
fn shown(status: i32) -> u64 {
    u64::from(status as u32 & 0xff7f)
}

fn status_of(stat: &Stat) -> Result<u64, CallError> {
    stat.field(52).map(shown)
}

/// Where the parts of its memory lie; but for the heap's end, which no file tells.
fn layout(process: &Process, outer: i32, stat: &Stat) -> Result<Said, CallError> {
    const FIELDS: [usize; 11] = [26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51];
    let mut said = Said::new();
    for (field, was) in FIELDS.into_iter().zip(process.layout.words).filter(|(field, _)| *field != 0) {
        said.extend(unlike_bits(&format!("field {field} of its stat file"), stat.field(field)?, was));
    }
    let same = proc_file::bytes(outer, "auxv")? == process.layout.auxiliary;
    said.extend((!same).then(|| "its auxiliary vector differs".to_owned()));
    Ok(said)
}

/// Its timers, which run from the gate on.
fn own_timers(process: &Process, outer: i32) -> Result<Said, CallError> {
    let mut now = posix_timers::listed(outer)?;
    let mut was = process.timers.clone();
    was.iter_mut().for_each(|timer| timer.setting = [0; 4]);
    now.sort_by_key(|timer| timer.id);
    was.sort_by_key(|timer| timer.id);
    Ok(unlike("its timers", &now, &was).into_iter().collect())
}

//! Moving processes from one guest into another, with what they have: memory, open files, sockets that listen.
//!
//! What they run and map has to be there as well. Files that they have open are copied where the other guest has none
//! of that name.

use crate::failure;
use crate::freeze::capacity_check;
use crate::freeze::freeze_guest::fault;
use crate::init::clone_slot::scopes;
use crate::logs::{Logs, Printed};
use crate::state::daemon::Daemon;
use crate::state::guest::{Guest, Running};
use crate::state::processes;
use pando_api::{Fault, FaultKind};
use pando_freeze::image::{AreaKind, FileKind, Image};
use pando_freeze::{Bed, FreezeError, MigrateError, Moved, Outside, Refusal, Subject, Target, TaskIterator, migrate};
use pando_guest::shim::PROGRAM;
use pando_kernel::file::confined::{Links, Place, Root};
use pando_kernel::file::fs_owner::FsOwner;
use pando_kernel::file::tree_copy::copy_content;
use pando_kernel::process::held::HeldProcess;
use pando_kernel::{CallError, Context, process::pidfd, seccomp::unfiltered};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

/// Moves processes, by their pids on the host, and all below them; which guest they were in.
pub(crate) async fn move_processes(daemon: &Rc<Daemon>, pids: &[i32], to: &str) -> Result<(String, Moved), Fault> {
    let target = daemon.guest(to)?;
    let source = owner(daemon, pids, &target)?;
    let (_here, _there) = (source.begin("moved out of")?, target.begin("moved into")?);
    let (from, into) = (source.life()?, target.life()?);
    if source.spec.borrow().init.is_some() {
        let message = format!("guest '{}' boots an init of its own; its processes cannot be moved", source.name);
        return Err(failure::bad(source.name.as_ref(), message));
    }
    capacity_check::check(daemon, &source, pids, &target)?;
    let site = Site::of(daemon, (&source, &from), (&target, &into))
        .map_err(|error| failure::call("preparing to move processes", to, &error))?;
    let processes = pids.to_vec();
    let _tracing = daemon.page_sharing.tracing.read().await;
    // Who has a filter of his own may not look behind another's.
    let moved = tokio::task::spawn_blocking(move || unfiltered::run(move || site.work(&processes)))
        .await
        .map_err(io::Error::other)
        .and_then(|moved| moved)
        .map_err(|error| Fault::new(FaultKind::Failed, to, format!("moving processes failed inside Pando: {error}")))?;
    let moved = moved.map_err(|error| match &error {
        MigrateError::Freeze(error) => fault(&source, error),
        other => failure::bad(to, format!("moving processes into guest '{to}' failed: {other}")),
    })?;
    let words = |what: &str, other: &Guest| Some(format!("{} processes {what} '{}'", moved.processes, other.name));
    daemon.events.tell(source.name.as_ref(), "move", words("into", &target));
    daemon.events.tell(target.name.as_ref(), "move", words("out of", &source));
    Ok((source.name.to_string(), moved))
}

/// The one guest that has all of them.
fn owner(daemon: &Rc<Daemon>, pids: &[i32], target: &Rc<Guest>) -> Result<Rc<Guest>, Fault> {
    let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
    let has =
        |guest: &&Rc<Guest>, pid: i32| processes::of_guest(&daemon.field, guest).iter().any(|one| one.host_pid == pid);
    let Some(first) = pids.first() else { return Err(failure::bad("move", "name the processes to move")) };
    let Some(source) = guests.iter().find(|guest| has(guest, *first)) else {
        let message = format!("process {first} is of no guest; 'pando ps' lists processes with their pids on the host");
        return Err(failure::bad(&first.to_string(), message));
    };
    if let Some(other) = pids.iter().find(|pid| !has(&source, **pid)) {
        let message = format!("process {other} is not of guest '{}', which process {first} is of", source.name);
        return Err(failure::bad(&other.to_string(), message));
    }
    if Rc::ptr_eq(source, target) {
        return Err(failure::bad(&first.to_string(), format!("process {first} is of guest '{}' already", source.name)));
    }
    if source.running.borrow().as_ref().is_some_and(|running| pids.contains(&running.first.pid())) {
        let message = format!("the first process of guest '{}' is the guest: it cannot be moved", source.name);
        return Err(failure::bad(source.name.as_ref(), message));
    }
    Ok(Rc::clone(source))
}

/// What a thread needs for it.
struct Site {
    from: HeldProcess,
    into: HeldProcess,
    /// The other guest's root on the host.
    owner: u32,
    /// What is printed into here: device and inode.
    printed: Option<(u64, u64)>,
    printed_there: OwnedFd,
    cgroup: Option<OwnedFd>,
    procs: Option<OwnedFd>,
    tasks: Vec<OwnedFd>,
    /// What a Landlock domain is to keep inside there.
    scopes: u32,
    task_iterator: Arc<LazyLock<Option<TaskIterator>>>,
}

impl Site {
    fn of(
        daemon: &Daemon,
        (source, from): (&Guest, &Running),
        (target, into): (&Guest, &Running),
    ) -> Result<Self, CallError> {
        let plot = daemon.field.plot(into.slot);
        let open = |path: std::path::PathBuf, how: &std::fs::OpenOptions| {
            how.open(&path).map(OwnedFd::from).context(|| format!("opening {}", path.display()))
        };
        let group = plot.guest();
        Ok(Self {
            from: from.first.clone(),
            into: into.first.clone(),
            owner: into.root(),
            printed: crate::freeze::freeze_guest::printed(daemon, source, from),
            printed_there: printed(daemon, target, into)?,
            cgroup: group.clone().map(|path| open(path, File::options().read(true))).transpose()?,
            procs: group.map(|path| open(path.join("cgroup.procs"), File::options().write(true))).transpose()?,
            tasks: plot.entrances()?.tasks,
            scopes: scopes(&target.spec.borrow()),
            task_iterator: Arc::clone(&daemon.task_iterator),
        })
    }

    /// Moves the processes. Blocking.
    fn work(&self, processes: &[i32]) -> Result<Moved, MigrateError> {
        let outside = Vec::from_iter(self.printed.map(|(device, inode)| Outside { device, inode }));
        let subject = Subject {
            init: self.from.pid(),
            held: Some(&self.from),
            whole: false,
            console: None,
            outside: &outside,
            in_memory: &[],
            own_files: &[],
            given: &[],
            host_devices: &[],
            network: None,
            task_iterator: self.task_iterator.as_ref().as_ref(),
        };
        let groups: Vec<BorrowedFd<'_>> = self.tasks.iter().map(AsFd::as_fd).collect();
        let target = Target {
            init: self.into.pid(),
            held: Some(&self.into),
            cgroup: self.cgroup.as_ref().map(AsFd::as_fd),
            groups: &groups,
            supplied: &[self.printed_there.as_fd()],
            handoff: None,
            scopes: self.scopes,
        };
        let bed = Bed { target, procs: self.procs.as_ref().map(AsFd::as_fd) };
        migrate(&subject, processes, &bed, |image| self.files(image))
    }

    /// Sees to it that files are there; the root directory of the guest that they come from.
    fn files(&self, image: &Image) -> Result<OwnedFd, FreezeError> {
        let root = |first: &HeldProcess| first.root().context(|| "looking into the guests".into());
        let (ours, theirs) = (root(&self.from)?, root(&self.into)?);
        let (mapped, open) = (mapped(image), open(image));
        for path in mapped.iter().chain(&open) {
            if let Err((kind, advice)) = self.bring(&ours, &theirs, path, open.contains(path))? {
                let process = image.processes.first();
                let refusal = Refusal {
                    pid: process.map_or(0, |one| one.pid),
                    name: String::new(),
                    descriptor: None,
                    kind,
                    advice,
                };
                return Err(FreezeError::Refused(vec![refusal]));
            }
        }
        Ok(ours.into())
    }

    /// Copies a file that the other guest lacks; an objection where it has another, or must have it by itself. Who is
    /// in either guest may put anything into the place of a file that was looked at.
    fn bring(
        &self,
        here: &Root,
        there: &Root,
        path: &str,
        copies: bool,
    ) -> Result<Result<(), (String, &'static str)>, CallError> {
        let what = || format!("looking at {path}");
        let Some(ours) = look(here, path).context(what)? else { return Ok(Ok(())) };
        let theirs = look(there, path).context(what)?;
        let about = ours.about().context(what)?;
        if !FileType::from_raw_mode(about.st_mode).is_file() {
            let objection = (format!("{path}, which the other guest lacks"), "make it there first");
            return Ok(if theirs.is_none() { Err(objection) } else { Ok(()) });
        }
        match theirs {
            Some(theirs) if same(&ours, &theirs).context(what)? => Ok(Ok(())),
            Some(_) => Ok(Err((
                format!("{path}, of which the other guest has another"),
                "make them equal, or move it away there",
            ))),
            None if copies => {
                let copy = || self.copy(&ours.file()?, about.st_mode, there, path);
                copy().context(|| format!("copying {path} into the other guest"))?;
                Ok(Ok(()))
            }
            None => Ok(Err((format!("{path}, which it runs and the other guest lacks"), "install it there first"))),
        }
    }

    fn copy(&self, ours: &File, mode: u32, there: &Root, path: &str) -> io::Result<()> {
        let _as_owner = (self.owner != 0).then(|| FsOwner::assume(self.owner)).transpose()?;
        let (above, name) =
            path.trim_start_matches('/').rsplit_once('/').unwrap_or((".", path.trim_start_matches('/')));
        let above = directory(there, above)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777);
        let theirs = rustix::fs::openat(&above, name, flags, mode)?;
        copy_content(ours, theirs.as_fd())?;
        Ok(rustix::fs::fchmod(&theirs, mode)?)
    }
}

/// An end of what a guest prints into. One that has no command of its own has none yet.
fn printed(daemon: &Daemon, guest: &Guest, running: &Running) -> Result<OwnedFd, CallError> {
    let what = || format!("connecting to the log of guest '{}'", guest.name);
    if let Some(printed) = Printed::of(&running.shim).context(what)? {
        return printed.end().context(what);
    }
    // One of another kind may not know what is asked of it, and would let go of the daemon.
    let pid = pidfd::pid(&running.shim).context(what)?;
    if std::fs::read(format!("/proc/{pid}/exe")).context(what)? != PROGRAM {
        return Err(io::Error::other("it was started by another Pando; restart it first")).context(what);
    }
    let log = Logs::open(&guest.log(&daemon.places)).context(what)?;
    daemon.logs.pipe(running.link.shim(), log, running.root()).context(what)
}

/// A directory inside a root, made where it is missing.
fn directory(root: &Root, path: &str) -> io::Result<Place> {
    match root.place(path, Links::Followed) {
        Err(Errno::NOENT) => {
            let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
            let above = directory(root, above)?;
            match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
                Err(Errno::EXIST) | Ok(()) => Ok(root.place(path, Links::Followed)?),
                Err(error) => Err(error.into()),
            }
        }
        found => Ok(found?),
    }
}

/// What a path means inside a root.
fn look(root: &Root, path: &str) -> io::Result<Option<Place>> {
    match root.place(path, Links::Followed) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// Whether two files have the same content; of a regular file and something else they never do. They are compared as
/// far as they go when it is begun, and where one of them is no hole.
fn same(one: &Place, other: &Place) -> io::Result<bool> {
    const PORTION: u64 = 64 << 10;
    let (about, others) = (one.about()?, other.about()?);
    if (about.st_dev, about.st_ino) == (others.st_dev, others.st_ino) {
        return Ok(true);
    }
    if !FileType::from_raw_mode(others.st_mode).is_file() || about.st_size != others.st_size {
        return Ok(false);
    }
    let (one, other, length) = (one.file()?, other.file()?, about.st_size.cast_unsigned());
    let (mut ours, mut theirs) = (vec![0; PORTION as usize], vec![0; PORTION as usize]);
    let mut at = 0;
    loop {
        at = next_data(&one, at)?.min(next_data(&other, at)?);
        if at >= length {
            return Ok(true);
        }
        let portion = (length - at).min(PORTION);
        let (ours, theirs) = (&mut ours[..portion as usize], &mut theirs[..portion as usize]);
        one.read_exact_at(ours, at)?;
        other.read_exact_at(theirs, at)?;
        if ours != theirs {
            return Ok(false);
        }
        at += portion;
    }
}

/// Where the next data of a file begins, at or after `at`; beyond all files where there is none.
fn next_data(file: &File, at: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(start),
        Err(Errno::NXIO) => Ok(u64::MAX),
        // A file system that does not tell: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(errno) => Err(errno.into()),
    }
}

/// What processes run, and map.
fn mapped(image: &Image) -> BTreeSet<String> {
    let areas = image.processes.iter().flat_map(|process| &process.areas);
    let private = areas
        .filter_map(|area| if let AreaKind::Private { path, .. } = &area.kind { Some(path.clone()) } else { None });
    let executables = image.processes.iter().map(|process| process.executable.clone());
    private.chain(executables).filter(|path| path.starts_with('/')).collect()
}

/// What they have open, map so that all see what is written, and work in.
fn open(image: &Image) -> BTreeSet<String> {
    let files =
        image.files.iter().filter_map(|file| if let FileKind::Named { path } = &file.kind { Some(path) } else { None });
    let areas = image.processes.iter().flat_map(|process| &process.areas);
    let shared =
        areas.filter_map(|area| if let AreaKind::Shared { path, .. } = &area.kind { Some(path) } else { None });
    let directories = image.processes.iter().map(|process| &process.directory);
    files.chain(shared).chain(directories).filter(|path| path.starts_with('/')).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(top: &std::path::Path) -> Root {
        Root::from(OwnedFd::from(File::open(top).unwrap()))
    }

    #[test]
    fn files_are_compared_by_what_is_in_them() {
        let top = tempfile::tempdir().unwrap();
        let root = root(top.path());
        let place = |name: &str| look(&root, name).unwrap().unwrap();
        let file = |name: &str, content: &str| {
            std::fs::write(top.path().join(name), content).unwrap();
            place(name)
        };
        let one = file("one", "content");
        assert!(same(&one, &file("same", "content")).unwrap());
        assert!(!same(&file("again", "content"), &file("other", "contents")).unwrap());
        assert!(!same(&file("third", "content"), &file("fourth", "konzent")).unwrap());
        let long = |name: &str, last: &[u8]| {
            let made = File::create(top.path().join(name)).unwrap();
            made.set_len(8 << 40).unwrap();
            made.write_all_at(last, 7 << 40).unwrap();
            place(name)
        };
        // Eight terabytes, nearly all of which is a hole.
        assert!(same(&long("long", b"x"), &long("as long", b"x")).unwrap());
        assert!(!same(&long("other long", b"y"), &place("long")).unwrap());
    }

    #[test]
    fn what_is_a_pipe_by_now_is_not_waited_for() {
        let top = tempfile::tempdir().unwrap();
        let (path, root) = (top.path().join("file"), root(top.path()));
        std::fs::write(&path, "").unwrap();
        let ours = look(&root, "file").unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let theirs = look(&root, "file").unwrap().unwrap();
        assert!(!same(&ours, &theirs).unwrap());
        assert!(ours.file().is_ok(), "it is the file that was looked at");
    }

    #[test]
    fn directories_are_made_inside_the_root() {
        let top = tempfile::tempdir().unwrap();
        let root = root(top.path());
        std::os::unix::fs::symlink("/", top.path().join("link")).unwrap();
        directory(&root, "link/a/b").unwrap();
        assert!(top.path().join("a/b").is_dir(), "a link leads nowhere else");
        assert!(look(&root, "/a/none").unwrap().is_none());
    }
}

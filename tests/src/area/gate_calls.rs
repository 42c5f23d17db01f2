//! Every call of the file system's that runs into the gate `bpf`: it waits without a lock, and ends as it would without
//! a gate, after the commit.

use super::gate::{SLOW, needs, until_closed};
use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

pub(crate) const CASES: &[Case] =
    &[Case::new("gate::every_call_is_suspended_and_made_again", every_call).tags(&[Tag::Vm])];

/// What was opened before the gate was closed.
struct Opened {
    /// A file that is changed in place, and that nobody else changes.
    file: File,
    /// One that others change too.
    other: File,
    directory: File,
}

type Call = fn(&Path, &Opened) -> io::Result<()>;

/// How often so many of them are made at once.
const TIMES: usize = 4;

fn is_new(bytes: &[u8]) -> io::Result<()> {
    if bytes.starts_with(b"new") { Ok(()) } else { Err(io::Error::other(format!("{bytes:?} was read"))) }
}

/// By names in a directory that gets names, or of objects that are changed.
const BY_NAME: &[(&str, Call)] = &[
    ("open to read", |at, _| is_new(&std::fs::read(at.join("f"))?)),
    ("open to write", |at, _| File::options().write(true).open(at.join("f")).map(drop)),
    ("open or create", |at, _| File::options().write(true).create(true).truncate(false).open(at.join("f")).map(drop)),
    ("open and truncate", |at, _| File::create(at.join("g")).map(drop)),
    ("stat", |at, _| at.join("f").metadata().map(drop)),
    ("stat in a directory", |at, _| at.join("d/old").metadata().map(drop)),
    ("access", |at, _| Ok(rustix::fs::access(at.join("f"), rustix::fs::Access::READ_OK)?)),
    ("readlink", |at, _| std::fs::read_link(at.join("d/link")).map(drop)),
    ("list", |at, _| std::fs::read_dir(at.join("d"))?.try_for_each(|entry| entry.map(drop))),
    ("create", |at, _| File::create_new(fresh(at, "c")).map(drop)),
    ("mkdir", |at, _| std::fs::create_dir(fresh(at, "m"))),
    ("symlink", |at, _| std::os::unix::fs::symlink("old", fresh(at, "s"))),
    ("link", |at, _| std::fs::hard_link(at.join("beside"), fresh(at, "l"))),
    ("mknod", |at, _| Ok(rustix::fs::mknodat(CWD, fresh(at, "n"), FileType::Fifo, Mode::RUSR, 0)?)),
    ("rename into it", |at, _| {
        let from = at.join(format!("from-{}", number()));
        File::create_new(&from)?;
        std::fs::rename(from, fresh(at, "r"))
    }),
    ("temporary file", |at, _| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::open(at.join("d"), flags, Mode::RUSR).map(drop)?)
    }),
    ("truncate", |at, _| File::options().write(true).open(at.join("g"))?.set_len(3)),
    ("chmod", |at, _| std::fs::set_permissions(at.join("g"), std::fs::Permissions::from_mode(0o640))),
    ("setxattr", |at, _| Ok(rustix::fs::setxattr(at.join("g"), "user.pando", b"1", XattrFlags::empty())?)),
];

/// By another process.
const PROGRAMS: &[(&str, Call)] = &[
    ("execute", |at, _| Command::new(at.join("program")).status().map(drop)),
    ("change directory", |at, _| Command::new("true").current_dir(at.join("d")).status().map(drop)),
];

/// By what was opened before.
const BY_DESCRIPTOR: &[(&str, Call)] = &[
    ("read", |_, opened| {
        let mut bytes = [0; 3];
        opened.file.read_at(&mut bytes, 0)?;
        is_new(&bytes)
    }),
    ("write", |_, opened| opened.other.write_at(b"more", 0).map(drop)),
    ("fstat", |_, opened| opened.file.metadata().map(drop)),
    ("ftruncate", |_, opened| opened.other.set_len(2)),
    ("fallocate", |_, opened| Ok(rustix::fs::fallocate(&opened.other, rustix::fs::FallocateFlags::empty(), 0, 8)?)),
    ("fchmod", |_, opened| opened.other.set_permissions(std::fs::Permissions::from_mode(0o600))),
    ("utimensat", |_, opened| {
        let time = Timespec { tv_sec: 1, tv_nsec: 0 };
        Ok(rustix::fs::futimens(&opened.other, &Timestamps { last_access: time, last_modification: time })?)
    }),
    ("fsetxattr", |_, opened| Ok(rustix::fs::fsetxattr(&opened.other, "user.two", b"1", XattrFlags::empty())?)),
    ("getdents", |_, opened| {
        let mut names = rustix::fs::Dir::read_from(&opened.directory)?;
        names.try_for_each(|name| name.map(drop).map_err(io::Error::from))
    }),
    ("openat", |_, opened| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&opened.directory, "old", flags, Mode::empty()).map(drop)?)
    }),
    ("unlinkat", |_, opened| match rustix::fs::unlinkat(&opened.directory, "nobody", AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }),
    ("copy_file_range", |at, opened| {
        let to = File::create(at.join(format!("copy-{}", number())))?;
        rustix::fs::copy_file_range(&opened.file, Some(&mut 0), &to, None, 3).map(drop)?;
        Ok(())
    }),
    ("sendfile", |at, opened| {
        let to = File::create(at.join(format!("sent-{}", number())))?;
        rustix::fs::sendfile(&to, &opened.file, Some(&mut 0), 3).map(drop)?;
        Ok(())
    }),
];

/// A number that nobody else has.
fn number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A name in the directory that nothing has.
fn fresh(at: &Path, start: &str) -> PathBuf {
    at.join(format!("d/{start}{}", number()))
}

fn every_call(sandbox: &Sandbox) {
    needs(sandbox, "bpf");
    let directory = sandbox.scratch();
    std::fs::create_dir(directory.join("d")).expect("a directory can be made");
    for name in ["f", "g", "beside", "d/old"] {
        std::fs::write(directory.join(name), "old\n").expect("a file can be written");
    }
    std::os::unix::fs::symlink("old", directory.join("d/link")).expect("a link can be made");
    std::fs::copy("/bin/true", directory.join("program")).expect("a program can be copied");
    std::thread::sleep(std::time::Duration::from_millis(12));
    let open =
        |name: &str| File::options().read(true).write(true).open(directory.join(name)).expect("it can be opened");
    let opened = Opened {
        file: open("f"),
        other: open("g"),
        directory: File::open(directory.join("d")).expect("it can be opened"),
    };
    let script = "echo new >f; echo new >g; echo >d/new; chmod 711 program";
    let options = ["tx", "run", "--no-durable", "--gate", "bpf", "--hold-timeout", "120", "--", "sh", "-c", script];
    let started = sandbox.pando(options).directory(&directory).env(SLOW.0, SLOW.1).limit(240).start();
    let mut first = until_closed(&directory.join("f"));
    let calls = || BY_NAME.iter().chain(BY_DESCRIPTOR);
    let count = calls().count() * TIMES;
    let ended: Vec<(&str, io::Result<()>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = calls().cycle().take(count).map(|call| (call, Arc::new(OnceLock::new()))).collect();
        let make = |((name, call), thread): &(&'static (&'static str, Call), Arc<OnceLock<i32>>)| {
            let (name, call, thread, at, opened) = (*name, *call, Arc::clone(thread), &directory, &opened);
            scope.spawn(move || {
                let _ = thread.set(rustix::thread::gettid().as_raw_nonzero().get());
                (name, call(at, opened))
            })
        };
        let made: Vec<_> = threads.iter().map(make).collect();
        let programs: Vec<_> = PROGRAMS
            .iter()
            .map(|(name, call)| {
                let (at, opened) = (&directory, &opened);
                scope.spawn(move || (*name, call(at, opened)))
            })
            .collect();
        let waits = |(_, thread): &(_, Arc<OnceLock<i32>>)| thread.get().is_some_and(|thread| is_suspended(*thread));
        let mut seen = vec![false; count];
        eventually("all of them have been suspended", || {
            seen.iter_mut().zip(&threads).for_each(|(seen, thread)| *seen = *seen || waits(thread));
            seen.iter().all(|seen| *seen)
        });
        made.into_iter().chain(programs).map(|one| one.join().expect("it did not panic")).collect()
    });
    started.wait().succeeded().complains_of(&["committed: ", "gate bpf, "]);
    let failed: Vec<_> = ended.iter().filter(|(_, ended)| ended.is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    println!("     {} calls were suspended", ended.len());
    assert!(first.wait().expect("it is a child").success());
}

/// Whether a thread of this process waits where the gate has it wait.
fn is_suspended(thread: i32) -> bool {
    let at = std::fs::read_to_string(format!("/proc/self/task/{thread}/wchan")).unwrap_or_default();
    at.contains("fuse") || at == "request_wait_answer"
}

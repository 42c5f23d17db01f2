//! The reader's side of its process: from `main` to the end.

use crate::confinement;
use crate::job::{Job, Parsers};
use crate::lies;
use crate::registry_client;
use crate::serve::serve;
use crate::verifier;
use pando_kernel::mistake::planted;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::exit;

/// What a reader is called: its first argument.
pub(crate) const NAME: &str = "pando-reader";

/// What a reader ends with that did its work, was not asked for anything, could not give up its powers, or did what it
/// must not.
pub(crate) const DONE: i32 = 0;
pub(crate) const UNASKED: i32 = 2;
pub(crate) const NOT_CONFINED: i32 = 3;
pub(crate) const GOT_THROUGH: i32 = 4;

/// The first thing that `main` does. If this process was started as a reader it becomes one, and does not return.
/// Records it has understood by these parsers.
pub fn become_reader_if_asked(mut arguments: impl Iterator<Item = OsString>, parsers: Parsers<'_>) {
    match arguments.next() {
        Some(name) if name == NAME => {}
        Some(name) if name == verifier::NAME => verifier::run(),
        Some(name) if name == registry_client::NAME => registry_client::run(arguments.next()),
        _ => return,
    }
    let job = arguments.next().and_then(|word| serde_json::from_str::<Job>(word.to_str()?).ok());
    let Some(job) = job else { exit(UNASKED) };
    let bare = ["open", "connect", "fork"].iter().any(|deed| is_planted(&job, &format!("bare.{deed}")));
    if !bare && let Err(error) = confinement::enter(&job) {
        eprintln!("{error}");
        exit(NOT_CONFINED);
    }
    misbehave(&job);
    // A caller that does not listen any more has ended this process, or is about to.
    let _ = serve(&job, parsers, Descriptor(rustix::stdio::stdin()), Descriptor(rustix::stdio::stdout()));
    exit(DONE);
}

/// A descriptor without a buffer and without a lock.
struct Descriptor(rustix::fd::BorrowedFd<'static>);

impl Read for Descriptor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(self.0, &mut *into))?)
    }
}

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::write(self.0, bytes))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a reader makes a mistake: any, or one of records alone.
fn is_planted(job: &Job, mistake: &str) -> bool {
    planted(&format!("reader.{mistake}")) || matches!(job, Job::Record { .. }) && planted(&format!("record.{mistake}"))
}

/// What a reader does that was taken over, where a test plants it. What gets through is told by how it ends.
fn misbehave(job: &Job) {
    let planted = |mistake: &str| is_planted(job, mistake);
    type Deed = (&'static str, fn() -> bool);
    let deeds: [Deed; 3] = [
        ("open", || std::fs::File::open("/etc/passwd").is_ok()),
        ("connect", || std::os::unix::net::UnixDatagram::unbound().is_ok()),
        ("fork", || std::process::Command::new("/bin/true").status().is_ok()),
    ];
    for (name, deed) in deeds {
        if (planted(name) || planted(&format!("bare.{name}"))) && deed() {
            exit(GOT_THROUGH);
        }
    }
    if planted("memory") {
        let mut taken = Vec::new();
        loop {
            taken.push(vec![1_u8; 16 << 20]);
        }
    }
    if planted("time") {
        loop {
            std::hint::spin_loop();
        }
    }
    if let Some(lie) =
        pando_kernel::mistake::plant().and_then(|planted| Some(planted.strip_prefix("reader.lie.")?.to_owned()))
    {
        // A caller that has heard enough ends this process.
        let _ = lies::tell(&lie, Descriptor(rustix::stdio::stdout()));
        exit(DONE);
    }
    if planted("nonsense") {
        let _ = Descriptor(rustix::stdio::stdout()).write_all(&[0xff; 4096]);
        exit(DONE);
    }
}

//! What processes outside have open and mapped while a transaction runs.

use crate::case::Case;
use crate::line::{Ended, Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::fifos_that_others_have_open_cannot_be_undone", fifos),
    Case::new("tx::fifos_of_entered_commands_are_refused", fifos_of_entered),
    Case::new("tx::a_fifo_that_others_use_is_no_conflict_to_who_connects", busy_fifo),
    Case::new("tx::what_others_write_through_a_mapping_is_a_conflict", mapped).needs(PYTHON),
    Case::new("tx_guest::fifos_that_others_have_open_cannot_be_undone", fifos_in_guest),
    Case::new("tx_guest::what_others_write_through_a_mapping_is_a_conflict", mapped_in_guest).needs(PYTHON),
];

const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

fn run_sh(sandbox: &Sandbox, options: &[&str], directory: &Path, script: &str) -> Line {
    sandbox.pando(["tx", "run"]).args(options).args(["--", "sh", "-c", script]).directory(directory)
}

/// A fifo, and both of its ends outside.
fn fifo(directory: &Path) -> File {
    let path = directory.join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a fifo can be made");
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    File::options().read(true).write(true).custom_flags(nonblocking).open(path).expect("it can be opened")
}

fn is_empty(mut fifo: &File) -> bool {
    fifo.read(&mut [0; 9]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

fn fifos(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let outside = fifo(&directory);
    let said = ["open by process", &format!("of fifo {}/fifo, cannot be a part", directory.display())];
    // One that need not wait for another is noticed once the fifo has been found.
    for script in ["echo word >fifo", "cat fifo", "sleep 0.5; exec 3<>fifo", "echo word >fifo & wait; exit 0"] {
        let script = format!("echo >made; {script}");
        run_sh(sandbox, &[], &directory, &script).run().ended_with(125).complains_of(&said);
        assert!(is_empty(&outside) && !directory.join("made").exists(), "{script}");
    }
    let warned = run_sh(sandbox, &["--unsupported=warn"], &directory, "echo word >fifo; echo >made").run().succeeded();
    warned.complains_of(&said).complains_of(&["it was not done"]);
    assert!(is_empty(&outside) && directory.join("made").exists());
    // To look at it is no matter, nor is one that nobody outside has open, or of the transaction's own.
    run_sh(sandbox, &[], &directory, "test -p fifo && ls -l >/dev/null").run().succeeded();
    let among = "mkfifo own; for at in own fifo; do echo word >$at & read word <$at; test $word = word; wait; done";
    drop(outside);
    run_sh(sandbox, &[], &directory, among).limit(30).run().succeeded();
    let meanwhile = "test ! -e \"$PWD/removed\"";
    run_sh(sandbox, &[], &directory, meanwhile).run().succeeded();
}

/// Pando itself has looked for it in the view: that is known when something is about to pass outside, too.
fn busy_fifo(sandbox: &Sandbox) {
    let script = "mkfifo fifo; (exec 3<>fifo; while :; do echo word >&3; read -r word <&3; sleep .01; done) & others=$!
        \"$PANDO\" --root \"$ROOT\" tx run --retry 0 -- bash -c 'sleep .3; exec 4<>/dev/udp/127.0.0.1/9; echo >made'; code=$?
        kill $others; exit $code";
    let line = Line::new("bash").args(["-c", script]).directory(sandbox.scratch());
    let line = line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root());
    line.run().succeeded().complains_of(&["committed: 1 path", "1 connection had passed"]);
}

fn fifos_of_entered(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let outside = fifo(&directory);
    sandbox.pando(["tx", "begin", "work"]).ok();
    let script = "echo word >fifo; echo again >fifo; cat <&- fifo & sleep 0.3; kill $!; echo on >here";
    let entered = sandbox.pando(["tx", "enter", "work", "--", "sh", "-c", script]).directory(&directory).limit(30);
    entered.run().succeeded().complains_of(&["open by process", "it was not done"]);
    // Who looks at it is in no conflict with who uses it outside.
    (&outside).write_all(b"more").expect("it can be written");
    sandbox.pando(["tx", "commit", "work"]).ok();
    assert_eq!(fs::read_to_string(directory.join("here")).expect("it was committed"), "on\n");
    let mut word = [0; 9];
    assert_eq!((&outside).read(&mut word).expect("it can be read"), 4);
}

fn fifos_in_guest(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let holder = "mkfifo /srv/fifo; exec 3<>/srv/fifo; read word <&3; echo $word";
    let holder = sandbox.exec_sh("g", holder).start();
    let holds = || sandbox.exec_sh("g", "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q /srv/fifo").run().code() == 0;
    eventually("the fifo is open", holds);
    let run = |options: &[&str], script: &str| {
        sandbox.pando(["tx", "run", "--guest", "g"]).args(options).args(["--", "sh", "-c", script]).limit(60).run()
    };
    let said = ["open by process", "of fifo /srv/fifo, cannot be a part of a transaction"];
    run(&[], "echo >/srv/made; echo inside >/srv/fifo").ended_with(125).complains_of(&said);
    let warned = run(&["--unsupported=warn"], "echo inside >/srv/fifo; echo >/srv/warned").succeeded();
    warned.complains_of(&said).complains_of(&["it was not done"]);
    run(&[], "test -p /srv/fifo; mkfifo /srv/own; echo x >/srv/own & read x </srv/own").succeeded();
    sandbox.exec_sh("g", "test ! -e /srv/made && test -e /srv/warned && echo outside >/srv/fifo").ok();
    assert_eq!(holder.wait().succeeded().out(), "outside\n");
}

/// Maps a file, writes to it at once, and once more for a line of its input.
fn mapper(path: &str) -> String {
    format!(
        "import mmap, sys; file = open('{path}', 'r+b'); there = mmap.mmap(file.fileno(), 0)\n\
         there[:3] = b'one'; open('{path}.mapped', 'w')\n\
         sys.stdin.readline(); there[:3] = b'two'; sys.stdin.readline()"
    )
}

/// `reader` reads the file, makes `made`, which `is_made` sees, and waits for a line; meanwhile the mapping is written
/// to or not.
fn meets(
    reader: Line,
    mut mapper: Started,
    is_made: impl Fn() -> bool,
    is_written: Option<&dyn Fn() -> bool>,
) -> Ended {
    let mut reader = reader.start_with_open_input();
    eventually("the transaction has read", is_made);
    if let Some(is_written) = is_written {
        mapper.input().write_all(b"\n").expect("it reads its input");
        eventually("the mapping was written to", is_written);
    }
    reader.input().write_all(b"\n").expect("it reads its input");
    let ended = reader.close_input().wait();
    mapper.close_input().wait().succeeded();
    ended
}

const CONFLICT: &str = "/file was changed by others";

/// The pages are dirty before: the kernel notes no more of those who write to them.
fn mapped(sandbox: &Sandbox) {
    for writes in [true, false] {
        let directory = sandbox.scratch().join(if writes { "writes" } else { "does not" });
        fs::create_dir(&directory).expect("a directory can be made");
        let path = directory.join("file");
        fs::write(&path, "old text").expect("a file can be written");
        let script = mapper(&path.display().to_string());
        let mapper = Line::new("python3").args(["-c", &script]).start_with_open_input();
        eventually("the file is mapped", || directory.join("file.mapped").exists());
        let name = if writes { "made-one" } else { "made-two" };
        let script = format!("cat file >/dev/null; echo >{name}; read line");
        let reader = run_sh(sandbox, &["--retry", "0"], &directory, &script);
        let root = sandbox.root().join("var/lib/pando");
        let is_made = || !Line::new("find").args([&root]).args(["-name", name]).run().out().is_empty();
        let is_written = || fs::read_to_string(&path).is_ok_and(|text| text.starts_with("two"));
        let ended = meets(reader, mapper, is_made, writes.then_some(&is_written as &dyn Fn() -> bool));
        match writes {
            true => drop(ended.ended_with(125).complains_of(&[CONFLICT])),
            false => drop(ended.succeeded()),
        }
    }
}

fn mapped_in_guest(sandbox: &Sandbox) {
    super::tx_guest_outside::guest_with_programs(sandbox);
    for writes in [true, false] {
        let sh = |script: &str| sandbox.exec_sh("g", script).run();
        sh("rm -rf /srv/d; mkdir -p /srv/d; echo old text >/srv/d/file").succeeded();
        let words = ["exec", "g", "--", "python3", "-c", &mapper("/srv/d/file")];
        let mapper = sandbox.pando(words).start_with_open_input();
        eventually("the file is mapped", || sh("test -e /srv/d/file.mapped").code() == 0);
        let name = if writes { "made-one" } else { "made-two" };
        let script = format!("cat /srv/d/file >/dev/null; echo >/srv/d/{name}; read line");
        let line = sandbox.pando(["tx", "run", "--guest", "g", "--retry", "0"]);
        let reader = line.args(["--timeout", "60", "--", "sh", "-c", &script]);
        let root = sandbox.root().join("var/lib/pando");
        let is_made = || !Line::new("find").args([&root]).args(["-name", name]).run().out().is_empty();
        let is_written = || sh("head -c 3 /srv/d/file").out() == "two";
        let ended = meets(reader, mapper, is_made, writes.then_some(&is_written as &dyn Fn() -> bool)).succeeded();
        // One that has lost all its retries has the guest to itself.
        assert_eq!(ended.err().contains(CONFLICT), writes, "{}", ended.err());
    }
}

//! The built command against a daemon of the test's own, which runs processes without any guest: what passes between
//! caller and process.
//!
//! Skipped, and said so, where it is not run as root: the command refuses to act for anybody else.

#![allow(clippy::unwrap_used)] // All of this is a test.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::Duration;

/// A state root with a daemon of the test's own.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        watch();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("run/pando")).unwrap();
        let listener = UnixListener::bind(root.path().join("run/pando/pando.sock")).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || serve(stream.unwrap()));
            }
        });
        Some(Self(root))
    }

    fn pando(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
        command.args(words).env("PANDO_ROOT", self.0.path()).stdin(Stdio::null());
        command
    }
}

/// Ends the tests when one hangs, which says nothing by itself.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(60));
            eprintln!("a test hangs");
            std::process::exit(1);
        });
    });
}

/// One connection of the daemon's.
fn serve(mut stream: UnixStream) {
    while let Some((call, descriptors)) = receive(&stream) {
        let parameters = &call["parameters"];
        match call["method"].as_str().unwrap().rsplit('.').next().unwrap() {
            "Run" => run(&mut stream, parameters, descriptors),
            "Signal" => {
                let pid = rustix::process::Pid::from_raw(parameters["pid"].as_i64().unwrap() as i32).unwrap();
                assert_eq!(parameters["signal"], 10, "SIGUSR1");
                rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
                reply(&mut stream, &json!({ "parameters": {} }));
            }
            other => panic!("unexpected {other}"),
        }
    }
}

fn run(stream: &mut UnixStream, parameters: &Value, mut descriptors: Vec<OwnedFd>) {
    let words: Vec<&str> =
        parameters["spec"]["command"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    if parameters["process"]["terminal"] == true {
        let (master, slave) = terminal();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        command.stdin(end(&slave)).stdout(end(&slave)).stderr(end(&slave));
        give(&descriptors.remove(0), if words[0] == "cat" { &slave } else { &master });
    } else {
        let mut next = || Stdio::from(descriptors.remove(0));
        command.stdin(next()).stdout(next()).stderr(next());
    }
    let Ok(mut child) = command.spawn() else {
        let parameters = json!({ "object": words[0], "message": "Cannot find it." });
        return reply(stream, &json!({ "error": "org.pando.Guests.CommandNotFound", "parameters": parameters }));
    };
    drop(command);
    let notice = json!({ "guest": "g", "pid": child.id(), "exited": false });
    reply(stream, &json!({ "parameters": { "notice": notice }, "continues": true }));
    let status = child.wait().unwrap();
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    let notice = json!({ "guest": "g", "pid": child.id(), "exited": true, "exit_code": code });
    reply(stream, &json!({ "parameters": { "notice": notice } }));
}

fn receive(stream: &UnixStream) -> Option<(Value, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = vec![0; 65536];
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    if received.bytes == 0 {
        return None;
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    assert_eq!(text[received.bytes - 1], 0, "calls of this size arrive whole");
    Some((serde_json::from_slice(&text[..received.bytes - 1]).unwrap(), descriptors))
}

fn reply(stream: &mut UnixStream, reply: &Value) {
    // A client that detached is gone.
    let _ = stream.write_all(&[reply.to_string().as_bytes(), b"\0"].concat());
}

fn give(socket: &OwnedFd, descriptor: &OwnedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(socket, &[IoSlice::new(b"t")], &mut control, SendFlags::empty()).unwrap();
}

fn terminal() -> (OwnedFd, OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(ptsname(&master, Vec::new()).unwrap(), flags, rustix::fs::Mode::empty()).unwrap();
    (master, slave)
}

/// The command on a terminal: the terminal's master, its slave, and the command.
fn on_terminal(scene: &Scene, words: &[&str]) -> (File, OwnedFd, Child) {
    let (master, slave) = terminal();
    let end = || Stdio::from(slave.try_clone().unwrap());
    let child = scene.pando(words).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    (master.into(), slave, child)
}

/// Reads until `expected` has come.
fn read_until(terminal: &mut File, expected: &str) -> String {
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while !text.contains(expected) {
        let length = terminal.read(&mut piece).unwrap();
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    text
}

fn is_cooked(slave: &OwnedFd) -> bool {
    let mode = rustix::termios::tcgetattr(slave).unwrap();
    mode.local_modes.contains(rustix::termios::LocalModes::ICANON)
}

#[test]
fn output_and_exit_code_are_the_commands_own() {
    let Some(scene) = Scene::new() else { return };
    let output = scene.pando(&["run", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    let output = scene.pando(&["run", "--", "/no/such/command"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(output.stderr, b"pando: Cannot find it.\n");
}

#[test]
fn a_directory_is_not_passed() {
    let Some(scene) = Scene::new() else { return };
    let output = scene.pando(&["run", "--", "true"]).stdin(File::open("/").unwrap()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard input is a directory"));
}

#[test]
fn a_signal_reaches_the_process() {
    let Some(scene) = Scene::new() else { return };
    let script = "trap 'exit 9' USR1; echo ready; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.2; done";
    let mut child = scene.pando(&["run", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_terminal_is_tied_to_the_guests_own() {
    let Some(scene) = Scene::new() else { return };
    let (mut typed, slave, mut child) =
        on_terminal(&scene, &["run", "--", "sh", "-c", "tty; read x; echo got $x; exit 4"]);
    let own = rustix::termios::ttyname(&slave, Vec::new()).unwrap().into_string().unwrap();
    let first = read_until(&mut typed, "\n");
    assert!(first.starts_with("/dev/pts/") && first.trim() != own, "{first} is not the caller's {own}");
    assert!(!is_cooked(&slave));
    typed.write_all(b"abc\r").unwrap();
    read_until(&mut typed, "got abc");
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert!(is_cooked(&slave), "the terminal is as it was before");
}

#[test]
fn the_detach_keys_leave_the_process() {
    let Some(scene) = Scene::new() else { return };
    let (mut typed, slave, mut child) = on_terminal(&scene, &["run", "--", "sh", "-c", "echo up; sleep 1"]);
    read_until(&mut typed, "up");
    typed.write_all(b"\x10").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    typed.write_all(b"\x11").unwrap();
    assert!(read_until(&mut typed, "ends it").contains("Detached from guest 'g'"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(is_cooked(&slave));
}

#[test]
fn a_slave_in_place_of_the_master_is_not_used() {
    let Some(scene) = Scene::new() else { return };
    let (mut typed, slave, mut child) = on_terminal(&scene, &["run", "--", "cat"]);
    assert!(read_until(&mut typed, "not used").contains("not the master"));
    assert_eq!(child.wait().unwrap().code(), Some(125));
    assert!(is_cooked(&slave));
}

//! Standard input, output and error: opened by name inside, and carried to their end whoever reads them how slowly.

use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

const NGINX: &[Need] = &[Need::Root, Need::Program("nginx", "nginx-light")];

pub(crate) const CASES: &[Case] = &[
    Case::new("standard::pipes_are_opened_by_name", pipes_are_opened_by_name),
    Case::new("standard::files_are_opened_by_name", files_are_opened_by_name),
    Case::new("standard::output_and_errors_in_one_file_stay_in_order", output_and_errors_in_one_file_stay_in_order),
    Case::new("standard::a_file_keeps_what_descendants_print", a_file_keeps_what_descendants_print),
    Case::new("standard::a_log_is_not_emptied_by_its_name", a_log_is_not_emptied_by_its_name),
    Case::new("standard::a_pipe_is_opened_no_other_way", a_pipe_is_opened_no_other_way),
    Case::new("standard::a_socket_stays_with_the_host", a_socket_stays_with_the_host),
    Case::new("standard::a_web_server_logs_to_it", a_web_server_logs_to_it).needs(NGINX),
    Case::new("standard::a_slow_reader_gets_all_of_a_terminal", a_slow_reader_gets_all_of_a_terminal),
    Case::new("standard::a_reader_that_goes_ends_a_terminals_command", a_reader_that_goes_ends_a_terminals_command),
];

/// Whoever prints: root in a guest of its own ids, root of the host's, and a user of either.
const WHO: [&[&str]; 4] = [&[], &["-u", "ada"], &["--userns", "host"], &["--userns", "host", "-u", "ada"]];

fn pipes_are_opened_by_name(sandbox: &Sandbox) {
    let script =
        "cat /dev/stdin; echo a >/dev/stdout; echo b >>/dev/stdout; echo c >/proc/self/fd/1; echo e >/dev/stderr";
    for who in WHO {
        let ended = sandbox.run_sh(who, script).input("in\n").run().succeeded().says("in\na\nb\nc\n");
        assert_eq!(ended.err(), "e\n", "{who:?}");
    }
    sandbox.guest("web", &[]);
    for user in ["root", "ada"] {
        let exec = sandbox.pando(["exec", "-u", user, "web", "--", "sh", "-c", script]);
        assert_eq!(exec.input("in\n").run().succeeded().says("in\na\nb\nc\n").err(), "e\n", "{user}");
    }
}

/// As a server that starts one command for each connection has it: the connection is input and output.
fn a_socket_stays_with_the_host(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let script = "read line; echo \"$line\"; for number in 0 1 2; do readlink /proc/self/fd/$number; done";
    let busybox = sandbox.busybox();
    for words in [&["run", "--from", busybox, "--net", "none"][..], &["exec", "-i", "web"]] {
        for (mine, mut peer) in [of_tcp(), of_local()] {
            let mut command = Command::new(sandbox.program());
            command.arg("--root").arg(sandbox.root()).args(words).args(["--", "sh", "-c", script]);
            let copy = || mine.try_clone().expect("a descriptor can be copied");
            let mut child = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn().expect("the command starts");
            drop((command, mine));
            peer.write_all(b"hello\n").expect("the command reads");
            let mut printed = String::new();
            peer.read_to_string(&mut printed).expect("the command prints, and ends");
            assert!(child.wait().expect("it was started").success(), "{words:?}: {printed}");
            let lines: Vec<&str> = printed.lines().map(|line| line.split(':').next().unwrap_or_default()).collect();
            assert_eq!(lines, ["hello", "pipe", "pipe", "pipe"], "{words:?}");
        }
    }
}

/// A connection over loopback: what the command gets, and its other end.
fn of_tcp() -> (OwnedFd, File) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback's");
    let peer = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("somebody listens");
    let (mine, _) = listener.accept().expect("a connection");
    (mine.into(), OwnedFd::from(peer).into())
}

fn of_local() -> (OwnedFd, File) {
    let (mine, peer) = UnixStream::pair().expect("a pair of sockets");
    (mine.into(), OwnedFd::from(peer).into())
}

/// The command with its output into a file, by a shell.
fn into_file(sandbox: &Sandbox, words: &[&str], redirection: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$@\" {redirection}"), "sh"]).arg(sandbox.program());
    command.arg("--root").arg(sandbox.root()).args(words);
    command
}

fn files_are_opened_by_name(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("printed");
    let redirection = format!(">>{} 2>&1", file.display());
    let script = "echo first; echo second >/dev/stdout; echo third >/dev/stderr; echo last";
    for who in WHO {
        std::fs::write(&file, "before\n").expect("a file");
        let words = [&["run", "--from", sandbox.busybox()], who, &["--", "sh", "-c", script]].concat();
        let status = into_file(sandbox, &words, &redirection).status().expect("a shell");
        let text = std::fs::read_to_string(&file).expect("it is there");
        assert_eq!(text, "before\nfirst\nsecond\nthird\nlast\n", "{who:?}");
        assert!(status.success(), "{who:?}: {status}");
    }
}

fn output_and_errors_in_one_file_stay_in_order(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("printed");
    let script = "i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); echo $i >&2; i=$((i+1)); done";
    let words = ["run", "--from", sandbox.busybox(), "--", "sh", "-c", script];
    let status = into_file(sandbox, &words, &format!(">{} 2>&1", file.display())).status().expect("a shell");
    assert!(status.success());
    let expected: String = (0..500).map(|number| format!("{number}\n")).collect();
    assert!(std::fs::read_to_string(&file).expect("it is there") == expected, "the order is another");
}

fn a_file_keeps_what_descendants_print(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let file = sandbox.scratch().join("printed");
    let script = "(until [ -e /go ]; do sleep 0.1; done; echo late; echo later) & echo begun";
    let words = ["exec", "web", "--", "sh", "-c", script];
    let status = into_file(sandbox, &words, &format!(">{}", file.display())).status().expect("a shell");
    assert!(status.success());
    let text = || std::fs::read_to_string(&file).expect("it is there");
    assert_eq!(text(), "begun\n", "the command is over, and what it printed is there");
    sandbox.exec_sh("web", ": >/go").ok();
    eventually("what was left behind prints on", || text() == "begun\nlate\nlater\n");
}

fn a_log_is_not_emptied_by_its_name(sandbox: &Sandbox) {
    let script = "echo first; echo second >/dev/stdout; echo third >/dev/stderr; echo last";
    for (number, who) in WHO.into_iter().enumerate() {
        let name = format!("job{number}");
        sandbox.create(&name, &[who, &["--", "sh", "-c", script]].concat());
        sandbox.pando(["start", &name]).ok();
        sandbox.becomes(&name, "stopped");
        sandbox.pando(["logs", &name]).run().succeeded().says("first\nsecond\nthird\nlast\n");
    }
}

/// A name gives no more than the descriptor does.
fn a_pipe_is_opened_no_other_way(sandbox: &Sandbox) {
    let script =
        "(echo x >/proc/self/fd/0) 2>/dev/null && echo wrote; (cat </proc/self/fd/1) 2>/dev/null && echo read; true";
    sandbox.run_sh(&[], script).run().succeeded().says("");
    sandbox.run_sh(&["-u", "ada"], script).run().succeeded().says("");
}

fn a_web_server_logs_to_it(sandbox: &Sandbox) {
    let settings = "daemon off; error_log /dev/stderr notice; pid /tmp/pid; events {} \
                    http { access_log /dev/stdout; server { listen 127.0.0.1:8079; } }";
    let script = format!(
        "echo '{settings}' >/tmp/conf; nginx -c /tmp/conf & \
         until [ -s /tmp/pid ]; do kill -0 $! || exit 3; sleep 0.1; done; kill -QUIT $(cat /tmp/pid); wait $!"
    );
    let ended = sandbox.pando(["run", "--net", "none", "--", "sh", "-c", &script]).run().succeeded();
    assert!(ended.err().contains("start worker process"), "{}", ended.err());
}

/// What a reader gets who takes a piece at a time, and waits in between.
fn slowly(mut command: Command) -> usize {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = child.stdout.take().expect("it was asked for");
    let (mut piece, mut all) = (vec![0; 16 << 10], 0);
    loop {
        std::thread::sleep(Duration::from_millis(300));
        match output.read(&mut piece).expect("a pipe") {
            0 => break,
            length => all += length,
        }
    }
    assert!(child.wait().expect("it is ours").success());
    all
}

fn a_slow_reader_gets_all_of_a_terminal(sandbox: &Sandbox) {
    const PRINTED: usize = 150_000;
    let script = format!("head -c {PRINTED} /dev/zero | tr '\\0' x");
    sandbox.guest("web", &[]);
    let run = ["run", "-t", "--from", sandbox.busybox(), "--", "sh", "-c", &script];
    let exec = ["exec", "-t", "web", "--", "sh", "-c", &script];
    for words in [run.as_slice(), &exec] {
        assert_eq!(slowly(into_file(sandbox, words, "")), PRINTED, "{}", words[0]);
    }
}

fn a_reader_that_goes_ends_a_terminals_command(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let script = "trap 'echo told >/told; exit 1' HUP; while :; do echo more; done";
    let head = |words: &str| {
        let line = format!("{} --root {} {words} | head -n 1", sandbox.program().display(), sandbox.root().display());
        let line = crate::line::Line::new("sh").args(["-c", &line]).run().succeeded();
        assert_eq!(line.out(), "more\r\n");
    };
    head(&format!("exec -t web -- sh -c \"{script}\""));
    eventually("the command has heard of it", || {
        sandbox.exec_sh("web", "cat /told 2>/dev/null").run().out() == "told\n"
    });
    head(&format!("run -t --from {} -- sh -c 'while :; do echo more; done'", sandbox.busybox()));
}

//! Many clients at once, and clients that are not the command.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::process;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("clients::fifty_at_once", fifty_at_once),
    Case::new("clients::the_first_commands_start_one_daemon", the_first_commands_start_one_daemon),
    Case::new("clients::who_starts_the_daemon_may_have_blocked_signals", with_signals_blocked),
    Case::new("clients::who_starts_the_daemon_may_be_urgent", by_somebody_urgent)
        .needs(&[Need::Root, Need::Program("chrt", "util-linux")]),
    Case::new("clients::a_dying_daemon_is_not_noticed", a_dying_daemon_is_not_noticed),
    Case::new("clients::nonsense_on_the_socket_harms_nobody", nonsense_on_the_socket_harms_nobody),
    Case::new("clients::any_varlink_client", any_varlink_client)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
];

fn fifty_at_once(sandbox: &Sandbox) {
    sandbox.guest("shared", &[]);
    let clients: Vec<_> = (0..50)
        .map(|number| match number % 3 {
            0 => sandbox.run_sh(&[], &format!("echo {number}; exit {number}")).limit(120).start(),
            1 => sandbox.exec_sh("shared", &format!("echo {number}; exit {number}")).limit(120).start(),
            _ => life_of(sandbox, &format!("g{number}")).limit(120).start(),
        })
        .collect();
    for (number, client) in (0..).zip(clients) {
        match number % 3 {
            2 => drop(client.wait().succeeded()),
            _ => drop(client.wait().ended_with(number).says(&format!("{number}\n"))),
        }
    }
    assert_eq!(sandbox.pando(["ls", "-q"]).ok(), "shared\n");
}

/// Control groups of version 1 take in no real-time process that they have no time for.
fn by_somebody_urgent(sandbox: &Sandbox) {
    let command = [sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str(), "run".as_ref()];
    let policy = "cut -d ' ' -f 41 /proc/1/stat";
    let words = ["--from", sandbox.busybox(), "--", "sh", "-c", policy].map(std::ffi::OsStr::new);
    let told = Line::new("chrt").args(["--fifo", "1"]).args(command).args(words).ok();
    assert_eq!(told, "0\n", "SCHED_OTHER: see sched(7) and proc(5)");
}

fn with_signals_blocked(sandbox: &Sandbox) {
    let words = [sandbox.program().as_os_str(), "--root".as_ref(), sandbox.root().as_os_str(), "ls".as_ref()];
    Line::new("env").args(["--block-signal=TERM"]).args(words).ok();
    sandbox.end_daemon();
}

/// create, start, exec, stop and rm of one guest.
fn life_of(sandbox: &Sandbox, name: &str) -> Line {
    let script = r#"
        set -e
        "$PANDO" create "$NAME" --from "$TREE" -- sleep 100000
        "$PANDO" start "$NAME"
        [ "$("$PANDO" exec "$NAME" -- hostname)" = "$NAME" ]
        "$PANDO" stop --time 1 "$NAME"
        "$PANDO" rm "$NAME"
    "#;
    let line = Line::new("sh").args(["-c", script]).env("PANDO_ROOT", sandbox.root()).env("NAME", name);
    line.env("PANDO", sandbox.program()).env("TREE", sandbox.busybox())
}

fn the_first_commands_start_one_daemon(sandbox: &Sandbox) {
    let clients: Vec<_> = (0..10).map(|_| sandbox.pando(["ls"]).start()).collect();
    for client in clients {
        client.wait().succeeded();
    }
    let daemons = sandbox.processes().into_iter().filter(|process| process.words.iter().any(|word| word == "daemon"));
    crate::patience::eventually("one daemon is left", || sandbox.daemon().is_some());
    assert!(daemons.count() >= 1);
    sandbox.pando(["daemon"]).run().ended_with(125).complains_of(&["another daemon"]);
}

/// A killed daemon takes connections until the last of it has gone: what it did not read is asked of the next.
fn a_dying_daemon_is_not_noticed(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let listed = sandbox.pando(["ls", "-q"]).ok();
    for _ in 0..20 {
        process::kill(sandbox.daemon().expect("it runs"));
        sandbox.pando(["inspect", "web"]).ok();
        process::kill(sandbox.daemon().expect("it runs"));
        assert_eq!(sandbox.pando(["ls", "-q"]).ok(), listed);
    }
}

fn nonsense_on_the_socket_harms_nobody(sandbox: &Sandbox) {
    use std::io::{Read, Write};
    sandbox.pando(["ls"]).ok();
    let socket = sandbox.places().socket();
    let calls: [&[u8]; 7] = [
        b"\0",
        b"nonsense\0",
        b"{\0",
        b"{\"method\":\"org.pando.Guests.Fly\"}\0",
        b"{\"method\":\"org.pando.Guests.Start\",\"parameters\":{\"name\":7}}\0",
        b"{\"method\":\"org.pando.Guests.Run\",\"parameters\":{}}\0",
        &[b'['; 100_000],
    ];
    for call in calls {
        let mut client = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
        let _ = client.write_all(call);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let _ = client.set_read_timeout(Some(crate::patience::seconds(10)));
        let _ = client.read(&mut [0; 1024]);
    }
    sandbox.run_sh(&[], "echo fine").run().succeeded().says("fine\n");
}

const VARLINK: &str = r#"
import sys, varlink
with varlink.Client.new_with_address("unix:" + sys.argv[1]) as client:
    info = client.get_service_info() if hasattr(client, "get_service_info") else None
    with client.open("org.varlink.service") as service:
        got = service.GetInfo()
        assert "org.pando.Guests" in got["interfaces"], got
        text = service.GetInterfaceDescription("org.pando.Guests")["description"]
        assert "method List()" in text, text
    with client.open("org.pando.Guests") as guests:
        assert guests.List()["guests"] == []
        spec = {"command": ["sleep", "100000"], "stop_grace": 1}
        guests.Create("web", sys.argv[2], spec, False)
        assert guests.List()["guests"][0]["state"] == "stopped"
        guests.Start("web")
        assert guests.List()["guests"][0]["state"] == "running"
        try:
            guests.Start("web")
            raise SystemExit("a second start went well")
        except varlink.VarlinkError as error:
            assert error.error() == "org.pando.Guests.GuestRunning", error
            assert error.parameters()["object"] == "web", error
        guests.Stop("web", None, None)
        guests.Remove("web", False)
        assert guests.List()["guests"] == []
print("all well")
"#;

fn any_varlink_client(sandbox: &Sandbox) {
    let place = sandbox.scratch().join("venv");
    let path = place.to_string_lossy().into_owned();
    let made = Line::new("python3").args(["-m", "venv", &path]).limit(120).run();
    let pip = place.join("bin/pip");
    if made.code() != 0 || Line::new(&pip).args(["install", "--quiet", "varlink"]).limit(120).run().code() != 0 {
        crate::case::skip("the package varlink cannot be had from PyPI here");
    }
    sandbox.pando(["ls"]).ok();
    let socket = sandbox.places().socket().to_string_lossy().into_owned();
    let ended = Line::new(place.join("bin/python3")).args(["-c", VARLINK, &socket, sandbox.busybox()]).run();
    ended.succeeded().says("all well\n");
}

//! `pando run`: a command in a fresh guest, gone with it.

use crate::case::{Case, Tag};
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::world::World;
use rustix::process::Signal;

const VM: &[Tag] = &[Tag::Vm];

pub(crate) const CASES: &[Case] = &[
    Case::new("run::on_the_hosts_own_root", on_the_hosts_own_root).tags(VM),
    Case::new("run::on_every_processor", runs_on_every_processor),
    Case::new("run::gives_the_commands_exit_code", gives_the_commands_exit_code).tags(VM),
    Case::new("run::tells_126_and_127_apart", tells_126_and_127_apart),
    Case::new("run::passes_input_and_output", passes_input_and_output),
    Case::new("run::passes_ten_megabytes_both_ways", passes_ten_megabytes_both_ways),
    Case::new("run::sets_environment_user_and_directory", sets_environment_user_and_directory),
    Case::new("run::ignores_no_signal", ignores_no_signal),
    Case::new("run::leaves_nothing", leaves_nothing).tags(VM),
    Case::new("run::drops_what_the_guest_wrote", drops_what_the_guest_wrote),
    Case::new("run::takes_a_name_while_it_lasts", takes_a_name_while_it_lasts),
    Case::new("run::passes_signals_on", passes_signals_on),
    Case::new("run::dies_with_its_command_and_all_it_started", dies_with_its_command_and_all_it_started).tags(VM),
    Case::new("run::nothing_goes_on_once_it_has_returned", nothing_goes_on_once_it_has_returned),
    Case::new("run::outlives_nobody_reading", outlives_nobody_reading),
    Case::new("run::needs_a_command", needs_a_command),
    Case::new("run::reads_a_spec_file", reads_a_spec_file),
];

fn on_the_hosts_own_root(sandbox: &Sandbox) {
    sandbox.pando(["run", "--", "echo", "hello"]).run().succeeded().says("hello\n");
    sandbox
        .pando(["run", "--", "/bin/sh", "-c", "echo words >&2; exit 3"])
        .run()
        .ended_with(3)
        .complains_of(&["words"]);
}

fn gives_the_commands_exit_code(sandbox: &Sandbox) {
    for code in [0, 1, 42, 124, 255] {
        sandbox.run_sh(&[], &format!("exit {code}")).run().ended_with(code);
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        sandbox.run_sh(&[], &format!("kill -{signal} $$")).run().ended_with(code);
    }
}

/// A start that is alone has its first process wait on some processors only.
fn runs_on_every_processor(sandbox: &Sandbox) {
    let allowed = |text: &str| text.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned);
    let ours = allowed(&std::fs::read_to_string("/proc/self/status").expect("it can be read"));
    // The first two have no root file system that was made ahead, and are not roused. Others are made in the pauses.
    for _ in 0..8 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let ended = sandbox.run_sh(&[], "cat /proc/1/status /proc/self/status").run().succeeded();
        let lines: Vec<_> = ended.out().lines().filter_map(allowed).collect();
        assert_eq!(lines.len(), 2, "{}", ended.out());
        assert!(lines.iter().all(|line| Some(line) == ours.as_ref()), "{lines:?}, and here {ours:?}");
    }
}

fn tells_126_and_127_apart(sandbox: &Sandbox) {
    let run = |command: &str| sandbox.pando(["run", "--from", sandbox.busybox(), "--", command]).run();
    run("no-such-command").ended_with(127).complains_of(&["no-such-command"]);
    run("/no/such/command").ended_with(127).complains_of(&["/no/such/command"]);
    run("/bin/not-a-program").ended_with(126).complains_of(&["/bin/not-a-program"]);
    run("/bin").ended_with(126).complains_of(&["/bin"]);
}

fn passes_input_and_output(sandbox: &Sandbox) {
    let ended = sandbox.run_sh(&[], "cat; echo aside >&2").input("in\nand out").run().succeeded().says("in\nand out");
    assert_eq!(ended.err(), "aside\n");
    sandbox.run_sh(&[], "cat | wc -c").run().succeeded().says("0\n");
}

fn passes_ten_megabytes_both_ways(sandbox: &Sandbox) {
    let bytes: Vec<u8> = (0..10_485_760_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let ended = sandbox.run_sh(&[], "cat").input(bytes.clone()).run().succeeded();
    assert!(ended.stdout == bytes, "{} bytes came back, or others", ended.stdout.len());
}

/// Not even one that whoever started the daemon ignores.
fn ignores_no_signal(sandbox: &Sandbox) {
    let root = sandbox.root().as_os_str();
    Line::new("sh")
        .args(["-c", r#"trap '' HUP INT QUIT USR1; exec "$@""#, "sh"])
        .args([sandbox.program().as_os_str(), "--root".as_ref(), root])
        .args(["run", "--from", sandbox.busybox(), "--", "grep", "SigIgn", "/proc/self/status"])
        .run()
        .succeeded()
        .says("SigIgn:\t0000000000000000\n");
}

fn sets_environment_user_and_directory(sandbox: &Sandbox) {
    let told = sandbox
        .run_sh(
            &["-e", "A=b=c", "-e", "FROM_CALLER", "-u", "ada", "-w", "/srv"],
            "echo $A $FROM_CALLER $(id -u):$(id -g) $(pwd) $HOME",
        )
        .env("FROM_CALLER", "taken")
        .env("NOT_NAMED", "must not come along");
    told.run().succeeded().says("b=c taken 1000:1000 /srv /home/ada\n");
    sandbox.run_sh(&["-u", "1000:50"], "id -u; id -g").run().succeeded().says("1000\n50\n");
    sandbox.run_sh(&["-u", "7:8"], "id -u; id -g").run().succeeded().says("7\n8\n");
    let environment = sandbox.run_sh(&[], "env").env("SECRET_OF_THE_CALLER", "1").ok();
    assert!(!environment.contains("SECRET_OF_THE_CALLER"), "{environment}");
    sandbox.run_sh(&["-u", "bob"], "true").run().ended_with(125).complains_of(&["bob"]);
    sandbox.run_sh(&["-w", "/no/where"], "true").run().ended_with(125).complains_of(&["/no/where"]);
    // One that fits no message of the daemon's to the guest's first process.
    let long = format!("LONG={}", "x".repeat(60_000));
    sandbox.run_sh(&["--env", &long], "echo ${#LONG}").run().succeeded().says("60000\n");
}

fn leaves_nothing(sandbox: &Sandbox) {
    sandbox.run_sh(&[], "true").ok();
    let before = World::of(sandbox);
    for script in ["true", "exit 9", "kill -9 $$", "sleep 1000 & exit 0"] {
        sandbox.run_sh(&[], script).run();
    }
    sandbox.pando(["run", "--", "true"]).ok();
    sandbox.pando(["run", "--from", sandbox.busybox(), "--", "no-such-command"]).run().ended_with(127);
    before.is_unchanged(sandbox, "after runs that ended in every way");
}

fn drops_what_the_guest_wrote(sandbox: &Sandbox) {
    sandbox.run_sh(&[], "echo x >/srv/written && rm /etc/hostname && cat /srv/written").run().succeeded().says("x\n");
    sandbox.run_sh(&[], "cat /etc/hostname; ls /srv").run().succeeded().says("tree\n");
}

fn takes_a_name_while_it_lasts(sandbox: &Sandbox) {
    let first = sandbox.pando(["run", "--name", "fleeting", "--from", sandbox.busybox(), "--", "cat"]).start();
    drop(first);
    let waiting =
        sandbox.pando(["run", "--name", "waiting", "--from", sandbox.busybox(), "--", "sleep", "1000"]).start();
    sandbox.becomes("waiting", "running");
    let second = sandbox.pando(["run", "--name", "waiting", "--from", sandbox.busybox(), "--", "true"]).run();
    second.ended_with(125).complains_of(&["waiting"]);
    sandbox.exec_sh("waiting", "hostname").run().succeeded().says("waiting\n");
    sandbox.pando(["kill", "waiting"]).ok();
    waiting.wait().ended_with(137);
    sandbox.becomes("waiting", "absent");
}

fn passes_signals_on(sandbox: &Sandbox) {
    let script = "trap 'echo told; exit 5' TERM; echo ready; : >/ready; while :; do sleep 0.1; done";
    let name = ["--name", "told"];
    let running = sandbox.run_sh(&name, script).start();
    sandbox.becomes("told", "running");
    // Its shell is there a moment before its trap is.
    sandbox.exec_sh("told", "until [ -e /ready ]; do sleep 0.1; done").ok();
    running.signal(Signal::TERM);
    running.wait().ended_with(5).says("ready\ntold\n");
}

fn dies_with_its_command_and_all_it_started(sandbox: &Sandbox) {
    let script = "for i in 1 2 3; do (trap '' TERM HUP; sleep 1000) >/dev/null 2>&1 </dev/null & done; setsid sleep 1000 >/dev/null 2>&1 & echo started";
    sandbox.run_sh(&[], script).run().succeeded().says("started\n");
    let sleeps =
        || sandbox.processes().into_iter().filter(|process| process.words.iter().any(|word| word == "sleep")).count();
    eventually("its processes are gone", || sleeps() == 0);
}

/// Its end is told before the kernel has taken the guest apart, but not while anything is left in it to run.
fn nothing_goes_on_once_it_has_returned(sandbox: &Sandbox) {
    const WRITER: &str = "while :; do echo word >> /shared/told; done";
    let shared = sandbox.scratch();
    let told = shared.join("told");
    let volume = format!("{}:/shared", shared.display());
    let written = || std::fs::metadata(&told).map_or(0, |found| found.len());
    let went_on = || {
        let before = written();
        std::thread::sleep(std::time::Duration::from_millis(20));
        written() - before
    };
    for round in 0..10 {
        let begun = written();
        sandbox
            .run_sh(&["--volume", &volume], &format!("{WRITER} & until [ -s /shared/told ]; do :; done; exit {round}"))
            .run()
            .ended_with(round);
        assert_eq!(went_on(), 0, "what the command left behind goes on");
        let visited = sandbox.run_sh(&["--name", "visited", "--volume", &volume], "read word");
        let visited = visited.start_with_open_input();
        eventually("it runs", || sandbox.pando(["exec", "visited", "--", "true"]).run().code() == 0);
        let visitor = sandbox.exec_sh("visited", WRITER).start();
        eventually("the visitor writes", || written() > begun + 100);
        visited.close_input().wait();
        assert_eq!(went_on(), 0, "a visitor goes on");
        drop(visitor.wait());
        std::fs::remove_file(&told).expect("what was told can be removed");
    }
}

fn outlives_nobody_reading(sandbox: &Sandbox) {
    let line = format!(
        "'{}' --root '{}' run --from '{}' -- yes | head -n 1; echo ${{PIPESTATUS[0]}}",
        sandbox.program().display(),
        sandbox.root().display(),
        sandbox.busybox()
    );
    let ended = crate::line::Line::new("bash").args(["-c", &line]).run().succeeded();
    assert!(ended.out().starts_with("y\n"), "{}", ended.out());
    eventually("the guest ends with its reader", || sandbox.pando(["ls", "-q"]).ok().is_empty());
}

fn needs_a_command(sandbox: &Sandbox) {
    sandbox.pando(["run", "--from", sandbox.busybox()]).run().ended_with(125).complains_of(&["nothing to run"]);
}

fn reads_a_spec_file(sandbox: &Sandbox) {
    let spec = sandbox.scratch().join("spec.toml");
    std::fs::write(&spec, "hostname = \"of-the-file\"\ncommand = [\"hostname\"]\n[env]\nA = \"1\"\n").expect("a file");
    let spec = spec.to_string_lossy().into_owned();
    let run = |more: &[&str]| sandbox.pando(["run", "--from", sandbox.busybox(), "--spec", &spec]).args(more).run();
    run(&[]).succeeded().says("of-the-file\n");
    run(&["--hostname", "of-the-line"]).succeeded().says("of-the-line\n");
    run(&["--", "sh", "-c", "echo $A"]).succeeded().says("1\n");
}

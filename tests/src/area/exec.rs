//! exec and shell: processes in a guest that runs.

use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use rustix::process::Signal;

pub(crate) const CASES: &[Case] = &[
    Case::new("exec::gives_the_commands_exit_code", gives_the_commands_exit_code),
    Case::new("exec::reads_no_file_of_the_kernels_for_a_list_of_users", reads_no_file_of_the_kernels),
    Case::new("exec::passes_input_and_output", passes_input_and_output),
    Case::new("exec::sets_environment_user_and_directory", sets_environment_user_and_directory),
    Case::new("exec::is_inside_the_guest", is_inside_the_guest),
    Case::new("exec::passes_signals_on", passes_signals_on),
    Case::new("exec::ends_with_its_guest", ends_with_its_guest),
    Case::new("exec::needs_a_running_guest", needs_a_running_guest),
    Case::new("exec::shell_reads_a_script", shell_reads_a_script),
    Case::new("exec::many_at_once_in_one_guest", many_at_once_in_one_guest),
    Case::new("exec::no_foreign_descriptor_comes_along", no_foreign_descriptor_comes_along),
];

fn gives_the_commands_exit_code(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    for code in [0, 3, 255] {
        sandbox.exec_sh("web", &format!("exit {code}")).run().ended_with(code);
    }
    sandbox.exec_sh("web", "kill -KILL $$").run().ended_with(137);
    let exec = |command: &str| sandbox.pando(["exec", "web", "--", command]).run();
    exec("no-such-command").ended_with(127).complains_of(&["no-such-command"]);
    exec("/bin/not-a-program").ended_with(126).complains_of(&["/bin/not-a-program"]);
}

/// To read a file of /proc may do more than that, and root of the host is shown what a guest is not.
fn reads_no_file_of_the_kernels(sandbox: &Sandbox) {
    let name = "printf 'ada:x:7:7::/:' >/proc/self/comm; mv /etc/passwd /etc/former; \
                ln -s /proc/$$/comm /etc/passwd; sleep 1000; :";
    sandbox.guest("web", &["--", "sh", "-c", name]);
    eventually("it is named so", || sandbox.exec_sh("web", "cat /etc/passwd").run().out() == "ada:x:7:7::/:\n");
    sandbox.pando(["exec", "--user", "ada", "web", "--", "id"]).run().ended_with(125).complains_of(&["'ada'"]);
}

fn passes_input_and_output(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let ended = sandbox.exec_sh("web", "cat; echo aside >&2").input("in\n").run().succeeded().says("in\n");
    assert_eq!(ended.err(), "aside\n");
    let bytes = vec![b'x'; 10_485_760];
    let ended = sandbox.exec_sh("web", "cat").input(bytes.clone()).run().succeeded();
    assert!(ended.stdout == bytes, "{} bytes came back, or others", ended.stdout.len());
    sandbox.exec_sh("web", "head -c 10485760 /dev/zero | tr '\\0' y").run().succeeded();
}

fn sets_environment_user_and_directory(sandbox: &Sandbox) {
    sandbox.guest("web", &["-e", "A=guest", "-e", "B=guest", "-w", "/srv", "-u", "ada"]);
    sandbox.exec_sh("web", "echo $A $B $(pwd) $(id -un)").run().says("guest guest /srv ada\n");
    let exec = sandbox.pando(["exec", "-e", "A=exec", "-u", "root", "-w", "/etc", "web", "--"]);
    exec.args(["sh", "-c", "echo $A $B $(pwd) $(id -un)"]).run().succeeded().says("exec guest /etc root\n");
    sandbox.pando(["exec", "-u", "bob", "web", "--", "true"]).run().ended_with(125).complains_of(&["bob"]);
    sandbox.pando(["exec", "-w", "/no/where", "web", "--", "true"]).run().ended_with(125).complains_of(&["/no/where"]);
}

fn is_inside_the_guest(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "1000"]);
    let names = "for n in cgroup ipc mnt net pid user uts; do readlink /proc/$1/ns/$n; done";
    let of_exec = sandbox.exec_sh("web", &names.replace("$1", "self")).ok();
    let first = sandbox.first_process("web");
    for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let link = std::fs::read_link(format!("/proc/{first}/ns/{name}")).expect("a namespace");
        assert!(of_exec.contains(&*link.to_string_lossy()), "{name} differs: {of_exec}");
    }
    let groups = std::fs::read_to_string(format!("/proc/{first}/cgroup")).expect("its groups");
    let sleeper = sandbox.exec_sh("web", "echo ready >/ready; exec sleep 999").start();
    eventually("the exec'd process sleeps in the guest's groups", || {
        let all = sandbox.processes();
        all.iter().any(|process| process.words.iter().any(|word| word == "999") && process.groups == groups)
    });
    sandbox.pando(["kill", "web"]).ok();
    sleeper.wait();
}

fn passes_signals_on(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let script = "trap 'echo told; exit 5' INT; : >/ready; while :; do sleep 0.1; done";
    let running = sandbox.exec_sh("web", script).start();
    sandbox.exec_sh("web", "until [ -e /ready ]; do sleep 0.1; done").ok();
    running.signal(Signal::INT);
    running.wait().ended_with(5).says("told\n");
    assert_eq!(sandbox.state("web"), "running");
}

fn ends_with_its_guest(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let running = sandbox.exec_sh("web", ": >/ready; exec sleep 1000").start();
    sandbox.exec_sh("web", "until [ -e /ready ]; do sleep 0.1; done").ok();
    sandbox.pando(["kill", "web"]).ok();
    running.wait().ended_with(137);
    sandbox.becomes("web", "stopped");
}

fn needs_a_running_guest(sandbox: &Sandbox) {
    sandbox.create("web", &[]);
    sandbox.exec_sh("web", "true").run().ended_with(125).complains_of(&["web", "not running", "pando start web"]);
    sandbox.exec_sh("nobody", "true").run().ended_with(125).complains_of(&["nobody", "pando ls"]);
}

fn shell_reads_a_script(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let shell = |user: &str| sandbox.pando(["shell", "-u", user, "web"]).input("echo $HOME $(id -un); exit 6\n").run();
    shell("root").ended_with(6).says("/root root\n");
    shell("ada").ended_with(6).says("/home/ada ada\n");
}

fn many_at_once_in_one_guest(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let started: Vec<_> =
        (0..30).map(|number| sandbox.exec_sh("web", &format!("echo {number}; exit {number}")).start()).collect();
    for (number, one) in (0..).zip(started) {
        one.wait().ended_with(number).says(&format!("{number}\n"));
    }
}

/// Descriptors of one client must never show up in another's guest.
fn no_foreign_descriptor_comes_along(sandbox: &Sandbox) {
    let listed = "n=0; while [ $n -lt 64 ]; do [ -e /proc/$$/fd/$n ] && echo -n \"$n \"; n=$((n + 1)); done; true";
    sandbox.run_sh(&[], "true").input("x").run().succeeded();
    for _ in 0..6 {
        sandbox.run_sh(&[], listed).run().says("0 1 2 ");
    }
    sandbox.guest("web", &[]);
    sandbox.exec_sh("web", listed).run().says("0 1 2 ");
}

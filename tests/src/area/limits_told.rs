//! What programs and people are told of limits: runtimes of languages read how much memory and how many processors they
//! may use out of control groups, and whoever's command was ended for memory learns that from whatever he looks at.

use crate::case::{Case, Tag};
use crate::line::Ended;
use crate::need::Need;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("limits_told::runtimes_find_them_in_control_groups", runtimes_find_them_in_control_groups)
        .tags(&[Tag::Vm]),
    Case::new("limits_told::a_java_program_goes_by_them", a_java_program_goes_by_them)
        .needs(&[Need::Root, Need::Program("java", "default-jre-headless")]),
    Case::new("limits_told::a_death_for_memory_is_said", a_death_for_memory_is_said).tags(&[Tag::Vm]),
];

/// Prints a limit of memory and one of processor time as a runtime finds them: in version 1 in the hierarchy that has
/// the controller, else in version 2.
const LOOK: &str = "cd /sys/fs/cgroup; \
    if [ -e memory/memory.limit_in_bytes ]; then cat memory/memory.limit_in_bytes; else cat memory.max unified/memory.max 2>/dev/null; fi; \
    if [ -e cpu/cpu.cfs_quota_us ]; then echo $(cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us); else cat cpu.max unified/cpu.max 2>/dev/null; fi";

fn runtimes_find_them_in_control_groups(sandbox: &Sandbox) {
    for (name, options) in [("plain", &[][..]), ("own", &["--profile", "system"]), ("hosts", &["--userns", "host"])] {
        sandbox.guest(name, &[&["--memory", "64M", "--cpu-limit", "1"], options].concat());
        sandbox.exec_sh(name, LOOK).run().says("67108864\n20000 20000\n");
        // A change shows at once.
        sandbox.pando(["set", name, "memory.limit=128M", "cpu.limit=0.5"]).ok();
        sandbox.exec_sh(name, LOOK).run().says("134217728\n10000 20000\n");
        // It is there to be read.
        let write = "for file in $(find /sys/fs/cgroup -name 'memory.limit_in_bytes' -o -name memory.max -o -name 'cpu.*quota*' -o -name cpu.max); do \
            echo 500M >$file; echo -1 >$file; echo max >$file; done 2>/dev/null; mkdir /sys/fs/cgroup/memory/x 2>/dev/null";
        let _ = sandbox.exec_sh(name, write).run();
        sandbox.exec_sh(name, LOOK).run().says("134217728\n10000 20000\n");
        sandbox.pando(["rm", "-f", name]).ok();
    }
    // Of a guest without limits nothing is shown that it has not.
    sandbox.guest("free", &[]);
    sandbox.exec_sh("free", "ls /sys/fs/cgroup/memory 2>/dev/null | wc -l").run().says("0\n");
}

fn a_java_program_goes_by_them(sandbox: &Sandbox) {
    let settings = ["java", "-XshowSettings:system", "-XX:+PrintFlagsFinal", "-version"];
    let limited = ["run", "--memory", "512M", "--cpu-limit", "1", "--"];
    let told = sandbox.pando(limited.iter().chain(&settings)).limit(120).run().succeeded();
    let heap = told.out().lines().find(|line| line.contains(" MaxHeapSize ")).unwrap_or_default().to_owned();
    // A quarter of what there is, by default.
    assert_eq!(heap.split_whitespace().nth(3), Some("134217728"), "{heap}");
    assert!(told.err().contains("Effective CPU Count: 1\n"), "{}", told.err());
}

/// Takes far more than a guest of 32 MiB has. Another test may have made swap for the whole machine: no guest here may
/// use that up.
const HOG: &str = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo survived";

fn a_death_for_memory_is_said(sandbox: &Sandbox) {
    let words = ["the kernel killed", "for want of memory", "32M"];
    let is_said = |ended: Ended| {
        let code = ended.code();
        assert!(code != 0, "it was killed");
        ended.ended_with(code).complains_of(&words);
    };
    is_said(sandbox.run_sh(&["--name", "passing", "--memory", "32M", "--swap", "0"], HOG).run());
    // Whoever reads the command's own standard error finds that in it alone, and a command that copes says nothing.
    // The kernel may take a second process, this one's parent, before the memory of the first is free.
    let cope = || sandbox.run_sh(&["--memory", "32M", "--swap", "0"], &format!("({HOG}); exit 0")).run();
    let copes = (0..6).map(|_| cope()).find(|ended| ended.code() == 0).expect("the parent is spared now and then");
    assert!(!copes.err().contains("pando:"), "{}", copes.err());

    sandbox.guest("stays", &["--memory", "32M", "--swap", "0"]);
    is_said(sandbox.exec_sh("stays", HOG).run());
    assert!(sandbox.inspect("stays")["status"]["oom_kills"].as_u64() >= Some(1));
    // Of what was killed before him the next caller hears nothing.
    let fails = sandbox.exec_sh("stays", "exit 3").run().ended_with(3);
    assert!(!fails.err().contains("memory"), "{}", fails.err());

    let command =
        ["create", "ends", "--from", sandbox.busybox(), "--memory", "32M", "--swap", "0", "--", "sh", "-c", HOG, ""];
    sandbox.pando(command).ok();
    sandbox.pando(["start", "ends"]).ok();
    sandbox.becomes("ends", "stopped");
    let line = sandbox.pando(["ls"]).ok();
    let line = line.lines().find(|line| line.starts_with("ends ")).unwrap_or_default();
    assert!(line.contains("out of memory"), "{line}");
    assert!(line.ends_with("survived ''"), "an empty argument is seen: {line}");
    assert!(sandbox.inspect("ends")["status"]["oom_kills"].as_u64() >= Some(1));
    sandbox.end_daemon();
    assert!(sandbox.inspect("ends")["status"]["oom_kills"].as_u64() >= Some(1), "it is remembered");
}

//! Limits that make no sense, or that no machine grants: each is refused with a sentence.

use crate::case::{Case, Tag};
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] =
    &[Case::new("limits::wrong_values_are_refused", wrong_values_are_refused).tags(&[Tag::Vm])];

/// An option, a value that makes no sense for it, and what its refusal says.
const WRONG: &[(&str, &str, &str)] = &[
    ("--cpu-reserve", "25", "such as 25%"),
    ("--cpu-reserve", "-5%", "negative"),
    ("--cpu-reserve", "0%", "leave it out"),
    ("--cpu-reserve", "101%", "100%"),
    ("--cpu-share", "0", "from 1 to 10000"),
    ("--cpu-share", "lots", "not a whole number"),
    ("--cpu-limit", "0", "lets nothing run"),
    ("--cpu-limit", "-1", "negative"),
    ("--cpu-limit", "5000", "processors"),
    ("--cpus", "8000", "no processor 8000"),
    ("--cpus", "x", "such as 0-1"),
    ("--memory", "0", "at least"),
    ("--memory", "-1G", "negative"),
    ("--memory", "12Q", "not a unit"),
    ("--memory", "900T", "of memory"),
    ("--memory-reserve", "900T", "of memory"),
    ("--swap", "x", "such as 512M"),
    ("--memory-locked", "-1", "negative"),
    ("--memory-anonymous", "0", "at least"),
    ("--memory-virtual", "0", "at least"),
    ("--shm-size", "0", "at least"),
    ("--sysv-shm", "x", "such as 512M"),
    ("--pids", "0", "at least"),
    ("--pids", "-7", "negative"),
    ("--files", "1", "at least"),
    ("--files-total", "0", "at least"),
    ("--files-total", "many", "whole number"),
    ("--io-weight", "0", "from 1 to 1000"),
    ("--io-read", "-1", "negative"),
    ("--io-write", "0", "at least"),
    ("--io-read-ops", "0", "at least"),
    ("--io-write-ops", "x", "whole number"),
    ("--disk", "1K", "at least"),
    ("--inodes", "0", "at least"),
    // What is no number at all, has an unknown unit, or is less than nothing.
    ("--cpu-reserve", "x", "such as 25%"),
    ("--cpu-share", "-1", "negative"),
    ("--cpu-limit", "x", "such as 1.5"),
    ("--cpus", "-1", "such as 0-1"),
    ("--memory", "lots", "such as 512M"),
    ("--memory-reserve", "-1M", "negative"),
    ("--memory-reserve", "1Q", "not a unit"),
    ("--swap", "-1", "negative"),
    ("--memory-locked", "x", "such as 512M"),
    ("--memory-anonymous", "-1", "negative"),
    ("--memory-virtual", "1Q", "not a unit"),
    ("--shm-size", "-1M", "negative"),
    ("--sysv-shm", "-1", "negative"),
    ("--pids", "x", "whole number"),
    ("--files", "-1", "negative"),
    ("--files", "x", "whole number"),
    ("--files-total", "-1", "negative"),
    ("--io-weight", "-1", "negative"),
    ("--io-weight", "1001", "from 1 to 1000"),
    ("--io-read", "1Q", "not a unit"),
    ("--io-write", "-1", "negative"),
    ("--io-read-ops", "-1", "negative"),
    ("--io-write-ops", "0", "at least"),
    ("--disk", "-1G", "negative"),
    ("--disk", "2Q", "not a unit"),
    ("--inodes", "-1", "negative"),
    ("--inodes", "x", "whole number"),
    // What no machine has, or this one's kernel grants nobody.
    ("--memory-locked", "900T", "of memory"),
    ("--shm-size", "900T", "of memory"),
    ("--sysv-shm", "900T", "of memory"),
    ("--pids", "99999999999", "kernel.pid_max"),
    ("--files", "2000000000", "RLIMIT_NOFILE"),
    ("--disk", "900T", "the file system"),
];

fn wrong_values_are_refused(sandbox: &Sandbox) {
    for (option, value, word) in WRONG {
        let option_is = format!("{option}={value}");
        let ended = sandbox.pando(["create", "never", "--from", sandbox.busybox(), &option_is]).run().ended_with(125);
        assert!(
            ended.err().contains(word) && ended.err().contains(&format!("'{value}'"))
                || ended.err().contains("machine")
                || ended.err().contains("900.0T"),
            "{option_is}: {}",
            ended.err()
        );
        assert!(ended.err().contains(word), "{option_is}: {}", ended.err());
    }
    assert!(sandbox.status("never").is_none());
    sandbox.guest("web", &[]);
    sandbox.pando(["set", "web", "memory.limit=lots"]).run().ended_with(125).complains_of(&["memory.limit", "'lots'"]);
    sandbox.pando(["set", "web", "memory.colour=red"]).run().ended_with(125).complains_of(&["colour"]);
    let both = ["create", "never", "--from", sandbox.busybox(), "--memory", "32M", "--memory-reserve", "64M"];
    sandbox.pando(both).run().ended_with(125).complains_of(&["memory.reserve", "32M"]);
}

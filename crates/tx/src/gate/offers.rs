//! The gates that this machine has for commits on the host, and what keeps it from each.

use super::{host_freeze, programs};
use pando_kernel::file::access_gate::AccessGate;
use pando_kernel::probe::{Finding, Verdict};

const AREA: &str = "transactions";

/// Tries each gate, without keeping anybody out.
pub fn offers() -> Vec<Finding> {
    let finding = |name, since, verdict, without| Finding { area: AREA, name, verdict, without, since, needed: false };
    let accesses = Verdict::from(AccessGate::new().map(drop));
    let standing = host_freeze::obstacle().map_or(Verdict::Granted, Verdict::Refused);
    let suspends = programs::trial().map_or(Verdict::Granted, Verdict::Refused);
    vec![
        finding(
            "gate bpf",
            "6.18",
            suspends,
            "who looks at names alone can see a part of a commit on the host, unless he is frozen",
        ),
        finding(
            "gate fanotify",
            "5.0",
            accesses,
            "others can see a part of a commit on the host, unless they are frozen",
        ),
        finding("gate freeze", "5.2", standing, "who looks at names alone can see a part of a commit on the host"),
    ]
}

//! BPF programs, by loading the smallest one of each kind and letting it go.

use super::{Area, Finding, Verdict, btf};
use crate::bpf::command::Load;
use std::io;

const AREA: Area = Area("bpf");

const BPF_CGROUP_INET4_CONNECT: u32 = 10;
const BPF_TRACE_FENTRY: u32 = 24;
const BPF_LSM_MAC: u32 = 27;
const BPF_SK_LOOKUP: u32 = 36;

/// `r0 = 0; exit`: a verdict that every kind may give.
const PROGRAM: [u64; 2] =
    [u64::from_ne_bytes([0xb7, 0, 0, 0, 0, 0, 0, 0]), u64::from_ne_bytes([0x95, 0, 0, 0, 0, 0, 0, 0])];

pub(super) fn find() -> Vec<Finding> {
    let types = std::fs::read(btf::PATH);
    let function = |name| types.as_deref().ok().and_then(|types| btf::function(types, name));
    let described = match (&types, function("vfs_read")) {
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Verdict::Missing,
        (Err(error), _) => Verdict::of(error),
        (Ok(_), None) => Verdict::Partial("it cannot be read".into()),
        (Ok(_), Some(_)) => Verdict::Granted,
    };
    let at = |kind, attach_type, function: Option<u32>| match function {
        None => Verdict::Refused("the kernel does not describe its types".into()),
        Some(function) => Verdict::from(load(kind, attach_type, function)),
    };
    let lsm = at(29, BPF_LSM_MAC, function("bpf_lsm_file_open"));
    let tracing = at(26, BPF_TRACE_FENTRY, function("vfs_read"));
    vec![
        AREA.wanted(
            "cgroup_sock_addr",
            "4.17",
            load(18, BPF_CGROUP_INET4_CONNECT, 0),
            "no addresses of guests' own on the shared network",
        ),
        AREA.wanted("sk_lookup", "5.9", load(30, BPF_SK_LOOKUP, 0), "no ports of guests' own on the shared network"),
        AREA.wanted("sched_cls", "4.1", load(3, 0, 0), "traffic of guests is not accounted for and shaped"),
        AREA.wanted("cgroup_device", "4.15", load(15, 0, 0), "devices are kept from guests by mounts and ids alone"),
        AREA.wanted("tracing", "5.5", tracing, "what guests touch is followed by slower means"),
        AREA.wanted("lsm", "5.7", active(lsm), "some denials fall back to Landlock and seccomp"),
        AREA.wanted("type information", "5.2", described, "no programs of kinds lsm and tracing"),
    ]
}

/// Loads the smallest program of a kind (numbers are those of `enum bpf_prog_type`).
fn load(kind: u32, attach_type: u32, hook: u32) -> io::Result<()> {
    let load = Load { kind, attach_type, hook, ..Load::default() };
    // SAFETY: it has no records of functions.
    unsafe { load.program(&PROGRAM, "pando_doctor") }.map(drop)
}

/// A program of the kind lsm may be loaded and attached, and never be asked: only this list tells.
fn active(verdict: Verdict) -> Verdict {
    let list = std::fs::read_to_string("/sys/kernel/security/lsm");
    match list {
        Ok(list) if verdict == Verdict::Granted && !list.trim().split(',').any(|name| name == "bpf") => {
            Verdict::Partial("loads, but is not asked: boot with bpf in lsm=".into())
        }
        _ => verdict,
    }
}

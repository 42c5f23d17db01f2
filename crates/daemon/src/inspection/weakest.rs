//! Which of a guest's processes are held by less than its first one is.
//!
//! What a process is held by it inherits, and cannot lay down; so one that is held by less came in another way, or not
//! as it should have. It is looked for all the same: what is told of a guest has to hold for every process of it.

use crate::inspection::security::field;
use pando_guest::policy::capabilities;
use pando_kernel::file::proc_file;
use pando_shim::Capabilities;
use std::path::PathBuf;

/// So many processes are looked at, and so many of them named.
const MOST: usize = 4_096;
const NAMED: usize = 8;

/// What holds a process, as the kernel tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) no_new_privileges: bool,
    pub(crate) filters: i64,
    pub(crate) bounding: Capabilities,
    pub(crate) held: Capabilities,
    /// The namespaces that it is in, by kind.
    pub(crate) namespaces: Vec<(&'static str, Option<PathBuf>)>,
}

impl Hold {
    /// What holds a process now; `None` once it has ended.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let status = proc_file::text(format!("/proc/{pid}/status")).ok()?;
        // One that has ended and is not waited for has nothing left to be held from.
        if field(&status, "State").is_some_and(|state| state.starts_with(['Z', 'X'])) {
            return None;
        }
        let of = |kind: &'static str| (kind, std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok());
        Some(Self { namespaces: crate::inspection::security::NAMESPACES.map(of).to_vec(), ..Self::read(&status) })
    }

    fn read(status: &str) -> Self {
        let set = |name| {
            field(status, name)
                .and_then(|text| Capabilities::from_str_radix(text, 16).ok())
                .unwrap_or(Capabilities::MAX)
        };
        Self {
            no_new_privileges: field(status, "NoNewPrivs") == Some("1"),
            filters: field(status, "Seccomp_filters").and_then(|text| text.parse().ok()).unwrap_or(0),
            bounding: set("CapBnd"),
            held: ["CapEff", "CapPrm", "CapInh", "CapAmb"].into_iter().fold(0, |all, name| all | set(name)),
            namespaces: Vec::new(),
        }
    }

    /// The namespace of a kind that it is in, as /proc names it.
    pub(crate) fn namespace(&self, kind: &str) -> Option<&PathBuf> {
        self.namespaces.iter().find(|(known, _)| *known == kind)?.1.as_ref()
    }

    /// In what a process is held by less than the first one; `host` is what holds the daemon.
    fn lacks(&self, first: &Self, host: &Self) -> Vec<String> {
        let mut lacks = Vec::new();
        if self.filters < first.filters {
            lacks.push(format!("its system calls pass {} filters, not {}", self.filters, first.filters));
        }
        if first.no_new_privileges && !self.no_new_privileges {
            lacks.push("executing a file may give it privilege".to_owned());
        }
        // In a user namespace made inside the guest it may hold what it likes, over what is in that.
        let more = (self.bounding | self.held) & !first.bounding;
        if more != 0 && self.namespace("user") == first.namespace("user") {
            lacks.push(format!("it may hold {}", capabilities::names(more).join(", ")));
        }
        for (kind, own) in &self.namespaces {
            let is_hosts = own.is_some() && own.as_ref() == host.namespace(kind);
            if is_hosts && first.namespace(kind) != host.namespace(kind) {
                lacks.push(format!("it is in the host's {kind} namespace"));
            }
        }
        lacks
    }
}

/// What is to be said of those of a guest's processes that are held by less than its first one, the weakest first; and
/// the fewest filters that the system calls of any pass.
pub(crate) fn among(first: &Hold, pids: &[i32]) -> (Vec<String>, i64) {
    let host = Hold::of(i32::try_from(std::process::id()).unwrap_or(0)).unwrap_or_default();
    let looked_at = pids.iter().take(MOST).filter_map(|pid| Some((*pid, Hold::of(*pid)?)));
    let mut weak = Vec::new();
    let mut fewest = first.filters;
    for (pid, hold) in looked_at {
        fewest = fewest.min(hold.filters);
        let lacks = hold.lacks(first, &host);
        if !lacks.is_empty() {
            weak.push((pid, lacks));
        }
    }
    weak.sort_by_key(|(pid, lacks)| (std::cmp::Reverse(lacks.len()), *pid));
    let more = weak.len().saturating_sub(NAMED);
    let mut said: Vec<String> =
        weak.iter().take(NAMED).map(|(pid, lacks)| format!("process {pid}: {}", lacks.join("; "))).collect();
    if more > 0 {
        said.push(format!("{more} more processes are held by less than the first one"));
    }
    if pids.len() > MOST {
        said.push(format!("{} of its processes were not looked at", pids.len() - MOST));
    }
    (said, fewest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(filters: i64, bounding: Capabilities, user: &str, net: &str) -> Hold {
        let namespaces = vec![("user", Some(user.into())), ("net", Some(net.into()))];
        Hold { no_new_privileges: true, filters, bounding, held: bounding, namespaces }
    }

    #[test]
    fn whoever_is_held_by_less_than_the_first_is_told_in_what() {
        let host = hold(0, 0xff, "user:[1]", "net:[1]");
        let first = hold(2, 0b11, "user:[2]", "net:[2]");
        assert!(first.lacks(&first, &host).is_empty());
        let said = |hold: Hold| hold.lacks(&first, &host).join("; ");
        assert_eq!(said(hold(1, 0b11, "user:[2]", "net:[2]")), "its system calls pass 1 filters, not 2");
        assert_eq!(said(hold(2, 0b111, "user:[2]", "net:[2]")), "it may hold CAP_DAC_READ_SEARCH");
        assert_eq!(said(hold(2, 0b11, "user:[2]", "net:[1]")), "it is in the host's net namespace");
        assert_eq!(said(hold(3, 0xff, "user:[3]", "net:[3]")), "", "in namespaces made inside");
        let privileged = Hold { no_new_privileges: false, ..first.clone() };
        assert_eq!(said(privileged), "executing a file may give it privilege");
    }

    #[test]
    fn a_status_that_does_not_say_counts_as_the_worst() {
        let hold = Hold::read("Name:\tx\n");
        assert_eq!((hold.filters, hold.bounding), (0, Capabilities::MAX));
    }
}

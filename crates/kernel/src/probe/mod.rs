//! What this kernel grants, found out by doing it.
//!
//! A version number says little: distributions port features back, configure them out, and sandboxes refuse them. So
//! each probe does in small what guests need done, and takes it back: namespaces die with a child that does nothing,
//! mounts are not attached, or for a moment below a scratch directory, directories and control groups are removed,
//! filters and Landlock domains end with a thread. Nothing waits longer than a second, and no setting of the host is
//! touched.
//!
//! ```text
//!   state directory ─► scratch ─► mounts ─┐
//!   a child that does nothing ────────────┼─► findings: area, name, verdict, what is lost without it
//!   threads, groups, descriptors ─────────┘
//! ```

mod bpf;
pub mod btf;
mod cgroups;
mod child;
mod erofs_image;
mod landlock;
mod memory;
mod mounts;
mod namespaces;
mod processes;
mod scratch;
mod seccomp;
mod settings;
mod verdict;

pub use landlock::around_a_landlock_domain;
pub use scratch::Scratch;
pub use verdict::Verdict;

use std::path::Path;

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it belongs to, as a heading.
    pub area: &'static str,
    /// The name of what was tried.
    pub name: &'static str,
    /// Whether it worked, and why not if it did not.
    pub verdict: Verdict,
    /// What Pando cannot do, or does worse, without it.
    pub without: &'static str,
    /// The release of Linux that brought it, for a user who looks for a newer one; not what it was judged by.
    pub since: &'static str,
    /// Whether no guest can be without it.
    pub needed: bool,
}

impl Finding {
    /// Whether guests cannot be had for the lack of it.
    pub fn stands_in_the_way(&self) -> bool {
        self.needed && !self.verdict.usable()
    }
}

/// Tries everything. What concerns file systems is tried beside `state`, where guests' files lie; it need not exist.
pub fn all(state: &Path) -> Vec<Finding> {
    [
        namespaces::find(),
        processes::find(),
        mounts::find(state),
        cgroups::find(),
        seccomp::find(),
        landlock::find(),
        bpf::find(),
        memory::find(),
        settings::find(),
    ]
    .concat()
}

/// A network namespace to try things in; it goes with the descriptor.
///
/// # Errors
///
/// The kernel makes none.
pub fn network_namespace() -> std::io::Result<std::os::fd::OwnedFd> {
    let child = child::Child::new(libc::CLONE_NEWNET, None)?;
    Ok(std::fs::File::open(format!("/proc/{}/ns/net", child.pid))?.into())
}

/// A heading that findings come under.
struct Area(&'static str);

impl Area {
    /// A finding that no guest can do without.
    fn needed(
        &self,
        name: &'static str,
        since: &'static str,
        verdict: impl Into<Verdict>,
        without: &'static str,
    ) -> Finding {
        Finding { area: self.0, name, verdict: verdict.into(), without, since, needed: true }
    }

    /// A finding whose lack costs something.
    fn wanted(
        &self,
        name: &'static str,
        since: &'static str,
        verdict: impl Into<Verdict>,
        without: &'static str,
    ) -> Finding {
        Finding { needed: false, ..self.needed(name, since, verdict, without) }
    }
}

/// Whether Landlock keeps abstract unix sockets and signals inside a domain here (version 6 of its interface, Linux
/// 6.12).
pub fn has_landlock_scopes() -> bool {
    const SCOPES: i64 = 6;
    landlock::version().is_ok_and(|version| version >= SCOPES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_can_be_tried_and_nothing_stays() {
        let state = tempfile::tempdir().unwrap();
        let findings = all(&state.path().join("not/there"));
        assert!(findings.len() > 30);
        for finding in &findings {
            assert!(!finding.without.is_empty() && !finding.since.is_empty(), "{finding:?}");
        }
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_are_unique_within_an_area() {
        let state = tempfile::tempdir().unwrap();
        let mut names: Vec<_> = all(state.path()).iter().map(|finding| (finding.area, finding.name)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn only_what_is_needed_stands_in_the_way() {
        let area = Area("area");
        let refused = || Verdict::Refused("no".into());
        assert!(area.needed("a", "1", refused(), "x").stands_in_the_way());
        assert!(!area.wanted("a", "1", refused(), "x").stands_in_the_way());
        assert!(!area.needed("a", "1", Verdict::Partial("half".into()), "x").stands_in_the_way());
    }
}

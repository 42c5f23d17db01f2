//! A test: its name, what it needs, and the function that shows it.

use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::{durations, second_try, teardown, unshown};
use libtest_mimic::{Completion, Failed, Trial};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::MountPropagationFlags;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// What sets a test apart from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// It takes a minute or more: only on request.
    Slow,
    /// It says more on another kernel: it runs inside the emulated machine too.
    Vm,
    /// It does to the machine what no test may do to one that others use: inside the emulated machine alone.
    VmAlone,
    /// The first half of a case that goes on after a reboot: inside the emulated machine alone.
    BeforeReboot,
    /// The second half: in that machine's next boot.
    AfterReboot,
}

/// A test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// `area::what_it_shows`.
    pub(crate) name: &'static str,
    pub(crate) tags: &'static [Tag],
    pub(crate) needs: &'static [Need],
    pub(crate) show: fn(&Sandbox),
}

/// Everything that starts a guest needs root.
const ROOT: &[Need] = &[Need::Root];

impl Case {
    /// A test that needs root and nothing else.
    pub(crate) const fn new(name: &'static str, show: fn(&Sandbox)) -> Self {
        Self { name, tags: &[], needs: ROOT, show }
    }

    /// The same with other needs.
    pub(crate) const fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    /// The same with tags.
    pub(crate) const fn tags(self, tags: &'static [Tag]) -> Self {
        Self { tags, ..self }
    }

    /// It as libtest's. `root` is a small tree that guests can run on.
    pub(crate) fn trial(self, root: &Path) -> Trial {
        let root = PathBuf::from(root);
        Trial::ignorable_test(self.name, move || {
            let came_of_it = second_try::run(self.name, || durations::measure(self.name, || self.run(&root)))?;
            unshown::note(&self, &came_of_it);
            Ok(came_of_it)
        })
    }

    fn run(&self, root: &Path) -> Result<Completion, Failed> {
        for need in self.needs {
            if let Err(reason) = need.check() {
                return Ok(Completion::ignored_with(reason));
            }
        }
        if OWN_MOUNTS.iter().any(|area| self.name.starts_with(area)) {
            within_own_mounts(|| self.run_here(root))
        } else {
            self.run_here(root)
        }
    }

    fn run_here(&self, root: &Path) -> Result<Completion, Failed> {
        let sandbox = Sandbox::new(root)?;
        let shown = catch_unwind(AssertUnwindSafe(|| (self.show)(&sandbox)));
        let log = sandbox.daemon_log();
        let left = teardown::tear_down(sandbox);
        match shown {
            Err(panic) if panic.is::<Skip>() => {
                left?;
                let Skip(reason) = *panic.downcast::<Skip>().expect("its type was looked at");
                Ok(Completion::ignored_with(reason))
            }
            Err(panic) => {
                let more = left.err().map(|left| format!("\n{left}")).unwrap_or_default();
                Err(format!("{}{more}\ndaemon.log:\n{log}", words(&*panic)).into())
            }
            Ok(()) => {
                left.map_err(|left| format!("{left}\ndaemon.log:\n{log}"))?;
                Ok(Completion::Completed)
            }
        }
    }
}

/// The areas whose tests have mounts of their own.
const OWN_MOUNTS: [&str; 7] = ["capi", "doctor", "getting_started", "kept_state", "pages", "tx", "volumes"];

/// Runs a test that is about transactions, or about what is mounted, in a thread with mounts of its own: what other
/// tests mount, fill and unmount meanwhile is a conflict, or a disk without room, to every transaction that sees it.
fn within_own_mounts(test: impl FnOnce() -> Result<Completion, Failed> + Send) -> Result<Completion, Failed> {
    let shown = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| format!("mounts of its own: {errno}"))?;
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private).map_err(|errno| format!("making the mounts private: {errno}"))?;
            test()
        });
        thread.join()
    });
    shown.unwrap_or_else(|panic| Err(words(&*panic).into()))
}

/// The reason of a test that found out while running that it cannot show anything here.
struct Skip(String);

/// Ends the test as skipped.
pub(crate) fn skip(reason: impl Into<String>) -> ! {
    resume_unwind(Box::new(Skip(reason.into())))
}

fn words(panic: &dyn Any) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

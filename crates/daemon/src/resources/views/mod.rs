//! What guests with limits see of the machine: files over those of their /proc, whose words are made when they are
//! read.
//!
//! ```text
//!   start ──▶ a file a view ──▶ a read-only mount over /proc/meminfo …
//!   a guest reads ──▶ held up by the kernel (fanotify) ──▶ keeper: writes what is true now ──▶ the read goes on
//! ```
//!
//! No file system is served by a process here, as one of FUSE would be: when the daemon dies, whatever way, the kernel
//! holds up nobody any more, and guests read what was true last, until the next daemon takes the files over. Where the
//! kernel lets nobody hold up reads, the files are written anew every few seconds.

mod keeper;

use crate::resources::{Resources, Tenant};
use keeper::{Keeper, ViewFile};
use pando_guest::GuestName;
use pando_kernel::mount::Tree;
use pando_kernel::process::held::HeldProcess;
use pando_kernel::{CallError, Context, mount::attach};
use pando_limit::Machine;
use pando_limit::meter::CpuMeter;
use pando_limit::view::{self, Scene, View};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The views of all guests.
#[derive(Debug)]
pub(crate) struct Views {
    directory: PathBuf,
    /// Made with the first view.
    keeper: OnceCell<Keeper>,
    shown: RefCell<BTreeMap<GuestName, Shown>>,
}

/// The views of a guest.
#[derive(Debug)]
struct Shown {
    directory: PathBuf,
    scene: Arc<Mutex<Scene>>,
    view_files: Vec<Arc<ViewFile>>,
}

impl Shown {
    fn has(&self, view: View) -> bool {
        self.view_files.iter().any(|view_file| view_file.view == view)
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Views {
    pub(crate) fn new(run: &Path) -> Self {
        Self { directory: run.join("views"), keeper: OnceCell::new(), shown: RefCell::default() }
    }

    /// Makes the views that a guest in a slot needs: none for one without limits. `began`, in seconds since the epoch,
    /// for one that runs already.
    pub(crate) fn enter(&self, name: &GuestName, slot: u32, tenant: &Tenant, machine: &Machine, began: Option<i64>) {
        let views = view::wanted(&tenant.limits, &machine.processors);
        if views.is_empty() {
            return;
        }
        let scene = Scene {
            groups: tenant.groups.clone(),
            limits: tenant.limits.clone(),
            online: machine.processors.clone(),
            began: began.map_or_else(now, |began| Duration::from_secs(u64::try_from(began).unwrap_or(0))),
            load: view::Load::default(),
            uncounted: super::UNCOUNTED,
        };
        let directory = self.directory.join(slot.to_string());
        let mut shown = Shown { directory, scene: Arc::new(Mutex::new(scene)), view_files: Vec::new() };
        for view in views {
            self.add(name, &mut shown, view);
        }
        keeper::write_soon(shown.view_files.clone());
        self.shown.borrow_mut().insert(name.clone(), shown);
    }

    /// One that cannot be had is done without: the guest then sees what the host has.
    fn add(&self, name: &GuestName, shown: &mut Shown, view: View) {
        match open(&shown.directory, view) {
            Ok(file) => {
                let view_file = Arc::new(ViewFile::new(view, file, Arc::clone(&shown.scene)));
                self.keeper.get_or_init(Keeper::new).take(Arc::clone(&view_file));
                shown.view_files.push(view_file);
            }
            Err(error) => tracing::warn!(%error, guest = %name, "it sees the host's numbers there"),
        }
    }

    /// The trees to be attached in a guest that starts, and where.
    pub(crate) fn trees(&self, name: &GuestName) -> Vec<(View, Tree)> {
        let shown = self.shown.borrow();
        let Some(shown) = shown.get(name) else { return Vec::new() };
        let tree = |view: View| Some((view, pando_guest::launch::read_only(&shown.directory.join(view.name())).ok()?));
        shown.view_files.iter().filter_map(|view_file| tree(view_file.view)).collect()
    }

    /// A guest's limits changed: what it sees follows. The answer is what it has to be shown besides.
    pub(crate) fn change(
        &self,
        name: &GuestName,
        slot: u32,
        tenant: &Tenant,
        machine: &Machine,
        began: i64,
    ) -> Vec<(View, Tree)> {
        let known: Vec<View> = match self.shown.borrow().get(name) {
            Some(shown) => {
                shown.scene.lock().unwrap_or_else(PoisonError::into_inner).limits = tenant.limits.clone();
                View::ALL.into_iter().filter(|view| shown.has(*view)).collect()
            }
            None => Vec::new(),
        };
        if known.is_empty() {
            self.enter(name, slot, tenant, machine, Some(began));
        } else if let Some(shown) = self.shown.borrow_mut().get_mut(name) {
            for view in view::wanted(&tenant.limits, &machine.processors) {
                if !shown.has(view) {
                    self.add(name, shown, view);
                }
            }
            keeper::write_soon(shown.view_files.clone());
        }
        self.trees(name).into_iter().filter(|(view, _)| !known.contains(view)).collect()
    }

    /// A guest runs no more.
    pub(crate) fn leave(&self, name: &GuestName) {
        let Some(shown) = self.shown.borrow_mut().remove(name) else { return };
        for view_file in &shown.view_files {
            if let Some(keeper) = self.keeper.get() {
                keeper.drop(view_file);
            }
            let _ = std::fs::remove_file(shown.directory.join(view_file.view.name()));
        }
        let _ = std::fs::remove_dir(&shown.directory);
        let _ = std::fs::remove_dir(&self.directory);
    }

    /// Takes in how many of a guest's processes want to run, and writes what nobody would write otherwise.
    fn sample(&self) {
        for shown in self.shown.borrow().values() {
            let mut scene = shown.scene.lock().unwrap_or_else(PoisonError::into_inner);
            let used = CpuMeter::open(&scene.groups).ok().flatten().and_then(|meter| meter.read().ok()).unwrap_or(0);
            let groups = scene.groups.clone();
            scene.load.sample(used, &groups);
        }
        if self.keeper.get().is_some_and(|keeper| !keeper.is_asked()) {
            let shown = self.shown.borrow();
            shown.values().flat_map(|shown| &shown.view_files).for_each(|view_file| view_file.write());
        }
    }

    fn is_empty(&self) -> bool {
        self.shown.borrow().is_empty()
    }
}

/// Opens the file of a view. One that an earlier daemon made is the one that the guest has.
fn open(directory: &Path, view: View) -> Result<File, CallError> {
    let path = directory.join(view.name());
    let open = || File::options().create(true).truncate(false).write(true).read(true).mode(0o444).open(&path);
    let opened = open().or_else(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            return Err(error);
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        open()
    });
    opened.context(|| format!("making {}", path.display()))
}

/// Attaches trees in a guest that runs.
pub(crate) fn attach(trees: Vec<(View, Tree)>, first: &HeldProcess, mounts: BorrowedFd<'_>) -> Result<(), CallError> {
    if trees.is_empty() {
        return Ok(());
    }
    let root = first.root().context(|| "opening the root of the guest's first process".into())?;
    trees.iter().try_for_each(|(view, tree)| attach::attach_in(tree, mounts, root.as_fd(), view.path()))
}

/// Counts who wants to run, for as long as the daemon runs; sleeps while no guest is shown anything.
pub(crate) async fn sample(resources: Rc<Resources>) {
    loop {
        tokio::time::sleep(view::EVERY).await;
        let views = &resources.views;
        if views.is_empty() {
            resources.seen.notified().await;
        } else {
            views.sample();
        }
    }
}

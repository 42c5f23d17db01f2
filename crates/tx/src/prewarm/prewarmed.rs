//! A *prewarmed transaction*: the beginning of one, made before anybody asks for one.
//!
//! ```text
//!   keeper (a daemon):  mounts ─▶ plan ─▶ directories, group, view, watch, program  ─▶ is it current?
//!                                                    │ a ticket, seven descriptors (its lock among them)
//!                                                    ▼
//!   taker:              rename ─▶ joined, instead of a view that is made now
//! ```
//!
//! Nobody has looked at a view that is made ahead, so that the kernel has kept nothing of the live tree in it, but for
//! the places that it was made of: the roots of mounts, sockets, and the directories on the way to them. A prewarmed
//! transaction is *current* as long as these, the mounts and the sockets are what they were; one that is not is thrown
//! away. Nothing in it counts as read: its places are excepted as those of any view are, and a transaction begins when
//! it is taken.
//!
//! On disk a prewarmed transaction is a transaction under a name that none can have. Its lock travels with it: where it
//! is held by nobody, a crash has left it.

use crate::prewarm::ticket::Ticket;
use crate::state::begin_timestamp::{self, Grain};
use crate::state::clock::Clock;
use crate::state::directory::StateDirectory;
use crate::state::name::TxName;
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::state::scope::Scope;
use crate::state::trash::{self, Sweep};
use crate::supervise::Still;
use crate::tree::attributes::Moment;
use crate::validate::read_set::{Walker, Watch, digest, load_ahead};
use crate::view::{View, ViewNamespaces, ViewPlan, listening};
use pando_kernel::file::lock::FileLock;
use pando_kernel::mount::watch::MountWatch;
use pando_kernel::{CallError, Context};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How the names of their directories begin.
const PREFIX: &str = ".spare-";

/// How what is kept of one begins; the last byte is the version of the format. No version before had a name of that
/// length there.
const FORMAT: [u8; 2] = [0xff, 2];

/// How many descriptors a prewarmed transaction consists of.
const DESCRIPTORS: usize = 7;

/// One that is nobody's transaction yet. It is removed with this value.
#[derive(Debug)]
pub struct Prewarmed {
    site: Site,
    state: State,
    mounts: MountWatch,
    namespaces: ViewNamespaces,
    still: Still,
    watch: Watch,
    lock: FileLock,
    /// When its keeper has seen that it was current: the transaction that is made of it begins then.
    begun: Option<Moment>,
}

/// One that is given to another process.
#[derive(Debug)]
pub struct HandedOver {
    /// What [`Prewarmed::accept`] knows it by.
    pub ticket: String,
    /// What it consists of, beside its files.
    pub descriptors: Vec<OwnedFd>,
    /// What the giver does for the taker once that has gone.
    pub remains: Remains,
}

/// What a transaction leaves that was made of a prewarmed transaction. As long as somebody else holds its view, the
/// taker does not wait for the kernel to take that apart, which is some 15 ms.
#[derive(Debug)]
pub struct Remains {
    home: StateDirectory,
    sweep: Sweep,
    held: Vec<OwnedFd>,
}

impl Remains {
    /// Lets go of the view, and deletes what was thrown away: the prewarmed transaction itself, where the taker ended
    /// before it had taken it.
    pub fn clear(self) {
        drop(self.held);
        clear(&self.home);
        self.sweep.run();
    }
}

/// What is on disk of it. It is removed with this value.
#[derive(Debug)]
pub(crate) struct Site {
    home: StateDirectory,
    directory: PathBuf,
    group: PathBuf,
    sweep: Sweep,
    /// Whether it is still this value's to remove.
    owned: bool,
}

impl Site {
    fn new<'a>(
        home: &StateDirectory,
        directory: &Path,
        group: &Path,
        parts: impl IntoIterator<Item = &'a OverlayPart>,
    ) -> Self {
        let sweep = Sweep::behind(home, parts.into_iter());
        Self { home: home.clone(), directory: directory.to_owned(), group: group.to_owned(), sweep, owned: true }
    }

    /// From now on somebody else answers for it.
    pub(crate) fn leave(mut self) {
        self.owned = false;
    }
}

/// What whoever takes it has to know, kept in its directory.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) record: Record,
    pub(crate) plan: ViewPlan,
    /// When each part's root had last changed before the prewarmed transaction looked like it.
    pub(crate) roots: Vec<Moment>,
    outside: Outside,
    /// The maps of the program that tells what is read, by the kernel's numbers.
    maps: [u32; 3],
    /// Which version of it: a daemon may be older than whoever asks it.
    program: u32,
}

impl State {
    /// What a keeper wrote; nothing where that was another version of this program.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes.strip_prefix(&FORMAT)?).ok()
    }
}

/// A prewarmed transaction, taken apart by whoever makes a transaction of it.
pub(crate) struct Taken {
    pub(crate) state: State,
    pub(crate) namespaces: ViewNamespaces,
    pub(crate) watch: Watch,
    pub(crate) lock: FileLock,
    /// To be [left](Site::leave) once it is a transaction.
    pub(crate) site: Site,
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.owned {
            // What cannot be removed now is by the next recovery.
            Scope::at(&self.group).remove();
            let _ = trash::throw_away(&self.home, &self.directory);
            self.sweep.run();
        }
    }
}

/// What a view was made of, beside the mounts, and where it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Outside {
    /// What the maker and whoever takes it must have in common.
    namespaces: Vec<PathBuf>,
    sockets: Vec<PathBuf>,
    /// Each place, and each directory on the way to one.
    places: BTreeMap<PathBuf, Option<Identity>>,
}

/// What the kernel would keep of an object in a view: which it is, and who may pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    ino: u64,
    mode: u32,
    owner: (u32, u32),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::symlink_metadata(path).ok()?;
        let owner = (found.uid(), found.gid());
        Some(Self { device: found.dev(), ino: found.ino(), mode: found.mode(), owner })
    }
}

impl Outside {
    /// The namespaces that this process is in.
    fn namespaces() -> io::Result<Vec<PathBuf>> {
        let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}"));
        ["mnt", "net", "pid", "user", "cgroup"].into_iter().map(namespace).collect()
    }

    fn of_now(plan: &ViewPlan) -> io::Result<Self> {
        let mut places = BTreeMap::new();
        for place in plan.places() {
            for path in place.ancestors() {
                if !places.contains_key(path) {
                    places.insert(path.to_owned(), Identity::of(path));
                }
            }
        }
        Ok(Self { namespaces: Self::namespaces()?, sockets: listening(), places })
    }
}

impl Prewarmed {
    /// Makes one ahead; `number` tells it from others of this process. It takes milliseconds, most of them waiting, and
    /// a thread. `before` is who was [still](Self::still) when another was made.
    ///
    /// # Errors
    ///
    /// Where the kernel does not tell what is read, or anything that a view consists of has changed meanwhile
    /// (ResourceBusy).
    pub fn make(home: &StateDirectory, number: u32, before: &Still) -> Result<Self, CallError> {
        let looking = || "looking at what a view is made of".to_owned();
        let (made, outside) = Self::make_while(home, number, before, |_, plan| Outside::of_now(plan).context(looking))?;
        if Outside::of_now(&made.state.plan).context(looking)? != outside {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy)).context(looking);
        }
        made.kept(outside)
    }

    /// Makes one for a transaction that begins now, before its view is made: what others have changed since is found in
    /// the way of its commit, if it was read, as it is of any transaction.
    ///
    /// # Errors
    ///
    /// As of [`make`](Self::make); busy it is for mounts alone, which root moves. Sockets and directories are those of
    /// any user of the machine, who could keep all others from beginning.
    pub fn make_now(home: &StateDirectory, number: u32, before: &Still) -> Result<Self, CallError> {
        let (mut made, begun) = Self::make_while(home, number, before, |directory, plan| {
            begin_timestamp::now(directory, plan.grain).context(|| "taking the time".into())
        })?;
        made.begun = Some(begun);
        made.state.outside.namespaces = Outside::namespaces().context(|| "looking at this process".into())?;
        Ok(made)
    }

    /// Makes one that is not [kept](Self::kept) yet; and what it learns once its parts are there and its view is not.
    fn make_while<T>(
        home: &StateDirectory,
        number: u32,
        before: &Still,
        learn: impl FnOnce(&Path, &ViewPlan) -> Result<T, CallError>,
    ) -> Result<(Self, T), CallError> {
        let name = TxName::prewarmed(number);
        home.prepare()?;
        let directory = home.directory().join(format!(".{name}"));
        let new = home.directory().join(format!(".new-{name}"));
        let lock = home.claim(&new)?;
        std::fs::rename(&new, &directory).context(|| format!("making {}", directory.display()))?;
        let group = home.group(&name)?;
        let mut site = Site::new(home, &directory, &group, []);
        let looking = || "looking at what a view is made of".to_owned();
        let mounts = MountWatch::begin().context(looking)?;
        let mut plan = ViewPlan::of_now(home, &name)?;
        plan.move_parts(&home.of(&name), &directory);
        let mut record = Record {
            name,
            begun: Moment::now(),
            clock: Some(Clock::now()),
            first_begun: None,
            parts: plan.parts().cloned().collect(),
            roots: Vec::new(),
            target: None,
            group,
            holder: std::process::id().cast_signed(),
            holder_started: 0,
            places: plan.places(),
            listener: None,
            synchronous_writes: false,
            baselines: Vec::new(),
            known_names: Vec::new(),
            ignored: Vec::new(),
            user: None,
            lost: None,
            command: Vec::new(),
        };
        // What is made is known before, so that a crash leaves nothing unknown.
        record.write(&directory)?;
        let roots = plan.make_parts()?;
        record.roots = roots.iter().map(|root| root.digest).collect();
        let roots = roots.iter().map(|root| root.changed).collect();
        record.parts = plan.parts().cloned().collect();
        site.sweep = Sweep::behind(home, record.parts.iter());
        Scope::make(&record.group)?;
        let learned = learn(&directory, &plan)?;
        let watch = Watch::new(home).context(|| "listening to what is opened".into())?;
        let (namespaces, mut watch) = in_a_thread(&plan, &directory, watch)?;
        // Where that cannot be told all are looked at once more.
        let still = watch.loaded().and_then(|walker| Still::look(walker, before).ok()).unwrap_or_default();
        if !mounts.is_silent() {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy)).context(looking);
        }
        let outside = Outside::default();
        let state = State { record, plan, roots, outside, maps: watch.maps(), program: digest() };
        Ok((Self { site, state, mounts, namespaces, still, watch, lock, begun: None }, learned))
    }

    /// The same, as of these places, with what another process has to know to take it over.
    fn kept(mut self, outside: Outside) -> Result<Self, CallError> {
        self.state.outside = outside;
        let path = Self::still_path(&self.site.directory);
        self.still.write(&path).context(|| format!("writing {}", path.display()))?;
        // Not as text: whoever takes it reads it while somebody waits.
        let bytes = postcard::to_extend(&self.state, FORMAT.to_vec()).map_err(io::Error::other);
        let path = Self::state_path(&self.site.directory);
        bytes.and_then(|bytes| std::fs::write(&path, bytes)).context(|| format!("writing {}", path.display()))?;
        Ok(self)
    }

    /// Who wrote to no file through its memory when it was made.
    pub fn still(&self) -> &Still {
        &self.still
    }

    fn still_path(directory: &Path) -> PathBuf {
        directory.join("still")
    }

    fn state_path(directory: &Path) -> PathBuf {
        directory.join("spare")
    }

    /// Gives it to another process, which [accepts](Self::accept) it, and whose transaction begins now. From now on it
    /// is removed by whoever holds its descriptors, behind [him](Remains::clear) or by the next recovery.
    ///
    /// # Errors
    ///
    /// The prewarmed transaction itself, where it is not current any more.
    pub fn hand_over(mut self) -> Result<HandedOver, Box<Self>> {
        // Where that takes a tick of the clock, the taker waits for it, and nobody else.
        if self.state.plan.grain == Grain::Fine {
            let begun = self.begin().ok().filter(|_| self.is_current());
            if begun.is_none() {
                return Err(Box::new(self));
            }
            self.begun = begun;
        }
        self.site.owned = false;
        let name = self.site.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ViewNamespaces { ipc, mounts } = self.namespaces;
        let (listener, programs) = self.watch.into_descriptors();
        // Its lock is the taker's alone. Without a copy of the others the taker waits, no more.
        let shared: Vec<_> = [ipc, mounts, listener].into_iter().chain(programs.into_iter().flatten()).collect();
        let held = shared.iter().filter_map(|descriptor| descriptor.try_clone().ok()).collect();
        let home = self.site.home.clone();
        let remains = Remains { sweep: Sweep::behind(&home, self.state.plan.parts()), home, held };
        let descriptors = [self.lock.into(), self.mounts.into()].into_iter().chain(shared).collect();
        let ticket = Ticket { name, begun: self.begun }.to_string();
        Ok(HandedOver { ticket, descriptors, remains })
    }

    /// Takes over one that another process has handed over.
    ///
    /// # Errors
    ///
    /// InvalidData for what is no prewarmed transaction of this directory, or one of another version of this program.
    pub fn accept(home: &StateDirectory, ticket: &str, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let Ticket { name, begun } = ticket.parse().map_err(|_| invalid())?;
        let descriptors = <[OwnedFd; DESCRIPTORS]>::try_from(descriptors).map_err(|_| invalid())?;
        let [lock, watched, ipc, mounts, listener, walk, memory] = descriptors;
        if !name.starts_with(PREFIX) || name.contains('/') {
            return Err(invalid());
        }
        let directory = home.directory().join(&name);
        let bytes = std::fs::read(Self::state_path(&directory))?;
        let state = State::from_bytes(&bytes).ok_or_else(invalid)?;
        if state.program != digest() {
            return Err(invalid());
        }
        let still = Still::read(&Self::still_path(&directory))?;
        let site = Site::new(home, &directory, &state.record.group, state.plan.parts());
        let watch = Watch::handed_over(home, listener, [walk, memory], state.maps)?;
        let namespaces = ViewNamespaces { ipc, mounts };
        Ok(Self { site, state, mounts: watched.into(), namespaces, still, watch, lock: lock.into(), begun })
    }

    /// The program that tells what is read, if it is still here.
    pub(crate) fn give_loaded(&mut self) -> Option<Walker> {
        self.watch.give_loaded()
    }

    /// When a transaction on it begins: when its keeper saw that it was current, or now.
    pub(crate) fn begin(&self) -> io::Result<Moment> {
        // All that the prewarmed transaction's making did to the live tree was done before.
        self.begun.map_or_else(|| begin_timestamp::now(&self.site.directory, self.state.plan.grain), Ok)
    }

    /// Whether a view that were made when the transaction begins, here, would be the same, and nobody has been in it.
    pub(crate) fn is_current(&self) -> bool {
        if self.begun.is_some() {
            return Outside::namespaces().is_ok_and(|mine| mine == self.state.outside.namespaces);
        }
        self.mounts.is_silent()
            && Outside::of_now(&self.state.plan).is_ok_and(|now| now == self.state.outside)
            && self.watch.is_silent()
            && self.state.record.has_sound_times()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.site.directory
    }

    pub(crate) fn home(&self) -> &StateDirectory {
        &self.site.home
    }

    /// How fine the times are of the file systems that it is about.
    pub(crate) fn grain(&self) -> Grain {
        self.state.plan.grain
    }

    /// Its parts.
    pub(crate) fn take_apart(self) -> Taken {
        let Self { site, state, namespaces, watch, lock, .. } = self;
        Taken { state, namespaces, watch, lock, site }
    }
}

/// Makes the view, and loads the program that tells what is read there. A mount namespace belongs to a thread.
fn in_a_thread(plan: &ViewPlan, directory: &Path, mut watch: Watch) -> Result<(ViewNamespaces, Watch), CallError> {
    let make = || {
        let view = View::enter(plan, directory, Some(&mut watch))?;
        let namespaces = ViewNamespaces::of(Path::new("/proc/thread-self"))?;
        // What it was made of goes now, while nobody waits for it.
        drop(view);
        watch.let_go();
        Ok(namespaces)
    };
    let made = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("pando-spare".into()).spawn_scoped(scope, make);
        let thread = thread.context(|| "starting a thread for a view".into())?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")).context(|| "making a view".into()))
    });
    let namespaces = made?;
    let walker = load_ahead(watch.kept()).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported));
    watch.take_loaded(Some(walker.context(|| "loading the program that tells what is read".into())?));
    Ok((namespaces, watch))
}

/// Removes those that belong to nobody any more.
pub(crate) fn clear(home: &StateDirectory) {
    for entry in std::fs::read_dir(home.directory()).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let directory = entry.path();
        let Ok(Some(_held)) = FileLock::try_take(&Record::lock(&directory)) else { continue };
        // Without a record nothing but its directory was made.
        let (group, parts) = Record::read(&directory).map(|record| (record.group, record.parts)).unwrap_or_default();
        drop(Site::new(home, &directory, &group, &parts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_on_the_way_to_a_place_matters_and_what_is_beside_it_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(at.join("on/the/way")).unwrap();
        let plan = ViewPlan {
            fixtures: Vec::new(),
            sockets: vec![at.join("on/the/way/socket")],
            control_groups: Vec::new(),
            grain: Grain::Fine,
            for_user: false,
        };
        let now = || Outside::of_now(&plan).unwrap().places;
        let before = now();
        assert!(before.contains_key(&at.join("on")) && before[&at.join("on/the/way/socket")].is_none());
        std::fs::write(at.join("on/beside"), "").unwrap();
        assert_eq!(now(), before);
        std::fs::rename(at.join("on/the"), at.join("on/former")).unwrap();
        std::fs::create_dir_all(at.join("on/the/way")).unwrap();
        assert_ne!(now(), before);
    }

    #[test]
    fn what_is_no_spare_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let home = StateDirectory::new(root.path());
        let descriptors = || (0..DESCRIPTORS).map(|_| tempfile::tempfile().unwrap().into()).collect::<Vec<OwnedFd>>();
        for name in ["run-1-0", ".spare-../x", ".spare-none"] {
            assert!(Prewarmed::accept(&home, name, descriptors()).is_err(), "{name}");
        }
        assert!(Prewarmed::accept(&home, ".spare-none", Vec::new()).is_err());
    }
}

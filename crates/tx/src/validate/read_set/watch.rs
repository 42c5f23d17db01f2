//! What has to be done while a transaction runs, so that its read set is known afterwards: little.

use super::dentries::{CANARY, Looked, Names, names};
use super::openers::Openers;
use super::walk::{self, Opened, Walker};
use super::{ReadSet, ReadSetError};
use crate::state::directory::StateDirectory;
use crate::state::overlay_part::OverlayPart;
use crate::state::record::Record;
use crate::tree::attributes::{Attributes, Moment};
use crate::tree::confined::CallPath;
use crate::view::{ViewNamespaces, ViewPlan};
use pando_kernel::file::fanotify::Listener;
use pando_kernel::mount::Tree;
use rustix::fs::{Access, AtFlags, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, fstatfs, openat2, statx};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A watch over the overlays of a view.
#[derive(Debug)]
pub struct Watch {
    listener: Listener,
    /// Where the program that tells is kept.
    kept: PathBuf,
    /// That program, where there was time to load it.
    walker: RefCell<Option<Walker>>,
    roots: Vec<(OverlayPart, OwnedFd)>,
    /// What goes with the watch, which nobody waits for: the view's mount namespace and what its overlays were made of.
    held: Vec<OwnedFd>,
    /// The dentries of directories that the kernel has told of: it does so once.
    listed: RefCell<BTreeSet<u64>>,
    /// Where these are noted too, for other processes that look into the same view.
    noting_in: Option<PathBuf>,
    /// The canaries of its commands.
    canaries: Vec<String>,
    /// Who opens a few files of the view, of which that matters.
    openers: Option<Openers>,
}

/// Where the canaries of commands that were entered are noted, in their transaction's directory.
fn noted_in(directory: &Path) -> PathBuf {
    directory.join("canaries")
}

/// Where directories are noted that the kernel has told somebody of, in their transaction's directory: the number of
/// each dentry, which the view keeps.
fn listed_in(directory: &Path) -> PathBuf {
    directory.join("listed-dentries")
}

/// Notes in a transaction that another process holds what a command has looked up at its root before it was executed: a
/// name that nothing has.
pub fn note_canary(home: &StateDirectory, record: &Record, path: &CStr) -> io::Result<()> {
    let name = path.to_string_lossy();
    Canary::notes_in(&home.of(&record.name))?.write_all(format!("{}\n", name.trim_start_matches('/')).as_bytes())
}

/// The roots in which a command looks up a canary of its own before it is executed, and that.
#[derive(Debug)]
pub(crate) struct Canary {
    roots: Vec<OwnedFd>,
    name: CString,
}

impl Canary {
    /// One for a command that enters a view in which the calling thread is. A file system whose mount point others have
    /// removed since has gone from the view as well (rmdir(2) detaches what is mounted there in other namespaces):
    /// nothing more is looked up in it.
    pub(crate) fn of_entered(parts: &[OverlayPart]) -> io::Result<Self> {
        let mut open = Vec::new();
        for part in parts {
            match root(Path::new("/"), part) {
                Ok(root) => open.push(root),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Self::new(open)
    }

    fn new(roots: Vec<OwnedFd>) -> io::Result<Self> {
        Ok(Self { roots, name: CString::new(format!("{CANARY}-{}", std::process::id()))? })
    }

    /// The roots.
    pub(crate) fn roots(&self) -> Vec<BorrowedFd<'_>> {
        self.roots.iter().map(AsFd::as_fd).collect()
    }

    /// The name.
    pub(crate) fn name(&self) -> &CStr {
        &self.name
    }

    /// Where those of a transaction are noted, for whoever commits it.
    pub(crate) fn notes_in(directory: &Path) -> io::Result<File> {
        File::options().append(true).create(true).open(noted_in(directory))
    }

    /// Notes that there is this one.
    pub(crate) fn note(&self, mut file: File) -> io::Result<()> {
        file.write_all(format!("{}\n", self.name.to_string_lossy()).as_bytes())
    }
}

/// The roots of a view's overlays, by a path that leads into it.
fn roots(view: &Path, parts: &[OverlayPart]) -> io::Result<Vec<(OverlayPart, OwnedFd)>> {
    parts.iter().map(|part| Ok((part.clone(), root(view, part)?))).collect()
}

/// The root of one of them.
fn root(view: &Path, part: &OverlayPart) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let below = part.live.strip_prefix("/").unwrap_or(&part.live);
    if part.target.is_some() {
        return root_in_target(&rustix::fs::open(view, flags, Mode::empty())?, below);
    }
    Ok(rustix::fs::open(view.join(below), flags, Mode::empty())?)
}

/// The digest of an open directory's attributes.
fn digest_of(directory: &OwnedFd) -> io::Result<u64> {
    Attributes::of(&CallPath::of(directory.try_clone()?)?)?.digest()
}

/// The same for one in the view of a target, where nothing can be relied on: no link leads to it, and it is the root of
/// an overlay.
fn root_in_target(view: &OwnedFd, below: &Path) -> io::Result<OwnedFd> {
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat2(view, below, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS)?;
    let found = statx(&root, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        && fstatfs(&root)?.f_type == libc::OVERLAYFS_SUPER_MAGIC
    {
        return Ok(root);
    }
    Err(io::Error::other(format!("/{} is not a part of the view any more", below.display())))
}

/// What was looked up so far in a view that others are in, by a path that leads into it. They go on meanwhile, so that
/// it is no more than what it says.
pub(crate) fn looked_so_far(
    home: &StateDirectory,
    view: &Path,
    parts: &[OverlayPart],
) -> Result<Vec<(OverlayPart, Vec<Looked>)>, ReadSetError> {
    let roots = roots(view, parts).map_err(|error| ReadSetError::Refused(error.to_string()))?;
    let files: Vec<_> = roots.iter().map(|(_, root)| root).collect();
    let (mut none, mut nowhere) = (|| Ok(Vec::new()), |_: Vec<u64>| Ok(()));
    let mut opened = Opened { read: &mut none, note: &mut nowhere };
    let walked = walk::walk(&files, home.kept(), &mut None, &mut opened)?;
    let all = roots.iter().zip(walked);
    Ok(all
        .map(|((part, _), seen)| {
            (part.clone(), names(&seen, &[], Moment::EPOCH, &BTreeSet::new()).unwrap_or_default().looked)
        })
        .collect())
}

impl Watch {
    /// Begins one, with nothing in it.
    pub(crate) fn new(home: &StateDirectory) -> io::Result<Self> {
        Ok(Self {
            listener: Listener::new()?,
            kept: home.kept().to_owned(),
            walker: RefCell::default(),
            roots: Vec::new(),
            held: Vec::new(),
            listed: RefCell::default(),
            noting_in: None,
            canaries: Vec::new(),
            openers: None,
        })
    }

    /// Lets go of all that goes with the watch.
    pub(crate) fn let_go(&mut self) {
        self.held.clear();
    }

    /// What another process that takes the watch over needs: the listener, and the programs, if they were loaded.
    pub(crate) fn into_descriptors(self) -> (OwnedFd, Option<[OwnedFd; 2]>) {
        (self.listener.into(), self.walker.into_inner().map(Walker::into_programs))
    }

    /// The numbers of the program's maps; zeros where it was not loaded.
    pub(crate) fn maps(&self) -> [u32; 3] {
        self.walker.borrow().as_ref().and_then(Walker::maps).unwrap_or_default()
    }

    /// One that another process began and gives up. What is watched is [looked at](Self::look_from_within) from within.
    pub(crate) fn handed_over(
        home: &StateDirectory,
        listener: OwnedFd,
        programs: [OwnedFd; 2],
        maps: [u32; 3],
    ) -> io::Result<Self> {
        let walker = Walker::of_programs(programs, maps).map_err(|error| io::Error::other(error.to_string()))?;
        let walker = RefCell::new(Some(walker));
        let (listener, listed) = (Listener::from(listener), RefCell::default());
        let (roots, held, canaries) = (Vec::new(), Vec::new(), Vec::new());
        let kept = home.kept().to_owned();
        Ok(Self { listener, kept, walker, roots, held, listed, noting_in: None, canaries, openers: None })
    }

    /// Takes the roots of a view that the calling thread is in, and keeps its mounts.
    pub(crate) fn look_from_within(&mut self, plan: &ViewPlan, view: ViewNamespaces) -> io::Result<()> {
        let parts: Vec<_> = plan.parts().cloned().collect();
        self.roots = roots(Path::new("/"), &parts)?;
        self.held.push(view.mounts);
        Ok(())
    }

    /// The same for a transaction whose directory is `to` and was `from`.
    pub(crate) fn move_parts(&mut self, from: &Path, to: &Path) {
        self.roots.iter_mut().for_each(|(part, _)| part.moved(from, to));
    }

    /// Listens from now on who opens these files, by paths of the view that the calling thread is in.
    pub(crate) fn listen_for_openers(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        // Without it all are taken for opened.
        self.openers = Openers::of(paths).ok();
    }

    /// Whether one of those files was opened, or that cannot be told.
    pub(crate) fn have_opened(&self, path: &Path) -> bool {
        self.openers.as_ref().is_none_or(|openers| openers.have_opened(path))
    }

    /// Whether nothing has been opened.
    pub(crate) fn is_silent(&self) -> bool {
        self.listener.read().is_ok_and(|events| events.is_empty())
    }

    /// Keeps something else that takes long to let go of.
    pub(crate) fn keep(&mut self, descriptor: OwnedFd) {
        self.held.push(descriptor);
    }

    /// Keeps mounts that were never attached: to let go of one takes the kernel a grace period of RCU.
    pub(crate) fn keep_mounts(&mut self, mounts: Vec<Tree>) {
        self.held.extend(mounts.into_iter().map(OwnedFd::from));
    }

    /// One that another process began: its listener, and its view by a path that leads into it. `directory` is its
    /// transaction's.
    pub(crate) fn of_another(
        home: &StateDirectory,
        listener: OwnedFd,
        view: &Path,
        parts: &[OverlayPart],
        directory: &Path,
    ) -> io::Result<Self> {
        let (kept, roots) = (home.kept().to_owned(), roots(view, parts)?);
        let noting_in = listed_in(directory);
        let told = std::fs::read(&noting_in).unwrap_or_default();
        let (told, _) = told.as_chunks::<8>();
        let listed = RefCell::new(told.iter().map(|dentry| u64::from_ne_bytes(*dentry)).collect());
        // Whoever holds it is in the view.
        let noted = std::fs::read_to_string(noted_in(directory)).unwrap_or_default();
        let canaries = noted.lines().map(str::to_owned).collect();
        let (listener, noting_in) = (Listener::from(listener), Some(noting_in));
        let (walker, held) = (RefCell::default(), Vec::new());
        Ok(Self { listener, kept, walker, roots, held, listed, noting_in, canaries, openers: None })
    }

    /// A canary for a command that is about to run in the view.
    pub(crate) fn canary(&mut self) -> io::Result<Canary> {
        let roots = self.roots.iter().map(|(_, root)| root.try_clone()).collect::<io::Result<_>>()?;
        let canary = Canary::new(roots)?;
        self.canaries.push(canary.name.to_string_lossy().into_owned());
        Ok(canary)
    }

    /// The listener's descriptor.
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Watches the overlay of a part, by any descriptor of its root, before anybody else looks at it.
    pub(crate) fn add(&mut self, part: &OverlayPart, root: impl AsFd) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(root, ".", flags, Mode::empty())?;
        // What it answers does not matter: to ask is enough.
        let _ = rustix::fs::accessat(&root, CANARY, Access::EXISTS, AtFlags::empty());
        self.listener.listen_to_file_system(&root)?;
        self.roots.push((part.clone(), root));
        Ok(())
    }

    /// Where the program that tells what was read is kept.
    pub(crate) fn kept(&self) -> &Path {
        &self.kept
    }

    /// That program, if it is loaded.
    pub(crate) fn loaded(&mut self) -> Option<&Walker> {
        self.walker.get_mut().as_ref()
    }

    /// Gives that program away.
    pub(crate) fn give_loaded(&mut self) -> Option<Walker> {
        self.walker.get_mut().take()
    }

    /// Takes that program, loaded while something else had to be waited for.
    pub(crate) fn take_loaded(&mut self, walker: Option<Walker>) {
        self.walker = RefCell::new(walker);
    }

    /// What was read so far, by part: all of it where nobody is in the view any more. With it comes what is as it was
    /// when the transaction began.
    pub(crate) fn read_sets(&self, begun: Moment) -> Result<Vec<(OverlayPart, ReadSet)>, ReadSetError> {
        let roots: Vec<_> = self.roots.iter().map(|(_, root)| root).collect();
        let mut sets = Vec::new();
        let (mut read, mut note) = (|| self.opened(), |dentries: Vec<u64>| self.note(&dentries));
        let mut opened = Opened { read: &mut read, note: &mut note };
        let walked = walk::walk(&roots, &self.kept, &mut self.walker.borrow_mut(), &mut opened)?;
        let listed = self.listed.borrow();
        for ((part, root), seen) in self.roots.iter().zip(walked) {
            let names = names(&seen, &self.canaries, begun, &listed).ok_or(ReadSetError::Forgotten)?;
            let Names { looked, replacing, listed } = names;
            sets.push((part.clone(), ReadSet { looked, replacing, listed, root: digest_of(root).ok() }));
        }
        Ok(sets)
    }

    /// Some of the directories that were opened, each open once more.
    fn opened(&self) -> io::Result<Vec<OwnedFd>> {
        loop {
            let events = self.listener.read()?;
            let is_over = events.is_empty();
            let directories: Vec<_> =
                events.into_iter().filter(|event| event.directory).map(|event| event.object).collect();
            if is_over || !directories.is_empty() {
                return Ok(directories);
            }
        }
    }

    /// Notes directories by their dentries, which the view keeps. They are told of once: who dies between the two is
    /// the one that ran the command, whose transaction nobody commits then.
    fn note(&self, dentries: &[u64]) -> io::Result<()> {
        let mut listed = self.listed.borrow_mut();
        let new: Vec<u64> = dentries.iter().copied().filter(|dentry| listed.insert(*dentry)).collect();
        if let Some(file) = self.noting_in.as_ref().filter(|_| !new.is_empty()) {
            let bytes: Vec<u8> = new.iter().flat_map(|dentry| dentry.to_ne_bytes()).collect();
            File::options().append(true).create(true).open(file)?.write_all(&bytes)?;
        }
        Ok(())
    }
}

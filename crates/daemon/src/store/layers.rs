//! What a guest stands on: which read-only trees, and how they come to be.

use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::FILES;
use crate::store::trash::unique;
use crate::{crash, failure};
use pando_api::{Fault, FaultKind, Progress, Publication, Spec};
use pando_guest::root::{Layer, LayerStore, Root};
use pando_guest::source::{self, LeftBehind, Options, Source, Suggested};
use pando_guest::{Places, mask};
use pando_kernel::file::operator_path::{Misled, OperatorPath};
use pando_kernel::file::tree_removal::remove_tree;
use pando_kernel::mistake::planted;
use pando_kernel::mount::{MountEntry, Tree};
use pando_limit::disk::Image;
use pando_store::{ImportError, LayerId, Lease, Taking};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

/// The root file system of a guest.
pub(crate) fn root(places: &Places, guest: &Guest) -> Root {
    let record = guest.record.borrow();
    Root {
        name: guest.name.to_string(),
        layers: record.layers.iter().map(|layer| standing(places, layer)).collect(),
        files: guest.directory(places).join(FILES),
        bounded: guest.bound(),
        disk: Some(record::room(&guest.directory(places)).image().clone()).filter(Image::exists),
        passing: guest.ephemeral,
    }
}

/// How a layer of the store is written in a guest's record.
const STORED: &str = "store:";

/// The layer of the store that a word of a guest's record names, if it is one.
pub(crate) fn stored(layer: &str) -> Option<LayerId> {
    layer.strip_prefix(STORED)?.parse().ok()
}

/// The word of a guest's record for a layer of the store.
pub(crate) fn word(layer: &LayerId) -> String {
    format!("{STORED}{layer}")
}

/// The word for the host's own root, as others than root may read it.
const HOST: &str = "/";

/// The word for all of it, for guests to which something is exposed that others may not read.
const WHOLE_HOST: &str = "/.";

/// What a word of a guest's record stands for: a layer of the store, or a tree: of the host's where it is absolute,
/// else beside the store.
pub(crate) fn standing(places: &Places, layer: &str) -> Layer {
    if layer == HOST && !planted("host-seen-by-root") {
        return Layer::Seen(PathBuf::from(HOST));
    }
    match stored(layer) {
        Some(layer) => Layer::Stored(layer),
        None if layer.starts_with('/') => Layer::Named(PathBuf::from(layer)),
        None => Layer::Tree(places.layers().join(layer)),
    }
}

/// The path that a layer lies at.
pub(crate) fn path(places: &Places, layer: &str) -> PathBuf {
    match standing(places, layer) {
        Layer::Tree(path) | Layer::Named(path) | Layer::Seen(path) => path,
        Layer::Stored(layer) => places.store().join("images").join(layer.to_string()),
    }
}

/// Reads a source as the user wrote it.
pub(crate) fn parse(text: Option<&str>) -> Result<Source, Fault> {
    let text = text.unwrap_or("host");
    let source = text.parse().map_err(|error: source::SyntaxError| failure::bad(text, error.to_string()))?;
    match &source {
        // Its blobs are no system's files, and nobody means them.
        Source::Directory(path) if path.join("oci-layout").is_file() && path.join("index.json").is_file() => {
            Err(failure::bad(text, format!("{text} is the layout of an OCI image; --from oci:{text} takes the image")))
        }
        _ => Ok(source),
    }
}

/// The layers of a guest that runs on a tree of the host as it lies there; `None` for a source that has to be unpacked
/// first. Of what is exposed it takes where that leads, too.
pub(crate) fn live(
    source: &Source,
    found: Option<&OperatorPath>,
    expose: &[PathBuf],
) -> Result<Option<Vec<String>>, Fault> {
    match source {
        Source::Host => {
            let whole = mask::shows_private(expose);
            Ok(Some(vec![if whole { WHOLE_HOST } else { HOST }.to_owned()]))
        }
        Source::Directory(_) => {
            let Some(found) = found else { return Ok(None) };
            let path = found.path();
            if !found.is_directory().unwrap_or(false) {
                return Err(failure::bad(
                    &path.to_string_lossy(),
                    format!(
                        "{} is not a directory; a tarball ends in .tar, .tar.gz, .tar.zst or .tar.xz",
                        path.display()
                    ),
                ));
            }
            Ok(Some(vec![path.to_string_lossy().into_owned()]))
        }
        _ => Ok(None),
    }
}

/// Directories of Pando itself.
pub(crate) fn own_directories(places: &Places) -> Vec<PathBuf> {
    if places.root() == Path::new("/") { vec![places.state(), places.run()] } else { vec![places.root().to_owned()] }
}

/// An empty directory beside the layers, whose name no layer has.
fn stage(places: &Places) -> Result<PathBuf, Fault> {
    let make = || tempfile::Builder::new().prefix(".new-").tempdir_in(places.layers());
    make()
        .map(tempfile::TempDir::keep)
        .map_err(|error| failure::io("making a layer", &places.layers().to_string_lossy(), &error))
}

/// A staged layer becomes one: from here on a crash finds it whole.
fn settle(new: &Path, path: &Path) -> Result<(), Fault> {
    let settle = || -> std::io::Result<()> {
        let directory = std::fs::File::open(new)?;
        rustix::fs::syncfs(&directory)?;
        match std::fs::rename(new, path) {
            // Another command made the same one meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(remove_tree(new)?),
            done => done,
        }
    };
    settle().map_err(|error| failure::io("keeping a layer", &path.to_string_lossy(), &error))
}

/// A layer that was made, and how its source would like to be run.
#[derive(Debug)]
pub(crate) struct MadeLayer {
    pub(crate) name: String,
    pub(crate) suggested: Suggested,
    /// Held until a guest is known to stand on it: a layer of the store that no guest stands on may be collected.
    pub(crate) lease: Option<Lease>,
    /// What of the source it has not, though whoever named the source may count on it: a sentence each.
    pub(crate) warnings: Vec<String>,
}

/// What a maker of layers needs of the daemon, to work on another thread.
pub(crate) struct Maker {
    pub(crate) places: Places,
    pub(crate) source: Source,
    pub(crate) spec: Spec,
    /// What its name begins with where the store cannot hold it.
    pub(crate) name: String,
    /// Whose files they are, for people: `guest 'web'`.
    pub(crate) owner: String,
    pub(crate) guest_tree: Option<PathBuf>,
    /// The layout of an image that was pulled.
    pub(crate) layout: Option<PathBuf>,
    pub(crate) store: Arc<LayerStore>,
    pub(crate) progress: mpsc::Sender<Progress>,
}

impl Maker {
    /// Unpacks or copies the source into a layer. Blocking.
    pub(crate) fn make(self) -> Result<MadeLayer, Fault> {
        let options = Options {
            expose: self.spec.expose.iter().map(PathBuf::from).collect(),
            leave_out: own_directories(&self.places),
            guest_tree: self.guest_tree.clone(),
            layout: self.layout.clone(),
        };
        if let Some(made) = self.straight()? {
            return Ok(made);
        }
        let new = stage(&self.places)?;
        crash::point("create.staged");
        let made = source::materialize(&self.source, &new, &options, &Teller(&self.progress)).map_err(|error| {
            let kind =
                if error.to_string().contains("no space left") { FaultKind::Unavailable } else { FaultKind::Failed };
            Fault::new(kind, self.source.to_string(), error.to_string())
        });
        let kept = made.and_then(|summary| {
            crash::point("create.filled");
            let made = self.keep(&new, summary.suggested)?;
            Ok(MadeLayer { warnings: left_out(&self.source, &summary.left), ..made })
        });
        if kept.is_err() {
            // `materialize` has emptied it already, as far as that could be done.
            crate::store::trash::discard(&self.places, &new);
        }
        kept
    }

    /// Puts a tree that lies ready into the store without a copy in between. `None` where there is no such tree, or
    /// where it has to be copied first: because it changes meanwhile, or has what a layer cannot hold.
    fn straight(&self) -> Result<Option<MadeLayer>, Fault> {
        let (_tree, path) = match (&self.source, &self.guest_tree) {
            (Source::Guest(_), Some(path)) => (None, path.clone()),
            // The copy will say what is the matter with it, and knows what is to become of mounts below.
            (Source::Directory(path), _) if !path.is_dir() || has_mounts_below(path) => return Ok(None),
            (Source::Directory(path), _) => match self.named(path)? {
                Some(tree) => {
                    let shown = PathBuf::from(format!("/proc/self/fd/{}", tree.as_fd().as_raw_fd()));
                    (Some(tree), shown)
                }
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let doing = format!("keeping the files of {}", self.owner);
        let fault = |error| failure::store(&doing, &self.name, &error);
        let opened = self.store.open().map_err(fault)?;
        match opened.store().import_telling(&path, Taking::Copy, &self.told()) {
            Ok(imported) => {
                crash::point("create.imported");
                let (name, lease) = (word(&imported.layer), Some(imported.lease));
                Ok(Some(MadeLayer { name, suggested: Suggested::default(), lease, warnings: Vec::new() }))
            }
            Err(ImportError::Store(error)) => Err(fault(error)),
            Err(error) => {
                tracing::debug!(%error, of = self.owner, "its files are copied first");
                Ok(None)
            }
        }
    }

    /// The tree at a path that was found without links. `None` where it cannot be taken as it lies.
    fn named(&self, path: &Path) -> Result<Option<Tree>, Fault> {
        match OperatorPath::open_again(path) {
            Ok(found) => Ok(Tree::clone_at(found).ok()),
            Err(error @ Misled::Appeared { .. }) => Err(failure::bad(&self.name, error.to_string())),
            Err(_) => Ok(None),
        }
    }

    /// Passes on how many bytes the store has dealt with, now none.
    fn told(&self) -> impl Fn(u64) + Sync {
        let teller = Teller(&self.progress);
        source::Progress::stage(&teller, "keeping the files");
        move |bytes| source::Progress::advance(&teller, bytes, None)
    }

    /// Puts an unpacked tree into the store; one that a layer of the store cannot hold is kept as it lies.
    fn keep(&self, new: &Path, suggested: Suggested) -> Result<MadeLayer, Fault> {
        let doing = format!("keeping the files of {}", self.owner);
        let opened = self.store.open().map_err(|error| failure::store(&doing, &self.name, &error))?;
        match opened.store().import_telling(new, Taking::Over, &self.told()) {
            Ok(imported) => {
                crash::point("create.imported");
                crate::store::trash::discard(&self.places, new);
                Ok(MadeLayer {
                    name: word(&imported.layer),
                    suggested,
                    lease: Some(imported.lease),
                    warnings: Vec::new(),
                })
            }
            Err(ImportError::Unfit { path, reason }) => {
                tracing::warn!(of = self.owner, path = %path.display(), reason, "its files are not shared");
                let name = format!("{}-{}", self.name, unique());
                settle(new, &self.places.layers().join(&name))?;
                Ok(MadeLayer { name, suggested, lease: None, warnings: Vec::new() })
            }
            Err(ImportError::Store(error)) => Err(failure::store(&doing, &self.name, &error)),
            Err(error) => Err(Fault::new(FaultKind::Failed, self.name.as_str(), format!("{doing} failed: {error}"))),
        }
    }
}

/// Whether something is mounted below a directory; also where that cannot be told.
fn has_mounts_below(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return true };
    let below = |entry: &MountEntry| entry.at != path && entry.at.starts_with(&path);
    pando_kernel::mount::mounts().map_or(true, |mounts| mounts.iter().any(below))
}

/// How many mounts a warning names.
const NAMED: usize = 5;

/// What was left out that nobody expects to be missing. Of the host's own root it is known what a guest has anew.
fn left_out(source: &Source, left: &LeftBehind) -> Vec<String> {
    match source {
        Source::Directory(directory) => mounts_left_out(directory, left),
        Source::Tarball(_) if left.attributes > 0 => vec![format!(
            "{} attributes of files in the archive are left out: access control lists as text (tar --acls), and what is for the host alone; tar --xattrs --xattrs-include='*' writes lists that are kept",
            left.attributes
        )],
        _ => Vec::new(),
    }
}

fn mounts_left_out(directory: &Path, left: &LeftBehind) -> Vec<String> {
    let places: Vec<String> = left.mounts.iter().map(|path| directory.join(path).display().to_string()).collect();
    let Some(first) = places.get(..NAMED.min(places.len())).filter(|first| !first.is_empty()) else {
        return Vec::new();
    };
    let more = match places.len() - first.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    vec![format!(
        "what is mounted at {}{more} is not copied: it lies in memory, on another machine or on a disk that can be pulled out; -v shows it to the guest",
        first.join(", ")
    )]
}

/// Whether anybody hears how something goes on. It is asked by a word that tells nothing: [`is_word`] knows it.
pub(crate) fn is_heard(progress: &mpsc::Sender<Progress>) -> bool {
    progress.send(Progress { stage: String::new(), done: -1, total: None }).is_ok()
}

/// Whether a progress tells something.
pub(crate) fn is_word(progress: &Progress) -> bool {
    progress.done >= 0
}

/// Passes progress on, for work that is given up when its client goes.
pub(crate) struct Attended<'a>(pub(crate) &'a mpsc::Sender<Progress>);

impl source::Progress for Attended<'_> {
    fn stage(&self, what: &str) {
        Teller(self.0).stage(what);
    }

    fn advance(&self, done: u64, total: Option<u64>) {
        Teller(self.0).advance(done, total);
    }

    fn cancelled(&self) -> bool {
        !is_heard(self.0)
    }
}

/// Passes progress on to whoever waits for the layer. The work goes on without him.
pub(crate) struct Teller<'a>(pub(crate) &'a mpsc::Sender<Progress>);

impl source::Progress for Teller<'_> {
    fn stage(&self, what: &str) {
        // A client that has gone does not want to know.
        let _ = self.0.send(Progress { stage: what.to_owned(), done: 0, total: None });
    }

    fn advance(&self, done: u64, total: Option<u64>) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let _ = self.0.send(Progress { stage: String::new(), done: number(done), total: total.map(number) });
    }
}

/// Fills in what the user left open and the image knows.
pub(crate) fn complete(spec: &mut Spec, suggested: &Suggested) {
    let entrypoint = spec.entrypoint.take();
    if spec.init.is_none() {
        // What somebody runs in the place of the entrypoint has no use for that one's arguments.
        let arguments = match spec.command.is_empty() && entrypoint.is_none() {
            true => suggested.command.clone(),
            false => std::mem::take(&mut spec.command),
        };
        spec.command = entrypoint.unwrap_or_else(|| suggested.entrypoint.clone());
        spec.command.extend(arguments);
    }
    for variable in &suggested.environment {
        if let Some((name, value)) = variable.split_once('=') {
            spec.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    spec.workdir = spec.workdir.take().or_else(|| suggested.workdir.clone());
    spec.user = spec.user.take().or_else(|| suggested.user.clone());
    spec.health = match (spec.health.take(), suggested.health.clone()) {
        (Some(own), Some(images)) => Some(own.or(images)),
        (own, images) => own.or(images),
    };
    if std::mem::take(&mut spec.publish_all) {
        let is_known = |port: &Publication, known: &[Publication]| {
            known.iter().any(|other| (other.guest, other.protocol) == (port.guest, port.protocol))
        };
        for port in suggested.exposed.iter().filter_map(|word| word.parse::<Publication>().ok()) {
            if !is_known(&port, &spec.publish) {
                spec.publish.push(port);
            }
        }
    }
    // One that is no signal would keep the guest from being stopped.
    let known = suggested.stop_signal.clone().filter(|text| pando_kernel::process::signal::number(text).is_some());
    spec.stop_signal = spec.stop_signal.take().or(known);
}

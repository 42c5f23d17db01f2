//! What a guest stands on: which read-only trees, and how they come to be.

use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::FILES;
use crate::store::trash::unique;
use crate::{crash, failure};
use pando_api::{Fault, FaultKind, Progress, Spec};
use pando_guest::root::{Layer, LayerStore, Root};
use pando_guest::source::{self, Options, Source, Suggested};
use pando_guest::{GuestName, Places, mask};
use pando_kernel::file::tree_removal::remove_tree;
use pando_kernel::mistake::planted;
use pando_kernel::mount::Tree;
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
    stored(layer).map_or_else(|| Layer::Tree(places.layers().join(layer)), Layer::Stored)
}

/// The path that a layer lies at.
pub(crate) fn path(places: &Places, layer: &str) -> PathBuf {
    match standing(places, layer) {
        Layer::Tree(path) | Layer::Seen(path) => path,
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
/// first.
pub(crate) fn live(source: &Source, expose: &[String]) -> Result<Option<Vec<String>>, Fault> {
    match source {
        Source::Host => {
            let whole = mask::shows_private(&expose.iter().map(PathBuf::from).collect::<Vec<_>>());
            Ok(Some(vec![if whole { WHOLE_HOST } else { HOST }.to_owned()]))
        }
        Source::Directory(path) => {
            let path = std::fs::canonicalize(path).map_err(|error| {
                failure::io(&format!("opening the guest's files, {},", path.display()), &path.to_string_lossy(), &error)
            })?;
            if !path.is_dir() {
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
}

/// What a maker of layers needs of the daemon, to work on another thread.
pub(crate) struct Maker {
    pub(crate) places: Places,
    pub(crate) source: Source,
    pub(crate) spec: Spec,
    pub(crate) name: GuestName,
    pub(crate) guest_tree: Option<PathBuf>,
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
            self.keep(&new, summary.suggested)
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
            // What is mounted below is not part of it, as in a copy.
            // The copy will say what is the matter with it.
            (Source::Directory(path), _) if !path.is_dir() => return Ok(None),
            (Source::Directory(path), _) => match Tree::clone_of(path, false) {
                Ok(tree) => {
                    let shown = PathBuf::from(format!("/proc/self/fd/{}", tree.as_fd().as_raw_fd()));
                    (Some(tree), shown)
                }
                Err(_) => return Ok(None),
            },
            _ => return Ok(None),
        };
        let doing = format!("keeping the files of guest '{}'", self.name);
        let fault = |error| failure::store(&doing, self.name.as_ref(), &error);
        let opened = self.store.open().map_err(fault)?;
        match opened.store().import_telling(&path, Taking::Copy, &self.told()) {
            Ok(imported) => {
                crash::point("create.imported");
                let (name, lease) = (word(&imported.layer), Some(imported.lease));
                Ok(Some(MadeLayer { name, suggested: Suggested::default(), lease }))
            }
            Err(ImportError::Store(error)) => Err(fault(error)),
            Err(error) => {
                tracing::debug!(%error, guest = %self.name, "its files are copied first");
                Ok(None)
            }
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
        let doing = format!("keeping the files of guest '{}'", self.name);
        let opened = self.store.open().map_err(|error| failure::store(&doing, self.name.as_ref(), &error))?;
        match opened.store().import_telling(new, Taking::Over, &self.told()) {
            Ok(imported) => {
                crash::point("create.imported");
                crate::store::trash::discard(&self.places, new);
                Ok(MadeLayer { name: word(&imported.layer), suggested, lease: Some(imported.lease) })
            }
            Err(ImportError::Unfit { path, reason }) => {
                tracing::warn!(guest = %self.name, path = %path.display(), reason, "its files are not shared");
                let name = format!("{}-{}", self.name, unique());
                settle(new, &self.places.layers().join(&name))?;
                Ok(MadeLayer { name, suggested, lease: None })
            }
            Err(ImportError::Store(error)) => Err(failure::store(&doing, self.name.as_ref(), &error)),
            Err(error) => Err(Fault::new(FaultKind::Failed, self.name.as_ref(), format!("{doing} failed: {error}"))),
        }
    }
}

/// Passes progress on to whoever waits for the layer.
struct Teller<'a>(&'a mpsc::Sender<Progress>);

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
    spec.stop_signal = spec.stop_signal.take().or_else(|| suggested.stop_signal.clone());
}

//! One layer over those before it: new files, replaced files, and whiteouts that remove what lower layers have.

use super::OciError;
use super::store::Store;
use crate::source::archive::{ArchiveError, Entry, Receiver, UnpackError, Unpacker, each_entry, entry_path};
use crate::source::meter::{Cancelled, Meter};
use crate::source::write_error::WriteError;
use crate::source::{Progress, Summary};
use oci_spec::image::Digest;
use pando_reader::{Digester, Job};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const WHITEOUT: &[u8] = b".wh.";
/// Names that aufs had for itself.
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The most that is kept in memory of the paths of a layer, and what each takes besides its bytes.
const MOST_KEPT: usize = 512 << 20;
const KEPT_EACH: usize = 64;

/// How much a reader is handed at a time.
const FEED: usize = 1 << 20;

/// A layer, and what it must turn out to be.
pub(super) struct Wanted {
    /// Its file in the store.
    pub(super) member: String,
    /// Its size as it is stored, if that is known.
    pub(super) size: Option<u64>,
    /// The digest of it as it is stored, if that is known.
    pub(super) packed: Option<Digest>,
    /// The digest of its plain content.
    pub(super) plain: Digest,
}

/// The layers so far.
pub(super) struct Layers<'a> {
    store: &'a Store,
    unpacker: Unpacker<'a>,
}

impl<'a> Layers<'a> {
    pub(super) fn new(store: &'a Store, into: &'a Path) -> Result<Self, OciError> {
        Ok(Self { store, unpacker: Unpacker::new(into).map_err(ArchiveError::from)? })
    }

    /// Unpacks the next one.
    pub(super) fn apply(&mut self, wanted: &Wanted, progress: &dyn Progress) -> Result<(), OciError> {
        let store = self.store;
        let name = wanted.packed.as_ref().unwrap_or(&wanted.plain);
        let file = PathBuf::from(format!("{} (layer {name})", store.image().display()));
        let unread = |source: io::Error| OciError::Read {
            image: store.image().to_owned(),
            member: wanted.member.clone(),
            source,
        };
        let (blob, stored) = store.read(&wanted.member)?;
        if let Some(size) = wanted.size.filter(|size| *size != stored) {
            return Err(store.corrupt("layer", name, format!("has {stored} bytes in place of {size}")));
        }
        let digester = wanted.packed.as_ref().map(|packed| store.digester("layer", packed)).transpose()?;
        let job = Job::Archive { plain: Some(store.sum("layer", &wanted.plain)?), end_is_marked: false, content: true };
        let mut meter = Meter::new(progress, Some(stored));
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| unread(error.into()))?;
        let _ = fcntl_setpipe_size(&ours, FEED);
        let mut layer =
            Layer { unpacker: &mut self.unpacker, placed: HashSet::new(), kept: 0, cleared: HashSet::new() };
        let given_up = AtomicBool::new(false);
        let (done, fed) = std::thread::scope(|scope| {
            let feeder = scope.spawn(|| feed(blob, File::from(ours), digester, &given_up));
            let done = each_entry(&job, theirs, &file, &mut meter, &mut layer);
            let hopeless = matches!(done, Err(ArchiveError::Cancelled(_) | ArchiveError::Write(_)));
            given_up.store(hopeless, Ordering::Relaxed);
            (done, feeder.join())
        });
        if let Err(error @ (ArchiveError::Cancelled(_) | ArchiveError::Write(_))) = done {
            return Err(error.into());
        }
        // Before complaining of what is in it: is it the layer at all?
        let fed = fed.unwrap_or_else(|_| Err(io::Error::other("the thread that reads it failed"))).map_err(unread)?;
        if let Some(packed) = wanted.packed.as_ref().filter(|_| !fed) {
            return Err(store.corrupt("layer", packed, "has other content than its digest says"));
        }
        let (_, end) = done?;
        if !end.agrees {
            return Err(store.corrupt("layer", &wanted.plain, "has, unpacked, other content than its digest says"));
        }
        meter.report()?;
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Summary, OciError> {
        Ok(self.unpacker.finish().map_err(ArchiveError::from)?)
    }
}

/// Hands a blob to a reader, and digests all of it: also what a reader that has failed does not want any more. Returns
/// whether the digest is the wanted one.
fn feed(
    mut blob: impl Read,
    mut into: File,
    mut digester: Option<Digester>,
    given_up: &AtomicBool,
) -> io::Result<bool> {
    let mut buffer = vec![0; FEED];
    let mut wanted = true;
    loop {
        let count = match blob.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            done => done?,
        };
        if count == 0 || (!wanted && digester.is_none()) || given_up.load(Ordering::Relaxed) {
            return Ok(digester.is_none_or(|digester| digester.agrees()));
        }
        if let Some(digester) = &mut digester {
            digester.update(&buffer[..count]);
        }
        // Nobody reads it any more: the caller that asked for it knows why.
        wanted = wanted && into.write_all(&buffer[..count]).is_ok();
    }
}

/// Unpacks the entries of one layer.
struct Layer<'u, 'a> {
    unpacker: &'u mut Unpacker<'a>,
    /// What this layer has made, with the directories above: its whiteouts are only for what was there before.
    placed: HashSet<PathBuf>,
    /// Bytes that those take, about.
    kept: usize,
    /// Directories that have nothing of lower layers any more: to look through them again would be work without end.
    cleared: HashSet<PathBuf>,
}

impl Receiver for Layer<'_, '_> {
    fn receive(
        &mut self,
        entry: &Entry,
        content: &mut dyn Read,
        step: &mut dyn FnMut() -> Result<(), Cancelled>,
    ) -> Result<(), UnpackError> {
        let path = entry_path(&entry.path).map_err(UnpackError::Refused)?;
        let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
        let parent = path.parent().unwrap_or(Path::new(""));
        if name.starts_with(WHITEOUT) {
            // It leaves nothing, and could go on for ever.
            self.unpacker.skip(entry)?;
        }
        if name == OPAQUE {
            return Ok(self.clear(parent)?);
        }
        if name.starts_with(RESERVED) {
            return Ok(());
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(UnpackError::Refused("is a whiteout of no possible name".to_owned()));
            }
            return Ok(self.white_out(&parent.join(OsStr::from_bytes(hidden)))?);
        }
        self.unpacker.place(&path, entry, content, step)?;
        self.keep(&path)
    }
}

impl Layer<'_, '_> {
    /// Notes what was made, with the directories above, which are there if one of them is.
    fn keep(&mut self, path: &Path) -> Result<(), UnpackError> {
        for made in path.ancestors() {
            if !self.placed.insert(made.to_owned()) {
                break;
            }
            self.kept += made.as_os_str().len() + KEPT_EACH;
        }
        if self.kept <= MOST_KEPT {
            return Ok(());
        }
        let what = format!("is one too many: the paths of this layer take more than {} MiB", MOST_KEPT >> 20);
        Err(UnpackError::Refused(what))
    }

    /// Removes what lower layers have at `path`.
    fn white_out(&mut self, path: &Path) -> Result<(), WriteError> {
        if self.placed.contains(path) { self.clear(path) } else { self.unpacker.remove(path) }
    }

    /// Removes what lower layers have in the directory `path`.
    fn clear(&mut self, path: &Path) -> Result<(), WriteError> {
        let mut todo = vec![path.to_owned()];
        while let Some(directory) = todo.pop() {
            if !self.cleared.insert(directory.clone()) {
                continue;
            }
            for name in self.unpacker.names(&directory)? {
                let path = directory.join(name);
                if self.placed.contains(&path) {
                    todo.push(path);
                } else {
                    self.unpacker.remove(&path)?;
                }
            }
        }
        Ok(())
    }
}

//! What an operator names of the host's files for a guest: what is exposed, and the directory that it runs on, with
//! where they lead.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::store::volumes;
use pando_api::{Fault, Spec};
use pando_guest::source::Source;
use pando_kernel::file::operator_path::{Misled, OperatorPath, Shared};
use std::path::{Path, PathBuf};

/// The paths that a spec exposes, each followed by where it leads if that is elsewhere. None, unless the guest is over
/// the host's files.
pub(crate) fn paths(daemon: &Daemon, source: &Source, spec: &Spec) -> Result<Vec<PathBuf>, Fault> {
    if *source != Source::Host || spec.expose.is_empty() {
        return Ok(Vec::new());
    }
    let shared = volumes::written_by_guests(daemon, spec);
    let mut paths = Vec::new();
    for path in &spec.expose {
        paths.extend(readings(path, &shared)?);
    }
    Ok(paths)
}

fn readings(path: &str, shared: &[Shared]) -> Result<Vec<PathBuf>, Fault> {
    let given = Path::new(path);
    if !given.is_absolute() {
        return Err(failure::bad(path, format!("--expose '{path}' is not an absolute path")));
    }
    match OperatorPath::open(given, shared) {
        Ok(found) if found.path() == given => Ok(vec![given.to_owned()]),
        Ok(found) => Ok(vec![given.to_owned(), found.path().to_owned()]),
        Err(error @ Misled::Link { .. }) => Err(failure::bad(path, format!("--expose {path}: {error}"))),
        // What is not there may be, later.
        Err(_) => Ok(vec![given.to_owned()]),
    }
}

/// What the path of a directory leads to that a guest is to run on, or is made of.
pub(crate) fn directory_of(daemon: &Daemon, path: &Path) -> Result<OperatorPath, Fault> {
    OperatorPath::open(path, &volumes::written_by_guests(daemon, &Spec::default())).map_err(|error| {
        let doing = format!("opening the guest's files, {},", path.display());
        failure::io(&doing, &path.to_string_lossy(), &error.into())
    })
}

/// The same of a source, if it is such a directory.
pub(crate) fn of_source(daemon: &Daemon, source: &Source) -> Result<Option<OperatorPath>, Fault> {
    match source {
        Source::Directory(path) => directory_of(daemon, path).map(Some),
        _ => Ok(None),
    }
}

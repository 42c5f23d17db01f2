//! Settings, made and read back.

use crate::groups::{Controller, Groups};
use crate::setting::{INHERITED, Inside, Setting};
use pando_kernel::{CallError, Context};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// In version 1 the bound on memory and swap together may never be below that on memory alone: it is lifted where that
/// rises above it.
const TOGETHER: &str = "memory.memsw.limit_in_bytes";
const ALONE: &str = "memory.limit_in_bytes";

/// A setting that the kernel refuses, and which limit it came from.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {value}: {source}")]
pub struct ApplyError {
    /// The key of the limit, as `pando set` takes it.
    pub key: &'static str,
    /// What was to be written.
    pub value: String,
    /// Why it could not be.
    #[source]
    pub source: CallError,
}

/// Makes settings, in order. The first refusal ends it; those before stand.
///
/// # Errors
///
/// EBUSY where memory is bounded below what is in use and cannot be had back (version 1).
pub fn apply(settings: &[Setting], groups: &Groups) -> Result<(), ApplyError> {
    for setting in settings {
        make(setting, groups).map_err(|source| ApplyError {
            key: setting.key,
            value: setting.value.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Leads from settings that were made to others: all of them, or none.
pub fn replace(old: &[Setting], new: &[Setting], groups: &Groups) -> Result<(), ApplyError> {
    let change = crate::setting::change(old, new);
    // A bound on memory that changes may lift the one on memory and swap: that has to be said again, though it may say
    // the same.
    let again = change.iter().any(|setting| setting.files.contains(&ALONE));
    let said = new.iter().filter(|setting| again && setting.files.contains(&TOGETHER) && !change.contains(setting));
    let change: Vec<_> = change.iter().chain(said).cloned().collect();
    apply(&change, groups).inspect_err(|_| {
        // What was before could be had before: nothing here can be refused that was granted then.
        let taken_back: Vec<_> = new.iter().filter(|setting| !old.contains(setting)).map(Setting::undone).collect();
        let _ = apply(&taken_back, groups);
        let _ = apply(old, groups);
    })
}

/// What a setting's file says now.
pub fn read_back(setting: &Setting, groups: &Groups) -> Option<(PathBuf, String)> {
    let file = files(setting, groups).find(|file| file.exists())?;
    let text = std::fs::read_to_string(&file).ok()?;
    Some((file, text.trim().replace('\n', "; ")))
}

fn files(setting: &Setting, groups: &Groups) -> impl Iterator<Item = PathBuf> {
    setting.files.iter().filter_map(|file| groups.file(setting.controller, file))
}

/// The first file that there is has to take it; those after it say the same to programs that read them.
pub(crate) fn make(setting: &Setting, groups: &Groups) -> Result<(), CallError> {
    let mut made: Option<String> = None;
    for file in files(setting, groups) {
        if let Some(value) = &made {
            let _ = write(&file, value);
            continue;
        }
        let value = if setting.value == INHERITED { inherited(&file) } else { setting.value.clone() };
        match lifting(&file, &value, groups) {
            // To ask beforehand would be another walk down to the group.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => {
                written.context(|| format!("writing '{}' to {}", value.trim(), file.display()))?;
                made = Some(value);
            }
        }
    }
    let Some(value) = made else {
        if setting.optional {
            return Ok(());
        }
        let missing = io::Error::new(io::ErrorKind::Unsupported, "this kernel does not offer it");
        return Err(missing).context(|| format!("setting {}", setting.files.join(" or ")));
    };
    let inner = groups.inner().filter(|_| setting.inside != Inside::Silent && !groups.is_legacy(setting.controller));
    if let Some(inner) = inner {
        let file = inner.join(setting.files[0]);
        match write(&file, &value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && setting.inside == Inside::Shown => {}
            written => written.context(|| format!("writing '{value}' to {}", file.display()))?,
        }
    }
    Ok(())
}

/// Writes a value. A bound on memory above that on memory and swap is refused (EINVAL). The latter is lifted then, and
/// is written again by the caller that changes both.
fn lifting(file: &Path, value: &str, groups: &Groups) -> io::Result<()> {
    let written = write(file, value);
    let above = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput);
    if !above || !file.ends_with(ALONE) {
        return written;
    }
    // Without accounting of swap there is no such file, and another reason.
    let Some(together) = groups.file(Controller::Memory, TOGETHER) else { return written };
    write(&together, "-1").and_then(|()| write(file, value)).or(written)
}

/// What the group above has; in version 2 it may say nothing itself, and have what those above it have.
fn inherited(file: &Path) -> String {
    let (Some(above), Some(name)) = (file.parent().and_then(Path::parent), file.file_name()) else {
        return String::new();
    };
    let effective = format!("{}.effective", name.to_string_lossy());
    let read = |name: &Path| std::fs::read_to_string(above.join(name)).unwrap_or_default().trim().to_owned();
    let own = read(Path::new(name));
    if own.is_empty() { read(Path::new(&effective)) } else { own }
}

/// Writes to a file of a group, which is never made: one that is missing is a controller that is.
pub(crate) fn write(file: &Path, value: &str) -> io::Result<()> {
    std::fs::File::options().write(true).open(file)?.write_all(value.as_bytes())
}

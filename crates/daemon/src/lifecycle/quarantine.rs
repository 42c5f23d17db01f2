//! Guests whose record or spec cannot be read: named, left alone, mended.
//!
//! Of both files the last that could be read is kept beside. With it a guest goes on as it was, and is only not started
//! anew; without it nothing is known of the guest but its name, and it can be ended and removed.
//!
//! ```text
//!   spec.toml   guest.toml            what the guest is
//!   .spec.toml.good  .guest.toml.good     the last that could be read
//!   spec.toml.broken                  what `pando repair` has put aside
//! ```

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::damage::Damage;
use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::{GuestRecord, RECORD, SPEC};
use crate::store::flatten;
use pando_api::{Fault, FaultKind, GuestState, Spec};
use pando_guest::{GuestName, Places};
use pando_kernel::{CallError, Context};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What a guest's directory says of it.
pub(crate) struct Read {
    pub(crate) record: GuestRecord,
    pub(crate) spec: Spec,
    /// Which file could not be read, and why, if the last good one stands in.
    pub(crate) trouble: Option<String>,
}

/// Reads what a guest is.
pub(crate) fn read(places: &Places, directory: &Path) -> Result<Read, CallError> {
    let (mut record, of_record) = one::<GuestRecord>(&directory.join(RECORD))?;
    flatten::finish(places, directory, &mut record)?;
    let (spec, of_spec) = one::<Spec>(&directory.join(SPEC))?;
    Ok(Read { record, spec, trouble: of_record.or(of_spec) })
}

/// Reads one file; where its content makes no sense, the last good one in its place, with what is wrong.
fn one<T: serde::de::DeserializeOwned>(path: &Path) -> Result<(T, Option<String>), CallError> {
    match record::read_toml(path) {
        Ok(value) => {
            record::keep_good(path);
            Ok((value, None))
        }
        Err(error) if is_lasting(&error) => match record::read_toml(&record::good(path)) {
            Ok(last) => Ok((last, Some(sentence(&error)))),
            Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Whether the same will be found next time: the daemon lacked nothing.
pub(crate) fn is_lasting(error: &CallError) -> bool {
    matches!(error.source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound)
}

/// An error in one line; a parser draws the line that it stumbled over, too.
pub(crate) fn sentence(error: &CallError) -> String {
    let text = failure::reason(&error.source);
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" |")).map(str::trim).collect();
    format!("{} failed: {}", error.what, lines.join(": "))
}

/// A guest of which nothing is known but its name.
pub(crate) fn unreadable(name: GuestName, error: &CallError) -> Rc<Guest> {
    let record = GuestRecord {
        source: "unknown".to_owned(),
        created: 0,
        layers: Vec::new(),
        exit_code: None,
        oom_kills: None,
        up: false,
        restarts: 0,
        frozen_into: None,
        image_created: None,
    };
    let guest = Guest::new(name, record, Spec::default());
    guest.state.set(GuestState::Unreadable);
    *guest.damage.borrow_mut() = Some(Damage { what: sentence(error), known: false });
    guest
}

/// Looks whether a person has mended what could not be read.
pub(crate) fn look_again(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    let Some(before) = guest.damage.borrow().clone() else { return };
    let after = match read(&daemon.places, &guest.directory(&daemon.places)) {
        Ok(Read { record, spec, trouble }) => {
            *guest.record.borrow_mut() = record;
            *guest.spec.borrow_mut() = spec;
            if guest.state.get() == GuestState::Unreadable {
                let runs = guest.unreached.borrow().is_some();
                guest.state.set(if runs { GuestState::Unreachable } else { GuestState::Stopped });
            }
            trouble.map(|what| Damage { what, known: true })
        }
        Err(error) => Some(Damage { what: sentence(&error), ..before }),
    };
    if after.is_none() {
        daemon.events.tell(guest.name.as_ref(), "mended", None);
    }
    *guest.damage.borrow_mut() = after;
}

/// Puts the last good ones back in the place of those files that cannot be read, and sets these aside: what was done.
pub(crate) fn repair(daemon: &Rc<Daemon>, guest: &Rc<Guest>) -> Result<Vec<String>, Fault> {
    look_again(daemon, guest);
    let directory = guest.directory(&daemon.places);
    let files = [check::<GuestRecord>(&directory.join(RECORD)), check::<Spec>(&directory.join(SPEC))];
    let mut done = Vec::new();
    for (path, error) in files.into_iter().flatten() {
        put_back(&path).map_err(|missing| {
            let message = format!(
                "guest '{0}' cannot be repaired: {1}, and {2}. Mend the file by hand, or remove the guest with 'pando rm --force {0}'",
                guest.name,
                sentence(&error),
                sentence(&missing)
            );
            Fault::new(FaultKind::Failed, guest.name.as_ref(), message)
        })?;
        let (name, aside) = (path.display(), aside(&path));
        done.push(format!("{name} is the last one that could be read; what stood there is {}", aside.display()));
    }
    look_again(daemon, guest);
    Ok(done)
}

/// A file that makes no sense.
fn check<T: serde::de::DeserializeOwned>(path: &Path) -> Option<(PathBuf, CallError)> {
    record::read_toml::<T>(path).err().filter(is_lasting).map(|error| (path.to_owned(), error))
}

fn put_back(path: &Path) -> Result<(), CallError> {
    let good = record::good(path);
    let content = std::fs::read(&good).context(|| format!("reading {}", good.display()))?;
    match std::fs::rename(path, aside(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context(|| format!("setting {} aside", path.display()));
        }
        _ => {}
    }
    record::replace(path, &content, true)
}

fn aside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.broken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_good_one_stands_in_for_a_spec_that_makes_no_sense() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SPEC);
        record::write_toml(&path, &Spec { hostname: Some("a".into()), ..Spec::default() }).unwrap();
        assert_eq!(one::<Spec>(&path).unwrap().1, None);
        std::fs::write(&path, "hostname = \nuser = 3").unwrap();
        let (spec, trouble) = one::<Spec>(&path).unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("a"));
        let trouble = trouble.unwrap();
        assert!(trouble.contains("spec.toml") && trouble.contains("line ") && !trouble.contains('\n'), "{trouble}");
        put_back(&path).unwrap();
        assert_eq!(one::<Spec>(&path).unwrap().0.hostname.as_deref(), Some("a"));
        assert!(directory.path().join("spec.toml.broken").exists());
    }

    #[test]
    fn without_a_good_one_nothing_is_made_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SPEC);
        std::fs::write(&path, "?").unwrap();
        assert!(is_lasting(&one::<Spec>(&path).unwrap_err()));
        assert!(put_back(&path).is_err() && path.exists());
    }
}

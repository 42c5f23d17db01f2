//! The entries of the log: one directory for each commit, whose name says its number, how many bytes it keeps and when
//! it was committed. It appears whole, by one rename, and goes by one.
//!
//! ```text
//!   TX/.log/NUMBER.BYTES.SECONDS/   journal  part-0/{removed,replaced,content}
//!   MOUNT/.pando-tx/kept-ID/        {removed,replaced,content}      of a part on another mount
//! ```

use crate::change::kept::{About, Kept};
use crate::change::review::PartReview;
use crate::crash::step;
use crate::journal::file::{Journal, JournalFile};
use crate::state::directory::StateDirectory;
use crate::state::overlay_part::ENTRY;
use crate::state::trash;
use pando_kernel::file::trusted_directory::TrustedDirectory;
use pando_kernel::{CallError, Context};
use rustix::fs::Mode;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The last number that was given, in the log: none is given twice.
const LAST: &str = "last";

/// Why an entry cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// There is none of that number.
    #[error("the log has no commit {0}; `pando tx log` lists them")]
    Unknown(u64),
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] CallError),
}

/// What the name of an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    number: u64,
    bytes: u64,
    seconds: i64,
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('.');
        let mut word = || words.next();
        let name = Self { number: word()?.parse().ok()?, bytes: word()?.parse().ok()?, seconds: word()?.parse().ok()? };
        (name.text() == text).then_some(name)
    }

    fn text(self) -> String {
        let Self { number, bytes, seconds } = self;
        format!("{number}.{bytes}.{seconds}")
    }
}

fn log(home: &StateDirectory) -> PathBuf {
    home.directory().join(".log")
}

/// The names of all entries, the oldest first.
fn names(home: &StateDirectory) -> Result<Vec<Name>, CallError> {
    let log = log(home);
    let entries = match std::fs::read_dir(&log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(|| format!("listing {}", log.display()))?,
    };
    let mut names: Vec<_> = entries.filter_map(|entry| Name::parse(entry.ok()?.file_name().to_str()?)).collect();
    names.sort_unstable();
    Ok(names)
}

/// Makes what a commit that is in place has kept an entry of the log, if it has kept anything and is none yet; its
/// number. `directory` is the transaction's; the lock of its state directory must be held.
pub(crate) fn add(home: &StateDirectory, directory: &Path) -> Result<Option<u64>, CallError> {
    let (entry, log) = (directory.join(ENTRY), log(home));
    if !entry.exists() {
        return Ok(None);
    }
    let what = || format!("adding {} to the log", directory.display());
    let file = JournalFile::of(directory);
    let Some(Journal { kept: Some(kept), .. }) = file.read_done().context(what)? else { return Ok(None) };
    TrustedDirectory::make(&log, Mode::RWXU).map(drop).context(what)?;
    match std::fs::hard_link(file.done(), JournalFile::of(&entry).path()) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error).context(what),
        _ => step(),
    }
    let number = next_number(home, &log)?;
    let name = Name { number, bytes: kept.bytes, seconds: kept.about.when.seconds };
    std::fs::rename(&entry, log.join(name.text())).context(what)?;
    step();
    Ok(Some(number))
}

/// The number behind the last one that was given.
fn next_number(home: &StateDirectory, log: &Path) -> Result<u64, CallError> {
    let (path, next) = (log.join(LAST), log.join("last.next"));
    let given = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let number = names(home)?.last().map_or(0, |name| name.number).max(given) + 1;
    let written = std::fs::write(&next, format!("{number}\n")).and_then(|()| std::fs::rename(&next, &path));
    written.context(|| format!("writing {}", path.display()))?;
    step();
    Ok(number)
}

/// Throws the oldest entries away until the rest takes no more than `most` bytes, and all that are older than `age`.
/// The newest stays, as long as it is young enough. The lock of the state directory must be held.
pub(crate) fn prune(home: &StateDirectory, most: u64, age: Duration) -> Result<(), CallError> {
    let oldest = crate::tree::attributes::Moment::now().seconds - i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    let (mut bytes, mut is_newest) = (0_u64, true);
    for name in names(home)?.into_iter().rev() {
        bytes = bytes.saturating_add(name.bytes);
        if name.seconds < oldest || bytes > most && !is_newest {
            throw_away(home, name)?;
        }
        is_newest = false;
    }
    Ok(())
}

/// Throws all entries away; how many there were.
///
/// # Errors
///
/// Where the log cannot be listed, or an entry not be moved.
pub fn clear(home: &StateDirectory) -> Result<usize, CallError> {
    home.prepare()?;
    let _lock = home.lock()?;
    let names = names(home)?;
    names.iter().try_for_each(|name| throw_away(home, *name))?;
    Ok(names.len())
}

/// What was kept on other mounts goes with it, as that of a transaction that was not committed does.
fn throw_away(home: &StateDirectory, name: Name) -> Result<(), CallError> {
    let entry = log(home).join(name.text());
    trash::throw_away_as(home, &entry, ENTRY).context(|| format!("removing {}", entry.display()))
}

/// A commit in the log.
#[derive(Debug)]
pub struct Logged {
    /// The number that it is named by.
    pub number: u64,
    /// The user who has made it, and when.
    pub about: About,
    /// How many paths it has changed.
    pub paths: usize,
    /// How many bytes are kept of it.
    pub bytes: u64,
}

/// A commit in the log, with all that is kept of it.
#[derive(Debug)]
pub struct Entry {
    pub(crate) directory: PathBuf,
    pub(crate) journal: Journal,
    pub(crate) kept: Kept,
    number: u64,
}

impl Entry {
    /// What the log says of it in a line.
    pub fn logged(&self) -> Logged {
        let Kept { about, bytes, parts } = &self.kept;
        let paths = parts.iter().map(|part| part.entries.len()).sum();
        Logged { number: self.number, about: about.clone(), paths, bytes: *bytes }
    }

    /// The paths that it has changed, before and after.
    pub fn review(&self) -> Vec<PartReview> {
        let parts = self.journal.parts.iter().zip(&self.kept.parts);
        parts.map(|((part, _), kept)| PartReview { part: part.clone(), entries: kept.entries.clone() }).collect()
    }
}

/// The commit of a number.
///
/// # Errors
///
/// Where there is none, or it cannot be read.
pub fn entry(home: &StateDirectory, number: u64) -> Result<Entry, LogError> {
    let name = names(home)?.into_iter().find(|name| name.number == number).ok_or(LogError::Unknown(number))?;
    Ok(read(home, name)?)
}

/// All commits in the log, the oldest first.
///
/// # Errors
///
/// Where the log, or one of them, cannot be read.
pub fn list(home: &StateDirectory) -> Result<Vec<Logged>, CallError> {
    names(home)?.into_iter().map(|name| Ok(read(home, name)?.logged())).collect()
}

fn read(home: &StateDirectory, name: Name) -> Result<Entry, CallError> {
    let directory = log(home).join(name.text());
    let what = || format!("reading commit {} in {}", name.number, directory.display());
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let found = JournalFile::of(&directory).read();
    let mut journal = found.and_then(|found| found.ok_or_else(missing)).context(what)?;
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "nothing is said of what is kept");
    let kept = journal.kept.take().filter(|kept| kept.parts.len() == journal.parts.len());
    let kept = kept.ok_or_else(damaged).context(what)?;
    Ok(Entry { directory, journal, kept, number: name.number })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home_with(names: &[&str]) -> (tempfile::TempDir, StateDirectory) {
        let root = tempfile::tempdir().unwrap();
        let home = StateDirectory::new(root.path());
        home.prepare().unwrap();
        names.iter().for_each(|name| std::fs::create_dir_all(log(&home).join(name)).unwrap());
        (root, home)
    }

    fn numbers(home: &StateDirectory) -> Vec<u64> {
        names(home).unwrap().iter().map(|name| name.number).collect()
    }

    #[test]
    fn a_name_says_all_that_pruning_needs() {
        assert_eq!(Name::parse("12.4096.7").unwrap(), Name { number: 12, bytes: 4096, seconds: 7 });
        for wrong in ["last", "1.2", "1.2.3.4", "01.2.3", "1.+2.3", ""] {
            assert_eq!(Name::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_oldest_go_first_and_the_newest_stays() {
        let now = crate::tree::attributes::Moment::now().seconds;
        let named = |number: u64, bytes: u64, age: i64| format!("{number}.{bytes}.{}", now - age);
        let all = [named(1, 10, 90), named(2, 10, 60), named(10, 10, 30)];
        let (_root, home) = home_with(&all.each_ref().map(String::as_str));
        let minute = Duration::from_secs(75);
        prune(&home, 100, minute).unwrap();
        assert_eq!(numbers(&home), [2, 10]);
        prune(&home, 20, minute).unwrap();
        assert_eq!(numbers(&home), [2, 10]);
        prune(&home, 5, minute).unwrap();
        assert_eq!(numbers(&home), [10]);
        assert_eq!((next_number(&home, &log(&home)).unwrap(), clear(&home).unwrap()), (11, 1));
        assert_eq!(next_number(&home, &log(&home)).unwrap(), 12, "no number is given twice");
    }
}

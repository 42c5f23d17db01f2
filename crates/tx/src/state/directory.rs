//! Where transactions are kept.
//!
//! ```text
//!   ROOT/var/lib/pando/tx/NAME/     record.json  lock  journal
//!     part-0/                       upper  work  stage  trash     of the mount that all of this lies on
//!   MOUNT/.pando-tx/ID/             upper  work  stage  trash     of each other mount
//!   ROOT/var/lib/pando/tx/.trash/   what is being deleted
//!   CGROUP2/pando-tx/ID             the processes
//! ```

use crate::state::name::TxName;
use crate::state::record::Record;
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::file::lock::FileLock;
use pando_kernel::file::trusted_directory::TrustedDirectory;
use pando_kernel::{CallError, Context};
use rustix::fs::Mode;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a lock that another process holds is tried again.
const PAUSE: Duration = Duration::from_millis(2);

/// All transactions of one Pando.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    root: PathBuf,
    directory: PathBuf,
    /// Where what is found out about the kernel is kept.
    kept: PathBuf,
    rescue: Option<Rescue>,
    /// How long another's commit is waited for, if there is a limit to that.
    patience: Option<Duration>,
}

/// A program that recovers, for when this process is killed while others stand still.
#[derive(Clone, Debug)]
pub(crate) struct Rescue {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

impl StateDirectory {
    /// Those of the Pando whose state lies under `root`, `/` for the machine's own.
    pub fn new(root: &Path) -> Self {
        let directory = root.join("var/lib/pando/tx");
        Self { root: root.to_owned(), kept: directory.clone(), directory, rescue: None, patience: None }
    }

    /// Those of a target whose own are kept in `directory`.
    pub fn of_target(&self, directory: &Path) -> Self {
        let (root, rescue) = (directory.to_owned(), self.rescue.clone());
        Self { root, directory: directory.to_owned(), kept: self.kept.clone(), rescue, patience: self.patience }
    }

    /// The same, for a process whose death leaves nobody frozen: `program`, with these arguments, is executed then, and
    /// is to recover.
    pub fn rescued_by(self, program: OsString, arguments: Vec<OsString>) -> Self {
        Self { rescue: Some(Rescue { program, arguments }), ..self }
    }

    /// The same, for a process that waits for another's commit, or for another that has the target to itself, no longer
    /// than `limit` at a time.
    pub fn patient_for(self, limit: Option<Duration>) -> Self {
        Self { patience: limit, ..self }
    }

    /// What is executed when this process is killed.
    pub(crate) fn rescue(&self) -> Option<&Rescue> {
        self.rescue.as_ref()
    }

    /// Where what is found out about the kernel is kept.
    pub(crate) fn kept(&self) -> &Path {
        &self.kept
    }

    /// The directory that all transactions lie in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of the transaction of that name.
    pub fn of(&self, name: &TxName) -> PathBuf {
        self.directory.join(name.as_ref())
    }

    /// The directory of all that is being deleted.
    pub fn trash(&self) -> PathBuf {
        self.directory.join(".trash")
    }

    /// A word that tells this Pando's transactions from another's on the same machine; empty for the machine's own.
    pub(crate) fn mark(&self) -> String {
        if self.root == Path::new("/") {
            return String::new();
        }
        // FNV-1a: the word must be the same from one run to the next, whatever the command was built with.
        let bytes = self.root.as_os_str().as_encoded_bytes();
        let hash = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        format!("-{hash:016x}")
    }

    /// The name of a transaction's part on a mount of its own. No other transaction's has it, not even a later one's of
    /// the same name: what an earlier one has thrown away is deleted by its path, which may take until then.
    pub(crate) fn part_name(&self, name: &TxName, unique: &str) -> String {
        format!("{name}{}.{unique}", self.mark())
    }

    /// The group that a transaction's processes are in.
    pub(crate) fn group(&self, name: &TxName) -> Result<PathBuf, CallError> {
        let unified = Hierarchies::detect()?.unified.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let unified = unified.context(|| "looking for a mounted cgroup2 hierarchy, which transactions need".into())?;
        Ok(unified.join(format!("pando-tx{}", self.mark())).join(name.as_ref()))
    }

    /// Makes the directories that everything lies in.
    pub(crate) fn prepare(&self) -> Result<(), CallError> {
        let make = |path: &Path| {
            let made = TrustedDirectory::make(path, Mode::RWXU);
            made.map(drop).context(|| format!("making {}", path.display()))
        };
        make(&self.trash())?;
        if self.kept == self.directory { Ok(()) } else { make(&self.kept) }
    }

    /// Makes the directory of a transaction, and takes its lock: what is not locked is taken for what a crash left.
    pub(crate) fn claim(&self, directory: &Path) -> Result<FileLock, CallError> {
        let mut own = std::fs::DirBuilder::new();
        own.mode(0o755).create(directory).context(|| format!("making {}", directory.display()))?;
        let taken = FileLock::try_take(&Record::lock(directory));
        let lock = taken.and_then(|lock| lock.ok_or_else(|| io::ErrorKind::ResourceBusy.into()));
        lock.context(|| format!("locking {}", directory.display()))
    }

    /// The lock under which commits and recoveries are done, one after another.
    pub(crate) fn lock(&self) -> Result<FileLock, CallError> {
        let too_long = || io::Error::new(io::ErrorKind::TimedOut, "another transaction held it all the time");
        wait_for_lock(&self.directory.join(".lock"), self.patience)
            .and_then(|lock| lock.ok_or_else(too_long))
            .context(|| format!("locking {}", self.directory.display()))
    }

    /// Every transaction that has a record, by name.
    pub fn records(&self) -> Result<Vec<Record>, CallError> {
        let mut records: Vec<Record> =
            self.names()?.iter().filter_map(|name| Record::read(&self.of(name)).ok()).collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    /// The names of all transactions, half-made ones included. Each is a directory of this user's own that nobody else
    /// writes to, beside that for what is thrown away: whatever else is mounted over this place holds no transactions.
    pub(crate) fn names(&self) -> Result<Vec<TxName>, CallError> {
        let entries = match std::fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(|| format!("listing {}", self.directory.display()))?,
        };
        if !self.trash().is_dir() {
            return Ok(Vec::new());
        }
        let own = rustix::process::geteuid().as_raw();
        let is_own = |entry: &std::fs::DirEntry| {
            const OTHERS_WRITE: u32 = 0o022;
            let found = entry.metadata();
            found.is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & OTHERS_WRITE == 0)
        };
        let entries = entries.flatten().filter(is_own);
        Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }
}

/// Takes a lock, waiting for whoever holds it; `None` if that took longer than `limit`.
pub(crate) fn wait_for_lock(path: &Path, limit: Option<Duration>) -> io::Result<Option<FileLock>> {
    let begun = Instant::now();
    loop {
        if let Some(lock) = FileLock::try_take(path)? {
            return Ok(Some(lock));
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    }
}

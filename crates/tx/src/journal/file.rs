//! The journal: what a commit does, on disk before the first of it is done. Its appearing under its name is the commit
//! point.

use crate::change::Steps;
use crate::change::kept::{Kept, with_checksums};
use crate::crash::{planted, step};
use crate::journal::privileged::Privileged;
use crate::state::overlay_part::OverlayPart;
use crate::tree::content::Digest;
use crate::tree::identity::Directories;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// How a journal begins; the last byte is the version of its format.
const MAGIC: &[u8; 8] = b"PandoTx\x0a";

/// How one began that had checksums of what was kept, and other digests of what is to have privileges.
const WITH_CHECKSUMS: &[u8; 8] = b"PandoTx\x09";

/// How one began before it said what is to have privileges.
const WITHOUT_PRIVILEGED: &[u8; 8] = b"PandoTx\x08";

/// How one began before anything was kept for an undo.
const WITHOUT_KEPT: &[u8; 8] = b"PandoTx\x07";

/// What is said of one in another version of the format.
const OTHERS: &str = "the journal is one of another version of Pando, which has to finish it (pando tx recover)";

/// How what a commit may change names in begins. That of an earlier version had the numbers of inodes alone.
const WITHIN: &[u8; 8] = b"PandoTi\x01";

/// No journal is longer: 16 million operations of 256 bytes.
const LONGEST: u64 = 4 << 30;

/// The operations on every part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    /// Whether it has to survive a loss of power.
    pub durable: bool,
    /// The operations on each overlay part.
    pub parts: Vec<(OverlayPart, Steps)>,
    /// What is kept so that it can be undone, if anything is.
    pub kept: Option<Kept>,
    /// The files that get privileges.
    pub privileged: Vec<Privileged>,
}

impl Journal {
    /// Understands a whole file.
    ///
    /// # Errors
    ///
    /// InvalidData for one that is damaged: it was complete once, so that what it says must not be guessed.
    pub(crate) fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the journal is damaged");
        let of_another = || io::Error::new(io::ErrorKind::InvalidData, OTHERS);
        let versions = [MAGIC, WITH_CHECKSUMS, WITHOUT_PRIVILEGED, WITHOUT_KEPT];
        let version = versions
            .into_iter()
            .find(|version| bytes.starts_with(*version))
            .ok_or_else(|| if bytes.starts_with(&MAGIC[..MAGIC.len() - 1]) { of_another() } else { damaged() })?;
        let rest = &bytes[version.len()..];
        let (sum, rest) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
        let (length, body) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        let whole =
            u64::from_le_bytes(*length) == body.len() as u64 && u32::from_le_bytes(*sum) == crc32fast::hash(body);
        if !whole {
            return Err(damaged());
        }
        // Whatever is left over belongs to another version.
        let whole = match version {
            MAGIC => understood(body),
            WITH_CHECKSUMS => match understood::<(_, _, _, Vec<(u32, u32, Digest)>)>(body) {
                // What it says of their content only that version can tell.
                Some((.., privileged)) if !privileged.is_empty() => return Err(of_another()),
                read => read.map(|(durable, parts, kept, _)| Self::unprivileged(durable, parts, kept)),
            },
            WITHOUT_PRIVILEGED => {
                understood(body).map(|(durable, parts, kept)| Self::unprivileged(durable, parts, kept))
            }
            _ => understood(body).map(|(durable, parts)| Self::unprivileged(durable, parts, None)),
        };
        whole.ok_or_else(damaged)
    }

    fn unprivileged(durable: bool, parts: Vec<(OverlayPart, Steps)>, kept: Option<with_checksums::Kept>) -> Self {
        Self { durable, parts, kept: kept.map(Kept::from), privileged: Vec::new() }
    }

    /// What stands before a body.
    fn head(body: &[u8]) -> [u8; 20] {
        let mut head = [0; 20];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        head[12..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        head
    }

    /// A whole file with a body.
    #[cfg(feature = "fuzz")]
    pub(crate) fn around(body: &[u8]) -> Vec<u8> {
        [&Self::head(body), body].concat()
    }

    /// The same for a target that lives again, under other ids perhaps.
    pub(crate) fn moved_to(mut self, root: &Path, first_id: u32) -> Self {
        for target in self.parts.iter_mut().filter_map(|(part, _)| part.target.as_mut()) {
            target.live_again(root, first_id);
        }
        self
    }
}

/// What a whole body says.
fn understood<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Option<T> {
    postcard::take_from_bytes(body).ok().filter(|(_, rest)| rest.is_empty()).map(|(whole, _)| whole)
}

/// Where the journal of a transaction lies.
#[derive(Clone, Debug)]
pub(crate) struct JournalFile {
    directory: PathBuf,
}

impl JournalFile {
    /// The one in a transaction's directory.
    pub(crate) fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Where one lies that is committed.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join("journal")
    }

    /// Where it is noted how far the commit is.
    pub(crate) fn progress(&self) -> PathBuf {
        self.directory.join("progress")
    }

    /// Where one lies whose commit is in place, and which says what was kept of that.
    pub(crate) fn done(&self) -> PathBuf {
        self.directory.join("done")
    }

    fn applied_mark(&self) -> PathBuf {
        self.directory.join("applied")
    }

    fn staged_mark(&self) -> PathBuf {
        self.directory.join("staged")
    }

    fn next(&self) -> PathBuf {
        self.directory.join("journal.next")
    }

    /// Writes it, under a name that is none yet.
    pub(crate) fn write(&self, journal: &Journal) -> io::Result<File> {
        let body = postcard::to_stdvec(journal).map_err(io::Error::other)?;
        let mut file = File::create(self.next())?;
        file.write_all(&Journal::head(&body))?;
        step();
        file.write_all(&body)?;
        step();
        Ok(file)
    }

    fn within(&self) -> PathBuf {
        self.directory.join("within")
    }

    /// Whether it is the commit of a user who is not root.
    pub(crate) fn is_users(&self) -> bool {
        self.within().exists()
    }

    /// Writes down in which directories of each part the commit may change names. It is on the disk before the journal
    /// gets its name: without it there are no limits.
    pub(crate) fn write_within(&self, within: &[Directories]) -> io::Result<()> {
        let mut file = File::create(self.within())?;
        file.write_all(WITHIN)?;
        file.write_all(&postcard::to_stdvec(within).map_err(io::Error::other)?)?;
        file.sync_all()
    }

    /// What was written down of that, if anything was.
    ///
    /// # Errors
    ///
    /// InvalidData where an earlier version has written it, which has to finish the commit.
    pub(crate) fn read_within(&self) -> io::Result<Option<Vec<Directories>>> {
        let bytes = match std::fs::read(self.within()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let body = bytes.strip_prefix(WITHIN).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, OTHERS))?;
        postcard::from_bytes(body).map(Some).map_err(io::Error::other)
    }

    /// Deletes one that is written and has not got its name.
    pub(crate) fn discard(&self) {
        // There need be none.
        let _ = std::fs::remove_file(self.next());
    }

    /// Gives it its name. When this returns, the transaction is committed.
    pub(crate) fn publish(&self) -> io::Result<()> {
        std::fs::rename(self.next(), self.path())?;
        step();
        Ok(())
    }

    /// Brings its name to the disk, where what was written must be before.
    pub(crate) fn sync_name(&self) -> io::Result<()> {
        if planted("no-directory-fsync") { Ok(()) } else { File::open(&self.directory)?.sync_all() }
    }

    /// Reads it, if there is one.
    ///
    /// # Errors
    ///
    /// InvalidData for one that is damaged: it was complete once, so that what it says must not be guessed.
    pub(crate) fn read(&self) -> io::Result<Option<Journal>> {
        read_at(&self.path())
    }

    /// Reads one whose commit is in place.
    pub(crate) fn read_done(&self) -> io::Result<Option<Journal>> {
        read_at(&self.done())
    }

    /// Whether it is there: what it says is committed, and may not be in place yet.
    pub(crate) fn is_published(&self) -> bool {
        self.path().exists()
    }

    /// Whether everything was put aside already.
    pub(crate) fn is_staged(&self) -> bool {
        self.staged_mark().exists()
    }

    /// Notes that everything was put aside.
    pub(crate) fn mark_staged(&self) -> io::Result<()> {
        File::create(self.staged_mark()).map(drop)
    }

    /// Whether everything was done in a target, and only what was put aside there may be left.
    pub(crate) fn is_applied(&self) -> bool {
        self.applied_mark().exists()
    }

    /// Notes that.
    pub(crate) fn mark_applied(&self, sync: bool) -> io::Result<()> {
        File::create(self.applied_mark())?;
        if sync { File::open(&self.directory)?.sync_all() } else { Ok(()) }
    }

    /// Takes its name away: everything that it says is in place. It keeps another, which tells this from never having
    /// been committed.
    ///
    /// With `sync` that is on the disk when this returns. Else, after a loss of power, what it says may be done once
    /// more, and undo what others have changed since.
    pub(crate) fn mark_done(&self, sync: bool) -> io::Result<()> {
        std::fs::rename(self.path(), self.done())?;
        if sync { File::open(&self.directory)?.sync_all() } else { Ok(()) }
    }

    /// Whether a directory lies in the one that the journal lies in.
    pub(crate) fn is_beside(&self, directory: &Path) -> bool {
        directory.starts_with(&self.directory)
    }

    /// Whether everything that it said was done.
    pub(crate) fn is_done(&self) -> bool {
        self.done().exists()
    }
}

/// Reads the one at a path, if there is one.
fn read_at(path: &Path) -> io::Result<Option<Journal>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Journal::from_bytes(&bytes).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Op;
    use crate::change::kept::{About, ContentLeft, ObjectBefore};
    use crate::tree::attributes::{Attributes, Moment};
    use crate::tree::confined::CallPath;
    use crate::tree::path::TreePath;
    use crate::tree::protection::Protection;

    fn journal() -> Journal {
        let steps = Steps {
            change: vec![Op::Move {
                at: TreePath::new(b"a/\xff").unwrap(),
                ino: 7,
                directory: false,
                marked: true,
                over: None,
            }],
            ..Steps::default()
        };
        let part = OverlayPart::new("/".into(), "/base".into());
        Journal { durable: true, parts: vec![(part, steps)], kept: None, privileged: Vec::new() }
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = JournalFile::of(directory.path());
        assert!(file.read().unwrap().is_none());
        file.write(&journal()).unwrap();
        assert!(file.read().unwrap().is_none());
        file.publish().unwrap();
        file.sync_name().unwrap();
        assert_eq!(file.read().unwrap(), Some(journal()));
        assert!(!file.is_done());
        file.mark_done(true).unwrap();
        assert!(file.read().unwrap().is_none() && file.is_done());
    }

    #[test]
    fn one_that_keeps_nothing_is_read() {
        let Journal { durable, parts, .. } = journal();
        let body = postcard::to_stdvec(&(durable, &parts)).unwrap();
        let mut whole = [&Journal::head(&body)[..], &body].concat();
        whole[..8].copy_from_slice(WITHOUT_KEPT);
        assert_eq!(Journal::from_bytes(&whole).unwrap(), journal());
    }

    #[test]
    fn one_that_says_nothing_of_privileges_is_read() {
        let Journal { durable, parts, kept, .. } = journal();
        let body = postcard::to_stdvec(&(durable, &parts, &kept)).unwrap();
        let mut whole = [&Journal::head(&body)[..], &body].concat();
        whole[..8].copy_from_slice(WITHOUT_PRIVILEGED);
        assert_eq!(Journal::from_bytes(&whole).unwrap(), journal());
    }

    #[test]
    fn one_with_checksums_gives_no_rights_back() {
        let Journal { durable, parts, .. } = journal();
        let directory = tempfile::tempdir().unwrap();
        let object = |path: &Path| {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
            CallPath::of(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap()).unwrap()
        };
        std::fs::write(directory.path().join("file"), "content").unwrap();
        let before = |path: &Path| {
            let attributes = Attributes::of(&object(path)).unwrap();
            Some(with_checksums::ObjectBefore { attributes, protection: Protection::default() })
        };
        let before = vec![before(directory.path()), before(&directory.path().join("file")), None];
        let part = with_checksums::PartKept { entries: Vec::new(), contents: vec![Some(7), None], before };
        let about =
            About { name: "run-1".parse().unwrap(), command: Vec::new(), when: Moment::now(), uid: 0, undoes: None };
        let kept = Some(with_checksums::Kept { about, bytes: 7, parts: vec![part] });
        let whole = |privileged: Vec<(u32, u32, Digest)>| {
            let body = postcard::to_stdvec(&(durable, &parts, &kept, privileged)).unwrap();
            let mut whole = [&Journal::head(&body)[..], &body].concat();
            whole[..8].copy_from_slice(WITH_CHECKSUMS);
            whole
        };
        let read = Journal::from_bytes(&whole(Vec::new())).unwrap().kept.unwrap();
        let content = |before: &Option<ObjectBefore>| before.as_ref().map(|before| before.content);
        let contents: Vec<_> = read.parts[0].before.iter().map(content).collect();
        assert_eq!(contents, [Some(ContentLeft::Any), Some(ContentLeft::Unknown), None]);
        assert_eq!(read.parts[0].contents, [None, None]);
        let refused = Journal::from_bytes(&whole(vec![(0, 0, [7; 32])])).unwrap_err();
        assert_eq!(refused.to_string(), OTHERS);
    }

    #[test]
    fn any_damage_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let file = JournalFile::of(directory.path());
        file.write(&journal()).unwrap();
        file.publish().unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(file.path(), &damaged).unwrap();
            assert!(file.read().is_err(), "byte {at}");
            std::fs::write(file.path(), &whole[..at]).unwrap();
            assert!(file.read().is_err(), "cut at {at}");
        }
    }

    #[test]
    fn one_of_another_version_is_not_called_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let file = JournalFile::of(directory.path());
        std::fs::write(file.path(), b"PandoTx\x02and so on").unwrap();
        assert_eq!(file.read().unwrap_err().to_string(), OTHERS);
        std::fs::write(file.path(), b"PandoTy\x05and so on").unwrap();
        assert_eq!(file.read().unwrap_err().to_string(), "the journal is damaged");
    }
}

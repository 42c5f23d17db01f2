//! Runs what speaks with registries, in a directory of its own, and watches what it takes.

use super::{Reference, RegistryError, RegistrySettings, credentials};
use crate::source::Progress;
use crate::source::package_tool::{Ending, Patience, run};
use crate::source::root::{Root, open_below};
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::filesystem::spare_room::{NoRoom, Refusal, SpareRoom};
use pando_reader::registry_client::{self, DIRECTORY, Order, USER};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, fchown, statat};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long nothing may come: of a manifest, or of blobs.
const PATIENCE: Duration = Duration::from_secs(180);

/// The same where nothing of what is done can be seen: an image is sent.
const LONG_PATIENCE: Duration = Duration::from_secs(3600);

/// In all: what comes a little at a time would go on for ever.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How long it may be silent is a matter of what can be seen of its work. Of what it would clean up nothing is kept.
const WHOLE_PATIENCE: Patience = Patience { silent: Duration::MAX, whole: LONGEST, grace: Duration::ZERO };

/// More files than any pull makes, and deeper directories.
const MOST_FILES: u32 = 20_000;
const DEEPEST: u32 = 8;

/// How much of what the client says is kept.
const LAST_LINES: usize = 4;
const LONGEST_REASON: usize = 600;

/// How often skopeo tries again what broke off.
const RETRIES: &str = "--retry-times=3";

const CREDENTIALS: &str = "auth.json";

/// A directory that is made ready for a client. It is root's as long as nothing has run in it: what is made there by a
/// path is made there.
pub(super) struct Preparation<'a> {
    pub(super) reference: &'a Reference,
    directory: TemporaryDirectory,
    options: Vec<String>,
    credentials: bool,
    progress: &'a dyn Progress,
}

/// A client, and its directory, which is its own: root makes nothing there any more, and opens what lies there from the
/// directory's descriptor, once all that ran there has ended.
pub(super) struct Client<'a> {
    pub(super) reference: &'a Reference,
    directory: TemporaryDirectory,
    root: Root,
    options: Vec<String>,
    credentials: bool,
    progress: &'a dyn Progress,
}

/// What a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes of one file.
    pub(super) file: u64,
    /// Bytes of all files that were not there before.
    pub(super) all: u64,
    /// Bytes that are expected, if that is known.
    pub(super) expected: Option<u64>,
    /// How long nothing may come.
    pub(super) patience: Duration,
}

impl Bounds {
    /// Those of one that fetches so many bytes, and others besides.
    pub(super) fn of_fetching(file: u64, bytes: u64, besides: u64) -> Self {
        Self { file, all: bytes.saturating_add(besides), expected: Some(bytes), patience: PATIENCE }
    }

    /// Those of one that sends, and may write so much for itself.
    pub(super) fn of_sending(besides: u64) -> Self {
        Self { file: besides, all: besides, expected: None, patience: LONG_PATIENCE }
    }
}

/// Where a client finds a layout in its directory, and leaves blobs.
pub(super) const LAYOUT: &str = "layout";

/// The directories that a client finds in its own, the inner ones first.
const DIRECTORIES: [&str; 3] = ["layout/blobs/sha256", "layout/blobs", LAYOUT];

impl<'a> Preparation<'a> {
    /// A new directory in `beside`, where only root can enter.
    pub(super) fn new(
        reference: &'a Reference,
        beside: &Path,
        (settings, credentials): (&RegistrySettings, Option<&[u8]>),
        progress: &'a dyn Progress,
    ) -> Result<Self, RegistryError> {
        if !rustix::process::geteuid().is_root() {
            return Err(RegistryError::NotRoot(reference.whole()));
        }
        if !settings.has_policy() {
            return Err(RegistryError::NoPolicy(reference.whole()));
        }
        let chosen = credentials.map(|content| credentials::for_image(content, reference, settings));
        let credentials = chosen.transpose()?.flatten();
        let failed = |source| here(reference, "making a directory for what is pulled", source);
        let mode = PermissionsExt::from_mode(0o700);
        let made = tempfile::Builder::new().prefix(".client-").permissions(mode).tempdir_in(beside).map_err(failed)?;
        let directory = TemporaryDirectory::of(made.keep());
        let passed = settings.passed(DIRECTORY);
        let passed = passed.map_err(|source| here(reference, "reading the settings of registries", source))?;
        let options = passed.options;
        let place = Self { reference, directory, options, credentials: credentials.is_some(), progress };
        for (name, content) in &passed.files {
            place.put(name, content).map_err(|source| here(reference, "copying the settings of registries", source))?;
        }
        if let Some(content) = credentials {
            place.put(CREDENTIALS, &content).map_err(|source| here(reference, "passing the credentials on", source))?;
        }
        std::fs::create_dir_all(place.directory.path().join(DIRECTORIES[0])).map_err(failed)?;
        Ok(place)
    }

    /// The path of the layout in it.
    pub(super) fn layout(&self) -> PathBuf {
        self.directory.path().join(LAYOUT)
    }

    /// Puts a file there that only the client can read.
    fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(self.directory.path()))?;
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o400).open(&path)?;
        file.write_all(content)?;
        Ok(fchown(&file, Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER)))?)
    }

    /// Gives the directory to a client.
    pub(super) fn begin(self) -> Result<Client<'a>, RegistryError> {
        let Self { reference, directory, options, credentials, progress } = self;
        let give = |name| -> io::Result<()> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::open(directory.path().join(name), flags, Mode::empty())?;
            Ok(fchown(&opened, Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER)))?)
        };
        let opened = Root::open(directory.path()).map_err(io::Error::from);
        let opened = opened.and_then(|root| {
            // What lies in it is given before it is.
            DIRECTORIES.into_iter().chain(["."]).try_for_each(give)?;
            Ok(root)
        });
        let root = opened.map_err(|source| here(reference, "giving its directory to what speaks", source))?;
        Ok(Client { reference, directory, root, options, credentials, progress })
    }
}

impl Client<'_> {
    /// Its directory, from which nothing leads out.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// Whoever waits for what it does.
    pub(super) fn progress(&self) -> &dyn Progress {
        self.progress
    }

    /// Has it write the manifest of an image, as the registry has it, to the file `output`.
    pub(super) fn manifest(&self, image: &str, output: &str, most: u64) -> Result<(), RegistryError> {
        self.inspect(&["--raw"], image, output, most)
    }

    /// Has it write the configuration of an image, as the registry has it, to the file `output`.
    pub(super) fn configuration(&self, image: &str, output: &str, most: u64) -> Result<(), RegistryError> {
        self.inspect(&["--config", "--raw"], image, output, most)
    }

    fn inspect(&self, what: &[&str], image: &str, output: &str, most: u64) -> Result<(), RegistryError> {
        let mut arguments = self.options.clone();
        arguments.push("inspect".to_owned());
        arguments.extend(what.iter().chain(&[RETRIES]).map(|word| (*word).to_owned()));
        arguments.extend(self.authfile());
        arguments.push(format!("docker://{image}"));
        let order = Order { arguments, largest_file: most, output: Some(output.to_owned()) };
        self.speak(&order, Bounds { file: most, all: most.saturating_mul(2), expected: None, patience: PATIENCE })
    }

    /// Has it copy an image into the layout in its directory.
    pub(super) fn copy(&self, image: &str, bounds: Bounds) -> Result<(), RegistryError> {
        let mut arguments = self.options.clone();
        let accepting = "--dest-oci-accept-uncompressed-layers";
        arguments.extend(["--tmpdir", DIRECTORY, "copy", RETRIES, "--remove-signatures", accepting].map(str::to_owned));
        arguments.extend(self.authfile());
        arguments.extend([format!("docker://{image}"), format!("oci:{DIRECTORY}/layout:pulled")]);
        self.speak(&Order { arguments, largest_file: bounds.file, output: None }, bounds)
    }

    /// Has it send the one image of the layout in its directory. How far that is cannot be seen from here.
    pub(super) fn send(&self, image: &str, bounds: Bounds) -> Result<(), RegistryError> {
        let mut arguments = self.options.clone();
        arguments.extend(["--tmpdir", DIRECTORY, "copy", RETRIES].map(str::to_owned));
        arguments.extend(self.authfile());
        arguments.extend([format!("oci:{DIRECTORY}/layout"), format!("docker://{image}")]);
        self.speak(&Order { arguments, largest_file: bounds.file, output: None }, bounds)
    }

    fn authfile(&self) -> Option<String> {
        self.credentials.then(|| format!("--authfile={DIRECTORY}/{CREDENTIALS}"))
    }

    fn speak(&self, order: &Order, bounds: Bounds) -> Result<(), RegistryError> {
        let starting = |source| here(self.reference, "starting what speaks with registries", source);
        let command = registry_client::command(order, self.directory.path()).map_err(starting)?;
        let watch = Watch::new(self, bounds);
        let mut lines = VecDeque::new();
        let mut keep = |line: &str| {
            if lines.len() == LAST_LINES {
                lines.pop_front();
            }
            lines.push_back(line.to_owned());
        };
        let ended = run(command, WHOLE_PATIENCE, &|| watch.is_over(), &mut keep).map_err(starting)?;
        let reference = || self.reference.whole();
        let silent = |patience: Duration| RegistryError::Silent { reference: reference(), seconds: patience.as_secs() };
        match watch.verdict.into_inner() {
            Some(Verdict::Stopped) => return Err(RegistryError::Cancelled(crate::source::Cancelled)),
            Some(Verdict::Endless) => return Err(RegistryError::Endless(reference())),
            Some(Verdict::Silent(patience)) => return Err(silent(patience)),
            Some(Verdict::NoRoom(room)) => return Err(RegistryError::NoRoom { reference: reference(), room }),
            None => {}
        }
        match ended {
            Ending::Exited(status) if status.success() => Ok(()),
            Ending::Exited(status) => Err(refusal(reference(), status, lines.make_contiguous())),
            Ending::Silent | Ending::Cancelled => Err(silent(PATIENCE)),
            Ending::Late => Err(RegistryError::Late { reference: reference(), hours: LONGEST.as_secs() / 3600 }),
        }
    }
}

pub(super) fn here(reference: &Reference, action: &'static str, source: io::Error) -> RegistryError {
    RegistryError::Here { reference: reference.whole(), action, source }
}

/// Why a client is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Stopped,
    Endless,
    Silent(Duration),
    NoRoom(NoRoom),
}

/// Looks now and then at what a client has taken.
struct Watch<'a> {
    root: BorrowedFd<'a>,
    bounds: Bounds,
    /// Whether there is more room than is kept free: it may not become less.
    has_room: bool,
    progress: &'a dyn Progress,
    before: u64,
    /// How much there was at the last look, and since when.
    taken: Cell<(u64, Instant)>,
    verdict: RefCell<Option<Verdict>>,
}

impl<'a> Watch<'a> {
    fn new(client: &'a Client<'_>, bounds: Bounds) -> Self {
        let root = client.root.as_fd();
        let before = taken(root).unwrap_or(u64::MAX);
        let taken = Cell::new((before, Instant::now()));
        let (progress, has_room) = (client.progress, no_room(root).is_none());
        Self { root, bounds, has_room, progress, before, taken, verdict: RefCell::default() }
    }

    fn is_over(&self) -> bool {
        let verdict = self.judge();
        *self.verdict.borrow_mut() = verdict;
        verdict.is_some()
    }

    fn judge(&self) -> Option<Verdict> {
        let Some(now) = taken(self.root) else { return Some(Verdict::Endless) };
        let new = now.saturating_sub(self.before);
        let (last, since) = self.taken.get();
        if now != last {
            self.taken.set((now, Instant::now()));
        }
        if let Some(expected) = self.bounds.expected {
            self.progress.advance(new.min(expected), Some(expected));
        }
        if self.progress.cancelled() {
            return Some(Verdict::Stopped);
        }
        if new > self.bounds.all {
            return Some(Verdict::Endless);
        }
        // A file that it has open and unlinked is not among those that were counted.
        if let Some(room) = no_room(self.root).filter(|_| self.has_room) {
            return Some(Verdict::NoRoom(room));
        }
        let patience = self.bounds.patience;
        (now == last && since.elapsed() > patience).then_some(Verdict::Silent(patience))
    }
}

/// What there is where less is free than is kept free for all else.
fn no_room(directory: BorrowedFd<'_>) -> Option<NoRoom> {
    let room = SpareRoom::at(directory).map_err(Refusal::Look).and_then(|mut room| room.ask(1));
    match room {
        Err(Refusal::NoRoom(room)) => Some(room),
        // What does not say how much there is has no bound here.
        Err(Refusal::Look(_)) | Ok(()) => None,
    }
}

/// The bytes of all files in a directory. None: there are too many, or too deep ones.
fn taken(directory: BorrowedFd<'_>) -> Option<u64> {
    let mut files = 0;
    below(directory, 0, &mut files)
}

fn below(directory: BorrowedFd<'_>, depth: u32, files: &mut u32) -> Option<u64> {
    let Ok(entries) = list(directory) else { return Some(0) };
    let mut bytes = 0_u64;
    for name in entries {
        *files += 1;
        if *files > MOST_FILES || depth > DEEPEST {
            return None;
        }
        // What has gone meanwhile takes nothing.
        let Ok(stat) = statat(directory, &*name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let Ok(inner) = open_below(directory, Path::new(&name)) else { continue };
                bytes = bytes.saturating_add(below(inner.as_fd(), depth + 1, files)?);
            }
            _ => bytes = bytes.saturating_add(u64::try_from(stat.st_size).unwrap_or(0)),
        }
    }
    Some(bytes)
}

/// The names in a directory, no more than a pull makes.
fn list(directory: BorrowedFd<'_>) -> io::Result<Vec<std::ffi::OsString>> {
    use std::os::unix::ffi::OsStrExt;
    let mut names = Vec::new();
    // A handle of a directory cannot be read itself.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for entry in Dir::new(rustix::fs::openat(directory, ".", flags, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(std::ffi::OsStr::from_bytes(name).to_owned());
        }
        if names.len() > MOST_FILES as usize {
            break;
        }
    }
    Ok(names)
}

/// What a client's end means.
fn refusal(reference: String, status: ExitStatus, lines: &[String]) -> RegistryError {
    if status.code() == Some(registry_client::NO_PROGRAM) {
        return RegistryError::NoTool(reference);
    }
    let text = lines.join("\n");
    if text.contains("file too large") || text.contains("file size limit exceeded") {
        return RegistryError::Endless(reference);
    }
    let reason = match lines.iter().rev().find_map(|line| message(line)) {
        Some(message) => message,
        None if status.code() == Some(registry_client::POWERFUL) => format!("skopeo could not be confined: {text}"),
        None => format!("skopeo ended with {status}: {text}"),
    };
    let advice = advice(&reason);
    let reason: String = reason.chars().take(LONGEST_REASON).collect();
    RegistryError::Refused { reference, reason, advice }
}

/// What a line of skopeo's log says: `time="…" level=fatal msg="…"`.
fn message(line: &str) -> Option<String> {
    let (_, quoted) = line.split_once("level=fatal msg=")?;
    let text = match serde_json::from_str::<String>(quoted) {
        Ok(text) => text,
        // A word without blanks is not quoted, and Go quotes what JSON does not.
        Err(_) => quoted.trim_matches('"').replace("\\\"", "\""),
    };
    // Which image it was is said already.
    let plain = text.strip_prefix("Error parsing image name ").and_then(|rest| rest.split_once("\": "));
    Some(plain.map_or(&*text, |(_, rest)| rest).trim_end().to_owned())
}

/// What to do about it.
fn advice(reason: &str) -> &'static str {
    const ADVICE: [(&str, &str); 12] = [
        ("unauthorized", "; if you may have it, log in with `skopeo login REGISTRY`, or give --authfile"),
        ("authentication required", "; if you may have it, log in with `skopeo login REGISTRY`, or give --authfile"),
        ("denied", "; if you may have it, log in with `skopeo login REGISTRY`, or give --authfile"),
        ("manifest unknown", "; the registry has no such tag: look for its name"),
        ("name unknown", "; the registry has no image of that name"),
        ("rejected by policy", "; /etc/containers/policy.json says so: containers-policy.json(5)"),
        ("Running image", "; /etc/containers/policy.json says so: containers-policy.json(5)"),
        (
            "sigstore disabled",
            "; this skopeo was built without sigstore, as Debian's is: have policy.json ask for signedBy, or install another skopeo",
        ),
        (
            "Source image rejected",
            "; policy.json (containers-policy.json(5)) accepts it with a signature of one of its keys alone, and registries.d (containers-registries.d(5)) says where signatures are",
        ),
        (
            "HTTP response to HTTPS client",
            "; it speaks no TLS: registries.conf(5) says how that is allowed (insecure = true)",
        ),
        ("x509", "; its certificate is not believed here: /etc/containers/certs.d has those for single registries"),
        ("dial tcp", "; check the registry's name, the network, and registries.conf(5) for mirrors"),
    ];
    ADVICE.iter().find(|(word, _)| reason.contains(word)).map_or("", |(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_skopeo_says_last_is_the_reason() {
        let line = r#"time="2026-11-28T14:00:00Z" level=fatal msg="Error parsing \"x\": manifest unknown""#;
        assert_eq!(message(line).unwrap(), r#"Error parsing "x": manifest unknown"#);
        let line = r#"level=fatal msg="Error parsing image name \"docker://a/b:1\": reading manifest 1: EOF""#;
        assert_eq!(message(line).unwrap(), "reading manifest 1: EOF");
        assert_eq!(message("time=1 level=fatal msg=EOF").unwrap(), "EOF");
        assert_eq!(message("Copying blob sha256:00"), None);
        assert!(advice("manifest unknown: x").contains("no such tag"));
    }

    #[test]
    fn all_that_lies_below_is_counted_and_nothing_is_followed() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("a/b")).unwrap();
        std::fs::write(place.path().join("a/b/c"), [0; 100]).unwrap();
        std::os::unix::fs::symlink("/usr", place.path().join("a/out")).unwrap();
        let root = Root::open(place.path()).unwrap();
        assert_eq!(taken(root.as_fd()), Some(100 + 4));
        let deep: std::path::PathBuf = std::iter::repeat_n("d", 20).collect();
        std::fs::create_dir_all(place.path().join(deep)).unwrap();
        assert_eq!(taken(root.as_fd()), None);
    }
}

//! What a guest sees of the host's files: the secrets less what is exposed, resolved for this host.
//!
//! The patterns say `/home`; on this host that may be a symbolic link to `/data/home`, or homes may lie elsewhere
//! altogether. So each pattern also counts for where it really leads, and each account's home is looked up.

use super::copy::{Chooser, Verdict};
use super::private::is_private;
use super::secrets::{IN_A_HOME, Treatment, secrets};
use pando_kernel::filesystem::swap_files::swap_files;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Ids of people begin here; 65534 is `nobody`.
const FIRST_PERSON: u32 = 1_000;
const NOBODY: u32 = 65_534;

/// What a system has at its top. Everything else there belongs to the machine's users: data, backups, checkouts.
const SYSTEM: [&str; 27] = [
    "bin",
    "boot",
    "dev",
    "efi",
    "etc",
    "gnu",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "lost+found",
    "media",
    "mnt",
    "nix",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "snap",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
    "vendor",
];

/// Homes below these are of services: hidden only in their keys, since the service's programs may lie there too.
const OF_SERVICES: [&str; 6] = ["/opt", "/srv", "/usr", "/var", "/etc", "/nonexistent"];

/// Never shown, whatever is exposed: the kernel's own trees, of which a guest gets its own.
const KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// What is hidden of one host, from one guest.
#[derive(Clone, Debug, Default)]
pub struct HostFilter {
    /// By the first name of their path, since each path of the host is looked up here.
    rules: HashMap<OsString, Vec<Rule>>,
    /// Relative to the root, as they were given and where they really lead.
    exposed: Vec<PathBuf>,
    never: HashSet<PathBuf>,
    /// The tree's root: `/`, but in tests.
    root: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    names: Vec<OsString>,
    treatment: Treatment,
}

/// A path that exists on the host and is hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// The path on the host, absolute.
    pub path: PathBuf,
    /// How the path appears in the guest.
    pub treatment: Treatment,
}

impl HostFilter {
    /// The host filter over the tree at `root` (`/`, but in tests) for a guest to which `expose` is shown: paths as
    /// they were given, and where they lead. No link is followed here, which others may have put there by now.
    /// `leave_out` is never shown.
    pub fn over(root: &Path, expose: &[PathBuf], leave_out: &[PathBuf]) -> Self {
        let mut host_filter = Self { root: root.to_owned(), ..Self::default() };
        for secret in secrets() {
            host_filter.hide(Path::new(secret.pattern), secret.treatment);
        }
        // As large as memory, with memory in them.
        for path in swap_files().unwrap_or_default() {
            host_filter.hide(&path, Treatment::Absent);
        }
        host_filter.hide_what_is_not_the_systems();
        let accounts = std::fs::read(root.join("etc/passwd")).unwrap_or_default();
        for (home, person) in homes(&accounts) {
            // Below a hidden directory it is hidden already, and `--expose /home` shall show it.
            if person && home.strip_prefix("/").is_ok_and(|home| host_filter.rule_over(home).is_none()) {
                host_filter.hide(&home, Treatment::Hollow);
            }
            for name in IN_A_HOME {
                host_filter.hide(&home.join(name), Treatment::Absent);
            }
        }
        for path in expose {
            host_filter.exposed.push(named(path));
        }
        for path in leave_out.iter().map(PathBuf::as_path).chain(KERNEL.map(Path::new)) {
            host_filter.never.extend(host_filter.readings(path));
        }
        host_filter
    }

    fn hide_what_is_not_the_systems(&mut self) {
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // A link leads to what is hidden where it really lies.
            let kind = entry.file_type().ok().filter(|kind| !kind.is_symlink());
            if let Some(kind) = kind.filter(|_| !SYSTEM.iter().any(|known| name == *known)) {
                let treatment = if kind.is_dir() { Treatment::Hollow } else { Treatment::Absent };
                self.hide(Path::new(&name), treatment);
            }
        }
    }

    /// The tree's root.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether a path is hidden, for whatever reason but its mode.
    pub(super) fn hides(&self, path: &Path) -> bool {
        self.treatment(path).is_some()
    }

    /// Whether it is exposed, or lies in what is, or on the way to it.
    pub(super) fn exposes(&self, path: &Path) -> bool {
        self.exposed.iter().any(|exposed| path.starts_with(exposed) || exposed.starts_with(path))
    }

    /// What exists of all this, for a mask over the live root. Parents come before what is in them. Exposed paths are
    /// not in it; one below a hidden path has to be mounted on top of its mask.
    pub fn hidden(&self) -> Vec<Hidden> {
        let mut found = Vec::new();
        for rule in self.rules.values().flatten() {
            expand(&self.root, Path::new(""), &rule.names, &mut |path| {
                if let Some(treatment) = self.treatment(path) {
                    found.push(Hidden { path: Path::new("/").join(path), treatment });
                }
            });
        }
        let never = self.never.iter().filter(|path| self.root.join(path).symlink_metadata().is_ok());
        found.extend(never.map(|path| Hidden { path: Path::new("/").join(path), treatment: Treatment::Hollow }));
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found.dedup_by(|a, b| a.path == b.path);
        found
    }

    /// How the path itself is hidden, if it is.
    fn treatment(&self, path: &Path) -> Option<Treatment> {
        if self.never.contains(path) {
            return Some(Treatment::Hollow);
        }
        let (depth, treatment) = self.rule_over(path)?;
        let shown =
            self.exposed.iter().filter(|exposed| path.starts_with(exposed)).map(|exposed| exposed.components().count());
        if shown.max().is_some_and(|shown| shown >= depth) {
            return None;
        }
        match treatment {
            Treatment::Skeleton => Some(Treatment::Skeleton),
            _ if path.components().count() > depth => Some(Treatment::Absent),
            treatment => Some(treatment),
        }
    }

    /// The deepest rule at or above `path`, and how deep that is. Of two at one depth the first in the list counts.
    fn rule_over(&self, path: &Path) -> Option<(usize, Treatment)> {
        let mut names = path.components().map(Component::as_os_str);
        let rules = self.rules.get(names.next()?).into_iter().chain(self.rules.get(OsStr::new("*"))).flatten();
        let mut best: Option<(usize, Treatment)> = None;
        for rule in rules {
            let deeper = best.is_none_or(|(depth, _)| rule.names.len() > depth);
            if deeper && rule.covers(path) {
                best = Some((rule.names.len(), rule.treatment));
            }
        }
        best
    }

    /// Adds a rule for a pattern, as it is written and where it really leads.
    fn hide(&mut self, pattern: &Path, treatment: Treatment) {
        for reading in self.readings(pattern) {
            let names: Vec<OsString> = reading.iter().map(OsStr::to_owned).collect();
            let Some(first) = names.first() else { continue };
            let key = if is_pattern(first) { OsString::from("*") } else { first.clone() };
            let rules = self.rules.entry(key).or_default();
            if !rules.iter().any(|rule| rule.names == names) {
                rules.push(Rule { names, treatment });
            }
        }
    }

    /// A path relative to the root: as it is written, and with the symbolic links of its part without stars resolved.
    fn readings(&self, path: &Path) -> Vec<PathBuf> {
        let written = named(path);
        let plain: PathBuf = written.iter().take_while(|name| !is_pattern(name)).collect();
        let rest = written.strip_prefix(&plain).map(Path::to_owned).unwrap_or_default();
        // The part that exists, and what hangs on it.
        let real = plain.ancestors().find_map(|place| {
            let real = self.root.join(place).canonicalize().ok()?;
            let inside = real.strip_prefix(&self.root).ok()?.to_owned();
            Some(inside.join(plain.strip_prefix(place).ok()?).join(&rest))
        });
        let mut readings = vec![written];
        readings.extend(real.filter(|real| *real != readings[0] && real.components().next().is_some()));
        readings
    }
}

impl Chooser for HostFilter {
    fn verdict(&self, path: &Path) -> Verdict {
        if self.never.contains(path) {
            return Verdict::Hollow;
        }
        let Some(treatment) = self.treatment(path) else { return self.verdict_by_mode(path) };
        // On the way to something exposed: directories are made, and what is in them is asked about one by one.
        if self.exposed.iter().any(|exposed| exposed.starts_with(path) && exposed != path) {
            return Verdict::Skeleton;
        }
        match treatment {
            Treatment::Hollow => Verdict::Hollow,
            Treatment::Skeleton => Verdict::Skeleton,
            Treatment::Absent | Treatment::Locked => Verdict::Absent,
        }
    }

    fn insists(&self, path: &Path) -> bool {
        !self.never.contains(path)
            && self.exposed.iter().any(|exposed| exposed.starts_with(path) || path.starts_with(exposed))
    }
}

impl HostFilter {
    /// What others may not read is left out of a copy as well.
    fn verdict_by_mode(&self, path: &Path) -> Verdict {
        let place = self.root.join(path);
        match is_private(&place) && !self.exposes(path) {
            false => Verdict::Copy,
            true if place.is_dir() => Verdict::Hollow,
            true => Verdict::Absent,
        }
    }
}

impl Rule {
    /// Whether `path` is what the rule names, or lies in it.
    fn covers(&self, path: &Path) -> bool {
        let mut names = path.iter();
        self.names.iter().all(|pattern| names.next().is_some_and(|name| fits(pattern, name)))
    }
}

/// The names of a path, relative to the root.
fn named(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

fn is_pattern(name: &OsStr) -> bool {
    name.as_bytes().contains(&b'*')
}

/// Whether `name` fits `pattern`, in which each `*` stands for any bytes.
fn fits(pattern: &OsStr, name: &OsStr) -> bool {
    let mut parts = pattern.as_bytes().split(|byte| *byte == b'*');
    let Some(mut rest) = parts.next().and_then(|first| name.as_bytes().strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let at = (0..=rest.len()).find(|at| rest[*at..].starts_with(part));
        let Some(at) = at else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Calls `found` with each existing path that `names` fits; `at` is where the walk stands, relative to `root`.
fn expand(root: &Path, at: &Path, names: &[OsString], found: &mut dyn FnMut(&Path)) {
    let Some((name, rest)) = names.split_first() else { return found(at) };
    if !is_pattern(name) {
        let path = at.join(name);
        if root.join(&path).symlink_metadata().is_ok() {
            expand(root, &path, rest, found);
        }
        return;
    }
    let Ok(entries) = std::fs::read_dir(root.join(at)) else { return };
    for entry in entries.flatten().filter(|entry| fits(name, &entry.file_name())) {
        expand(root, &at.join(entry.file_name()), rest, found);
    }
}

/// Each account's home, and whether a person lives there.
pub(super) fn homes(accounts: &[u8]) -> Vec<(PathBuf, bool)> {
    let mut homes = Vec::new();
    for line in accounts.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let [_, _, uid, _, _, home, shell] = fields[..] else { continue };
        let uid = std::str::from_utf8(uid).ok().and_then(|uid| uid.parse::<u32>().ok());
        let home = Path::new(OsStr::from_bytes(home));
        if !home.is_absolute() || home.components().count() < 2 {
            continue;
        }
        let logs_in = !shell.ends_with(b"/nologin") && !shell.ends_with(b"/false");
        let person = uid.is_some_and(|uid| uid >= FIRST_PERSON && uid != NOBODY) && logs_in;
        homes.push((home.to_owned(), person && !OF_SERVICES.iter().any(|place| home.starts_with(place))));
    }
    homes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn host() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for directory in
            ["etc/ssh", "root/.ssh", "data/home/ann", "export/bob", "var/log/nginx", "opt/app", "proc", "usr"]
        {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        symlink("data/home", root.join("home")).unwrap();
        for file in
            ["etc/shadow", "etc/shadow-", "etc/ssh/x_key", "etc/ssh/x_key.pub", "var/log/nginx/a", "opt/app/.netrc"]
        {
            std::fs::write(root.join(file), "x").unwrap();
        }
        let accounts = "root:x:0:0::/root:/bin/sh\nann:x:1000:1::/home/ann:/bin/sh\nbob:x:1001:1::/export/bob:/bin/sh\n\
                        app:x:1002:1::/opt/app:/bin/sh\nnobody:x:65534:1::/usr:/usr/sbin/nologin\n";
        std::fs::write(root.join("etc/passwd"), accounts).unwrap();
        place
    }

    fn host_filter(place: &tempfile::TempDir, expose: &[&str]) -> HostFilter {
        let root = place.path().canonicalize().unwrap();
        let mut exposed: Vec<_> = expose.iter().map(PathBuf::from).collect();
        // Where they lead, as whoever knows who may put links there has found out.
        let homes = |path: &&str| path.starts_with("/home").then(|| PathBuf::from(format!("/data{path}")));
        exposed.extend(expose.iter().filter_map(homes));
        HostFilter::over(&root, &exposed, &[PathBuf::from("/srv/pando")])
    }

    fn verdict(host_filter: &HostFilter, path: &str) -> Verdict {
        host_filter.verdict(Path::new(path))
    }

    #[test]
    fn secrets_are_hidden_and_the_rest_is_not() {
        let place = host();
        let host_filter = host_filter(&place, &[]);
        for path in ["root", "proc", "data", "data/home", "export", "opt", "srv", "srv/pando"] {
            assert_eq!(verdict(&host_filter, path), Verdict::Hollow, "{path}");
        }
        for path in ["etc/shadow", "etc/shadow-", "etc/ssh/x_key", "opt/app/.netrc"] {
            assert_eq!(verdict(&host_filter, path), Verdict::Absent, "{path}");
        }
        assert_eq!(verdict(&host_filter, "var/log/nginx"), Verdict::Skeleton);
        for path in ["etc/ssh/x_key.pub", "etc/sudoers", "usr", "etc/passwd"] {
            assert_eq!(verdict(&host_filter, path), Verdict::Copy, "{path}");
        }
    }

    #[test]
    fn what_is_exposed_is_shown_but_not_the_keys_in_it() {
        let place = host();
        let host_filter = host_filter(&place, &["/root", "/home/ann/work", "/proc", "/srv/pando"]);
        assert_eq!(verdict(&host_filter, "root"), Verdict::Copy);
        assert_eq!(verdict(&host_filter, "root/x"), Verdict::Copy);
        assert_eq!(verdict(&host_filter, "root/.ssh"), Verdict::Absent);
        assert_eq!(verdict(&host_filter, "data/home"), Verdict::Skeleton, "on the way");
        assert_eq!(verdict(&host_filter, "data/home/ann"), Verdict::Skeleton, "on the way");
        assert_eq!(verdict(&host_filter, "data/home/ann/work/a"), Verdict::Copy);
        assert_eq!(verdict(&host_filter, "data/home/ann/other"), Verdict::Absent);
        assert_eq!(verdict(&host_filter, "proc"), Verdict::Hollow, "never");
        assert_eq!(verdict(&host_filter, "srv/pando"), Verdict::Hollow, "never");
        let keys = self::host_filter(&place, &["/root/.ssh"]);
        assert_eq!(verdict(&keys, "root"), Verdict::Skeleton);
        assert_eq!(verdict(&keys, "root/.ssh/id"), Verdict::Copy);
        assert_eq!(verdict(&keys, "root/.bashrc"), Verdict::Absent);
    }

    #[test]
    fn exposing_all_homes_exposes_each() {
        let place = host();
        let host_filter = host_filter(&place, &["/home"]);
        assert_eq!(verdict(&host_filter, "home/ann"), Verdict::Copy);
        assert_eq!(verdict(&host_filter, "data/home/ann/x"), Verdict::Copy);
        assert_eq!(verdict(&host_filter, "data/home/ann/.ssh"), Verdict::Absent);
    }

    #[test]
    fn the_mask_names_what_exists_and_only_that() {
        let place = host();
        let hidden = host_filter(&place, &["/root"]).hidden();
        let at =
            |path: &str| hidden.iter().find(|hidden| hidden.path == Path::new(path)).map(|hidden| hidden.treatment);
        assert_eq!(at("/etc/shadow"), Some(Treatment::Locked));
        assert_eq!(at("/etc/shadow-"), Some(Treatment::Absent));
        assert_eq!(at("/data/home"), Some(Treatment::Hollow));
        assert_eq!(at("/root/.ssh"), Some(Treatment::Absent));
        assert_eq!(at("/proc"), Some(Treatment::Hollow));
        assert_eq!(at("/root"), None, "exposed");
        assert_eq!(at("/etc/gshadow"), None, "does not exist");
    }

    #[test]
    fn stars_stand_for_any_bytes() {
        let fits = |pattern: &str, name: &str| super::fits(OsStr::new(pattern), OsStr::new(name));
        assert!(fits("*_key", "ssh_host_key") && fits("a*", "a") && fits("*", "") && fits("*b*", "abc"));
        assert!(!fits("*_key", "x_key.pub") && !fits("a*a", "a") && !fits("a", "ab"));
    }
}

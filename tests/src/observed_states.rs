//! What observers see of a tree that commits change one after another: whether each has seen one state after another,
//! and never a part of one beside a part of another.
//!
//! Each object of the tree says by its content, or by a name in it, which commit has changed it last. It is known ahead
//! which commits change which objects. So whoever has seen an object as commit 7 left it has seen the state after
//! commit 7 or a later one, up to the next that changes the object. After that he must not see any object as it was
//! before.

use crate::dice::Dice;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directories, and files in each.
const DIRECTORIES: u64 = 6;
const FILES: u64 = 5;

/// Lines of the file in each directory that is long, and always written in place.
const LONG: usize = 3000;

/// What was opened longer ago than this may have been opened before the gate knew of it, and says nothing.
const FRESH: Duration = Duration::from_micros(300);

/// How far ahead an observer looks for names that are not there yet.
const AHEAD: u64 = 3;

/// A number that nothing has after it.
const NEVER: u64 = u64::MAX;

/// Something that tells which commit has changed it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    /// A file, by its content.
    File(u64, u64),
    /// A directory, by the one name in it that begins with `v.`.
    Names(u64),
    /// A tree that is made anew, by its name.
    New,
    /// A directory that is moved, by its name.
    Moved,
}

/// What each commit changes. Commit 0 makes all of it.
#[derive(Debug)]
pub(crate) struct Course(Vec<BTreeSet<Object>>);

impl Course {
    /// So many commits, at random.
    pub(crate) fn of(commits: u64, dice: &mut Dice) -> Self {
        let files = || (0..DIRECTORIES).flat_map(|at| (0..FILES).map(move |name| Object::File(at, name)));
        let others = (0..DIRECTORIES).map(Object::Names).chain([Object::New, Object::Moved]);
        let all: Vec<Object> = files().chain(others).collect();
        let mut course = vec![all.iter().copied().collect()];
        for _ in 0..commits {
            let mut changed = BTreeSet::new();
            while changed.len() < 12 {
                changed.extend(dice.pick(&all).copied());
            }
            course.push(changed);
        }
        Self(course)
    }

    /// The shell's script of a commit.
    pub(crate) fn script(&self, commit: u64, dice: &mut Dice) -> String {
        let mut script = String::from("set -e\n");
        for object in &self.0[commit as usize] {
            script += &match object {
                Object::File(at, 0) => format!("mkdir -p d{at}; yes {commit} | head -n {LONG} >d{at}/f0\n"),
                Object::File(at, name) if dice.throw(2) == 0 => {
                    format!("mkdir -p d{at}; echo {commit} >d{at}/f{name}\n")
                }
                Object::File(at, name) => {
                    format!("mkdir -p d{at}; echo {commit} >d{at}/.new; mv d{at}/.new d{at}/f{name}\n")
                }
                Object::Names(at) => format!("mv d{at}/v.* d{at}/v.{commit} 2>/dev/null || echo >d{at}/v.{commit}\n"),
                Object::New => format!("rm -rf n.*; mkdir -p n.{commit}/in; echo >n.{commit}/in/file\n"),
                Object::Moved => format!(
                    "mv m.* m.{commit} 2>/dev/null || {{ mkdir -p m.{commit}/in; echo >m.{commit}/in/file; }}\n"
                ),
            };
        }
        script
    }

    /// The commit that changed an object next after it was as `commit` left it; nothing where that did not change it.
    fn next(&self, object: Object, commit: u64) -> Option<u64> {
        self.0.get(commit as usize)?.contains(&object).then_some(())?;
        let after = self.0.iter().enumerate().skip(commit as usize + 1);
        Some(
            after.into_iter().find(|(_, changed)| changed.contains(&object)).map_or(NEVER, |(number, _)| number as u64),
        )
    }
}

/// The first argument of this program where it observes, by itself.
pub(crate) const WORD: &str = "--observe";

/// Observes until its input ends: `TREE COMMITS SEED`, of the course that the same seed gives. Says how often it has
/// seen something, and then what is mixed, a line each.
pub(crate) fn obey(words: &[String]) -> std::io::Result<()> {
    let wrong = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let [tree, commits, seed] = words else { return Err(wrong()) };
    let (commits, seed) = (commits.parse().map_err(|_| wrong())?, seed.parse().map_err(|_| wrong())?);
    let course = Course::of(commits, &mut Dice::new(seed));
    let over = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut observer = Observer::new(&course, Path::new(tree), seed).with_names();
    while !over.is_finished() {
        observer.look();
    }
    println!("{}", observer.seen);
    observer.mixed.iter().for_each(|one| println!("{one}"));
    Ok(())
}

/// Somebody who opens, reads and lists, one after another, as fast as he can.
#[derive(Debug)]
pub(crate) struct Observer<'a> {
    course: &'a Course,
    tree: PathBuf,
    dice: Dice,
    /// Whether he looks at names too, without opening what they lead to.
    names: bool,
    /// The latest commit of which he has seen something.
    latest: u64,
    /// The latest of which he has seen the tree that is made anew.
    latest_new: u64,
    /// How often he has seen something that tells.
    pub(crate) seen: u64,
    /// What cannot be of one state after another.
    pub(crate) mixed: Vec<String>,
}

impl<'a> Observer<'a> {
    pub(crate) fn new(course: &'a Course, tree: &Path, seed: u64) -> Self {
        let (dice, tree) = (Dice::new(seed), tree.to_owned());
        Self { course, tree, dice, names: false, latest: 0, latest_new: 0, seen: 0, mixed: Vec::new() }
    }

    /// One who looks at names too.
    pub(crate) fn with_names(self) -> Self {
        Self { names: true, ..self }
    }

    /// Looks at something.
    pub(crate) fn look(&mut self) {
        match self.dice.throw(if self.names { 10 } else { 8 }) {
            0..=3 => {
                let (at, name) = (self.dice.throw(DIRECTORIES), self.dice.throw(FILES));
                self.read(Object::File(at, name), &format!("d{at}/f{name}"));
            }
            4 => {
                let at = self.dice.throw(DIRECTORIES);
                self.list(&format!("d{at}"), &[(Object::Names(at), "v.")]);
            }
            5 => self.list(".", &[(Object::New, "n."), (Object::Moved, "m.")]),
            6 => self.look_ahead(Object::New, "n"),
            7 => self.look_ahead(Object::Moved, "m"),
            _ => self.look_for_what_goes(),
        }
    }

    /// Whether the tree that was made anew is where it was seen.
    fn look_for_what_goes(&mut self) {
        let seen = self.latest_new;
        let there = self.tree.join(format!("n.{seen}/in/file")).exists();
        match self.course.next(Object::New, seen) {
            _ if there => self.saw(Object::New, seen),
            None | Some(NEVER) => self.mixed.push(format!("n.{seen} has gone, and no commit removes it")),
            Some(next) => {
                self.latest = self.latest.max(next);
                self.latest_new = next;
                self.seen += 1;
            }
        }
    }

    fn read(&mut self, object: Object, name: &str) {
        let opened = match File::open(self.tree.join(name)) {
            Err(error) => return self.mixed.push(format!("{name} cannot be opened: {error}")),
            Ok(opened) => opened,
        };
        let (since, mut text) = (Instant::now(), String::new());
        let read = (&opened).read_to_string(&mut text);
        if since.elapsed() > FRESH {
            return;
        }
        let first = text.lines().next().and_then(|line| line.parse().ok());
        let lines = if matches!(object, Object::File(_, 0)) { LONG } else { 1 };
        match first {
            Some(commit) if text.lines().all(|line| line.parse() == Ok(commit)) && text.lines().count() == lines => {
                self.saw(object, commit);
            }
            _ => self
                .mixed
                .push(format!("{name} has the content of no commit: {read:?}, {} lines", text.lines().count())),
        }
    }

    fn list(&mut self, name: &str, told: &[(Object, &str)]) {
        let Ok(entries) = std::fs::read_dir(self.tree.join(name)) else {
            return self.mixed.push(format!("{name} cannot be listed"));
        };
        let since = Instant::now();
        let names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        if since.elapsed() > FRESH {
            return;
        }
        for (object, start) in told {
            let found: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix(start)?.parse().ok()).collect();
            match found[..] {
                [commit] => self.saw(*object, commit),
                _ => self.mixed.push(format!("{name} has {found:?} of {object:?}")),
            }
        }
    }

    /// Looks for what a later commit brings, in a directory that comes with it.
    fn look_ahead(&mut self, object: Object, name: &str) {
        let commit = self.latest + self.dice.throw(AHEAD);
        let at = self.tree.join(format!("{name}.{commit}/in/file"));
        let there = if self.names { at.exists() } else { File::open(at).is_ok() };
        if there {
            self.saw(object, commit);
        }
    }

    fn saw(&mut self, object: Object, commit: u64) {
        self.seen += 1;
        match self.course.next(object, commit) {
            None => self.mixed.push(format!("{object:?} is as commit {commit} left it, which does not change it")),
            Some(next) if next <= self.latest => self.mixed.push(format!(
                "{object:?} is as commit {commit} left it, after something of commit {}: commit {next} changed it",
                self.latest
            )),
            Some(_) => {
                self.latest = self.latest.max(commit);
                if object == Object::New {
                    self.latest_new = self.latest_new.max(commit);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_something_seen_before_is_mixed() {
        let course = Course(vec![
            [Object::New, Object::Moved, Object::Names(0)].into(),
            [Object::New, Object::Moved].into(),
            [Object::Names(0), Object::Moved].into(),
        ]);
        let observer = || Observer::new(&course, Path::new("/"), 1);
        let mut one = observer();
        for (object, commit) in [(Object::Names(0), 0), (Object::New, 1), (Object::Names(0), 0), (Object::Moved, 1)] {
            one.saw(object, commit);
        }
        one.saw(Object::Names(0), 2);
        one.saw(Object::New, 1);
        assert!(one.mixed.is_empty() && one.seen == 6, "{:?}", one.mixed);
        one.saw(Object::Moved, 1);
        assert_eq!(one.mixed.len(), 1);
        let mut other = observer();
        other.saw(Object::New, 1);
        other.saw(Object::Moved, 0);
        other.saw(Object::New, 2);
        assert_eq!(other.mixed.len(), 2);
    }
}

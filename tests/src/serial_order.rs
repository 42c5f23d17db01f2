//! Histories whose every answer is recorded: several transactions and outsiders do random things to a few names, and
//! then it is looked for an order, one after another, that explains all that each of them was told and what there is in
//! the end.
//!
//! ```text
//!   part (another process): random steps ─▶ lines `VERB A B VALUE ANSWER`
//!                                               │ a unit: all of a committed transaction, or one step of an outsider
//!                                               ▼
//!   Scene of the beginning ──▶ search: whose unit may come next? ──▶ Scene of the end
//! ```
//!
//! One thing no transaction does, since it is known not to be noticed (docs/transactions-guarantees.md): what it has
//! made or put at a name it does not take away from there again.
//!
//! A transaction goes by what it has read: it counts on, in place or by a rename; it makes what was missing; it decides
//! by what is listed; it renames along a chain. Contents and times are often the same, so that nothing but the order
//! tells.

use crate::dice::Dice;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// The word that asks this program for a part in a history.
pub(crate) const WORD: &str = "--serial-history";

/// Where they meet.
const FILES: [&str; 7] = ["x", "y", "z", "D/x", "D/y", "D/z", "E/x"];
const DIRECTORIES: [&str; 2] = ["D", "E"];

/// How many steps of the search are taken before it is given up.
const PATIENCE: usize = 400_000;

/// `begin DIR`, `transaction DIR SEED`, `outsider DIR SEED`, or `scene DIR`.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let hand = |directory, seed: &str| {
        let seed = seed.parse().map_err(io::Error::other)?;
        io::Result::Ok(Hand {
            root: Path::new(directory),
            dice: Dice::new(seed),
            seed,
            done: Vec::new(),
            made: HashSet::new(),
        })
    };
    let done = match words[..] {
        ["begin", directory] => return begin(Path::new(directory)),
        ["scene", directory] => {
            print!("{}", Scene::of(Path::new(directory))?.text());
            return Ok(());
        }
        ["transaction", directory, seed] => hand(directory, seed)?.transaction(),
        ["outsider", directory, seed] => hand(directory, seed)?.outsider(),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let text: String = done.iter().map(|done| format!("{}\n", done.0.join(" "))).collect();
    io::stdout().write_all(text.as_bytes())
}

/// Makes the beginning of one.
fn begin(root: &Path) -> io::Result<()> {
    fs::create_dir(root)?;
    fs::create_dir(root.join("D"))?;
    for name in ["x", "y", "D/x"] {
        fs::write(root.join(name), "0001")?;
    }
    Ok(())
}

/// A step that was done: verb, two names, a value, and the answer; `-` where there is none.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Done([String; 5]);

impl std::fmt::Debug for Done {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0.join(" "))
    }
}

impl Done {
    /// Reads what a part has printed.
    pub(crate) fn all(text: &str) -> Vec<Self> {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        text.lines().map(|line| Self(words(line).try_into().expect("five words a line"))).collect()
    }
}

/// Who does the steps.
struct Hand<'a> {
    root: &'a Path,
    dice: Dice,
    seed: u64,
    done: Vec<Done>,
    /// What it has put something at.
    made: HashSet<String>,
}

impl Hand<'_> {
    fn some<'n>(&mut self, names: &[&'n str]) -> &'n str {
        names[self.dice.throw(names.len() as u64) as usize]
    }

    /// Does a step of a transaction, unless it would take away what that has made.
    fn decided(&mut self, verb: &str, one: &str, other: &str, value: &str) -> String {
        let takes_away = ["remove", "rename", "rmdir", "move"].contains(&verb);
        let is_below =
            |name: &String| name.strip_prefix(one).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if takes_away && self.made.iter().any(is_below) {
            return String::new();
        }
        let answer = self.step(verb, one, other, value);
        if answer == "ok" {
            let made = if other == "-" { one } else { other };
            self.made.insert(made.to_owned());
        }
        answer
    }

    fn step(&mut self, verb: &str, one: &str, other: &str, value: &str) -> String {
        let answer = match self.call(verb, one, other, value) {
            Ok(answer) => answer,
            Err(error) => format!("!{}", error.raw_os_error().unwrap_or(-1)),
        };
        self.done.push(Done([verb, one, other, value, &answer].map(str::to_owned)));
        answer
    }

    fn call(&self, verb: &str, one: &str, other: &str, value: &str) -> io::Result<String> {
        let (a, b) = (self.root.join(one), self.root.join(other));
        let aside = self.root.join(format!(".{}-{}", std::process::id(), self.seed));
        match verb {
            "read" => return fs::read_to_string(a),
            // One call, of the length that every content has.
            "write" => File::options().write(true).open(a)?.write_all_at(value.as_bytes(), 0)?,
            "create" => File::create_new(a)?.write_all(value.as_bytes())?,
            "put" => {
                fs::write(&aside, value)?;
                fs::rename(&aside, a).inspect_err(|_| drop(fs::remove_file(&aside)))?;
            }
            "make" => {
                fs::write(&aside, value)?;
                let made = fs::hard_link(&aside, a);
                fs::remove_file(&aside)?;
                made?;
            }
            "touch" => {
                let then = Timespec { tv_sec: 7, tv_nsec: 0 };
                let times = Timestamps { last_access: then, last_modification: then };
                utimensat(CWD, a, &times, AtFlags::empty())?;
            }
            "remove" => fs::remove_file(a)?,
            "rename" | "move" => fs::rename(a, b)?,
            "link" => fs::hard_link(a, b)?,
            "mkdir" => fs::create_dir(a)?,
            "rmdir" => fs::remove_dir(a)?,
            _ => {
                let names = fs::read_dir(a)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
                let mut names = names.collect::<io::Result<Vec<_>>>()?;
                names.sort();
                return Ok(format!("[{}]", names.join(",")));
            }
        }
        Ok("ok".to_owned())
    }

    fn pause(&mut self, longest: u64) {
        std::thread::sleep(Duration::from_millis(self.dice.throw(longest)));
    }

    fn transaction(mut self) -> Vec<Done> {
        for _ in 0..1 + self.dice.throw(3) {
            self.decide();
            self.pause(12);
        }
        self.done
    }

    fn decide(&mut self) {
        let (a, b, c) = (self.some(&FILES), self.some(&FILES), self.some(&FILES));
        let (d, e) = (self.some(&DIRECTORIES), self.some(&DIRECTORIES));
        match self.dice.throw(12) {
            kind @ 0..=2 => {
                let read = self.decided("read", a, "-", "-");
                self.pause(8);
                if let Ok(number) = read.parse::<u32>() {
                    let verb = if kind == 2 { "put" } else { "write" };
                    self.decided(verb, a, "-", &format!("{:04}", number + 1));
                }
            }
            3 => {
                self.decided("write", a, "-", "0007");
                self.decided("touch", a, "-", "-");
            }
            4 => {
                if self.decided("read", a, "-", "-") == "!2" {
                    self.pause(8);
                    self.decided("create", a, "-", "0001");
                }
            }
            5..=6 => {
                let listed = self.decided("list", d, "-", "-");
                self.pause(8);
                let count = listed.matches(['x', 'y', 'z']).count();
                let at = self.some(&["x", "y", "z"]);
                self.decided("put", &format!("{d}/{at}"), "-", &format!("{count:04}"));
            }
            7 => drop(self.decided("remove", a, "-", "-")),
            8 => {
                self.decided("rename", a, b, "-");
                self.pause(8);
                self.decided("rename", b, c, "-");
            }
            9 => drop(self.decided("link", a, b, "-")),
            10 => {
                self.decided("remove", a, "-", "-");
                self.decided("create", a, "-", "0007");
                self.decided("touch", a, "-", "-");
            }
            _ => {
                let verb = self.some(&["mkdir", "rmdir", "move"]);
                let other = if verb == "move" { e } else { "-" };
                self.decided(verb, d, other, "-");
            }
        }
    }

    /// Steps that are seen whole or not at all, one by one.
    fn outsider(mut self) -> Vec<Done> {
        for _ in 0..2 + self.dice.throw(5) {
            let (a, b) = (self.some(&FILES), self.some(&FILES));
            let value = format!("{:04}", self.dice.throw(4));
            match self.dice.throw(9) {
                0..=1 => drop(self.step("write", a, "-", &value)),
                2 => drop(self.step("put", a, "-", &value)),
                3 => drop(self.step("make", a, "-", &value)),
                4 => drop(self.step("remove", a, "-", "-")),
                5 => drop(self.step("rename", a, b, "-")),
                6 => drop(self.step("link", a, b, "-")),
                7 => drop(self.step("mkdir", "E", "-", "-")),
                _ => drop(self.step("read", a, "-", "-")),
            }
            self.pause(40);
        }
        self.done
    }
}

/// What there is: names, which of them are the same file, and contents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scene {
    /// A directory has no file.
    names: BTreeMap<String, Option<u64>>,
    contents: BTreeMap<u64, String>,
    next: u64,
}

impl Scene {
    /// That of a directory.
    pub(crate) fn of(root: &Path) -> io::Result<Self> {
        let mut scene = Self { names: BTreeMap::new(), contents: BTreeMap::new(), next: 0 };
        let mut left = vec![String::new()];
        while let Some(below) = left.pop() {
            for entry in fs::read_dir(root.join(&below))? {
                let name = format!("{below}{}", entry?.file_name().to_string_lossy());
                let metadata = root.join(&name).symlink_metadata()?;
                if metadata.is_dir() {
                    left.push(format!("{name}/"));
                    scene.names.insert(name, None);
                } else {
                    scene.contents.insert(metadata.ino(), fs::read_to_string(root.join(&name))?);
                    scene.names.insert(name, Some(metadata.ino()));
                }
            }
        }
        Ok(scene.canonical())
    }

    /// A line a name: its file's number and content.
    pub(crate) fn text(&self) -> String {
        let line = |(name, file): (&String, &Option<u64>)| match file {
            None => format!("{name} - -\n"),
            Some(file) => format!("{name} {file} {}\n", self.contents[file]),
        };
        self.names.iter().map(line).collect()
    }

    /// Reads such lines.
    pub(crate) fn from_text(text: &str) -> Self {
        let mut scene = Self { names: BTreeMap::new(), contents: BTreeMap::new(), next: 0 };
        for line in text.lines() {
            let [name, file, content] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("no scene: {line}") };
            let file = file.parse().ok();
            scene.contents.extend(file.map(|file| (file, content.to_owned())));
            scene.names.insert(name.to_owned(), file);
        }
        scene.canonical()
    }

    /// The same with files numbered by their first names.
    fn canonical(&self) -> Self {
        let mut numbers = BTreeMap::new();
        for file in self.names.values().flatten() {
            let next = numbers.len() as u64;
            numbers.entry(*file).or_insert(next);
        }
        let names = self.names.iter().map(|(name, file)| (name.clone(), file.map(|file| numbers[&file]))).collect();
        let contents = numbers.iter().map(|(file, number)| (*number, self.contents[file].clone())).collect();
        Self { names, contents, next: numbers.len() as u64 }
    }

    fn has_place(&self, name: &str) -> bool {
        name.split_once('/').is_none_or(|(directory, _)| self.names.contains_key(directory))
    }

    fn add(&mut self, name: &str, content: &str) {
        self.contents.insert(self.next, content.to_owned());
        self.names.insert(name.to_owned(), Some(self.next));
        self.next += 1;
    }

    fn below(&self, directory: &str) -> Vec<String> {
        let inner = |name: &String| Some(name.strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        self.names.keys().filter_map(inner).collect()
    }

    /// Does a step, and says what comes of it.
    fn step(&mut self, Done([verb, one, other, value, _]): &Done) -> String {
        const MISSING: &str = "!2";
        let file = self.names.get(one).copied();
        let creates = ["create", "make", "put"].contains(&verb.as_str());
        match (verb.as_str(), file) {
            ("mkdir", Some(_)) => return "!17".to_owned(),
            ("mkdir", None) => drop(self.names.insert(one.clone(), None)),
            _ if creates && !self.has_place(one) => return MISSING.to_owned(),
            ("create" | "make", Some(_)) => return "!17".to_owned(),
            _ if creates => self.add(one, value),
            (_, None) => return MISSING.to_owned(),
            ("read", Some(Some(file))) => return self.contents[&file].clone(),
            ("write", Some(Some(file))) => drop(self.contents.insert(file, value.clone())),
            ("touch", _) => {}
            ("remove", _) => drop(self.names.remove(one)),
            ("rename" | "link", _) if !self.has_place(other) => return MISSING.to_owned(),
            ("link", _) if self.names.contains_key(other) => return "!17".to_owned(),
            ("link", Some(file)) => drop(self.names.insert(other.clone(), file)),
            // Two names of one file: rename(2) leaves both.
            ("rename", Some(file)) if self.names.get(other) == Some(&file) => {}
            ("rename", Some(file)) => {
                self.names.remove(one);
                self.names.insert(other.clone(), file);
            }
            ("list", _) => return format!("[{}]", self.below(one).join(",")),
            ("rmdir", _) if !self.below(one).is_empty() => return "!39".to_owned(),
            ("rmdir", _) => drop(self.names.remove(one)),
            ("move", _) if one == other => {}
            ("move", _) if !self.below(other).is_empty() => return "!39".to_owned(),
            ("move", _) => {
                for name in self.below(one) {
                    let file = self.names.remove(&format!("{one}/{name}")).flatten();
                    self.names.insert(format!("{other}/{name}"), file);
                }
                self.names.remove(one);
                self.names.insert(other.clone(), None);
            }
            _ => return format!("no such step: {verb} {one}"),
        }
        "ok".to_owned()
    }
}

/// What each actor did, unit by unit.
pub(crate) type History = Vec<Vec<Vec<Done>>>;

/// What the search has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// There is one.
    Found,
    /// There is none.
    None,
    /// There are too many to try.
    Unknown,
}

/// Looks for an order.
pub(crate) fn order(before: &Scene, history: &History, after: &Scene) -> Order {
    let mut seen = HashSet::new();
    let mut left = vec![(vec![0; history.len()], before.canonical())];
    while let Some((at, scene)) = left.pop() {
        if history.iter().zip(&at).all(|(units, at)| units.len() == *at) && scene == *after {
            return Order::Found;
        }
        if seen.len() > PATIENCE {
            return Order::Unknown;
        }
        if !seen.insert((at.clone(), scene.clone())) {
            continue;
        }
        for (actor, units) in history.iter().enumerate() {
            let Some(unit) = units.get(at[actor]) else { continue };
            let mut next = scene.clone();
            if unit.iter().all(|done| next.step(done) == done.0[4]) {
                let mut at = at.clone();
                at[actor] += 1;
                left.push((at, next.canonical()));
            }
        }
    }
    Order::None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(history: &[&[&str]], after: &str) -> Order {
        let before = Scene::from_text("D - -\nx 0 0001\n");
        let history = history.iter().map(|units| units.iter().map(|unit| Done::all(unit)).collect()).collect();
        order(&before, &history, &Scene::from_text(after))
    }

    const COUNTS: &str = "read x - - 0001\nwrite x - 0002 ok";

    #[test]
    fn what_each_was_told_has_to_come_about() {
        let on = "read x - - 0002\nput x - 0003 ok";
        assert_eq!(found(&[&[COUNTS], &[on]], "D - -\nx 0 0003\n"), Order::Found);
        assert_eq!(found(&[&[on], &[COUNTS]], "D - -\nx 0 0003\n"), Order::Found);
        assert_eq!(found(&[&[on, COUNTS]], "D - -\nx 0 0003\n"), Order::None, "one's own come one after another");
        assert_eq!(found(&[&[COUNTS], &[on]], "D - -\nx 0 0002\n"), Order::None);
    }

    #[test]
    fn a_lost_update_has_no_order() {
        assert_eq!(found(&[&[COUNTS], &[COUNTS]], "D - -\nx 0 0002\n"), Order::None);
        let moved = "rename x y - ok";
        assert_eq!(
            found(&[&["read x - - 0001\nput x - 0002 ok"], &[moved]], "D - -\nx 0 0002\ny 1 0001\n"),
            Order::None
        );
        let made = "list D - - []\ncreate D/x - 0001 ok";
        let other = "list D - - []\ncreate D/y - 0001 ok";
        assert_eq!(found(&[&[made], &[other]], "D - -\nD/x 0 0001\nD/y 1 0001\nx 2 0001\n"), Order::None);
    }

    #[test]
    fn links_and_directories_are_what_they_are() {
        let steps =
            "link x D/x - ok\nmove D E - ok\nwrite E/x - 0005 ok\nread x - - 0005\nrmdir E - - !39\nrename x E/x - ok";
        assert_eq!(found(&[&[steps]], "E - -\nE/x 0 0005\nx 0 0005\n"), Order::Found);
        assert_eq!(found(&[&[steps]], "E - -\nE/x 0 0005\nx 1 0005\n"), Order::None, "they are two files");
    }

    #[test]
    fn real_steps_are_those_of_the_scene() {
        for seed in 0..200 {
            let temporary = tempfile::tempdir().expect("a directory");
            let root = temporary.path().join("h");
            begin(&root).expect("a beginning");
            let before = Scene::of(&root).expect("a scene");
            let hand = || Hand { root: &root, dice: Dice::new(seed), seed, done: Vec::new(), made: HashSet::new() };
            let (one, other) = (hand().transaction(), hand().outsider());
            let after = Scene::of(&root).expect("a scene");
            assert_eq!(
                order(&before, &vec![vec![one.clone(), other.clone()]], &after),
                Order::Found,
                "{one:?} {other:?}"
            );
        }
    }
}

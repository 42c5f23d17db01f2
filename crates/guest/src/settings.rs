//! `/etc/pando/pando.toml`: what can stand in it, and how every reader reads its part.
//!
//! Each reader has a table, and takes it from here. A key that is not known, or whose value makes no sense, is a
//! problem that is said with the nearest key that is known; it does not take the keys beside it along, so that
//! `policy = "off"` holds whatever else stands there.
//!
//! ```text
//!   text ─▶ Settings ─▶ table::<Rules>("watchdog") ─▶ (Rules, problems of that table)
//!                   └─▶ problems()                    all of them, for people
//! ```

use crate::Places;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A key of a table.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key's name, as it is written.
    pub name: &'static str,
    /// What the key is for, in words.
    pub meaning: &'static str,
    /// The value that holds where the key is missing, as it would be written; empty where there is none.
    pub usual: &'static str,
}

const fn key(name: &'static str, usual: &'static str, meaning: &'static str) -> Key {
    Key { name, meaning, usual }
}

/// Every table with its keys. The table in docs/configuration.md is made of this.
pub const TABLES: &[(&str, &[Key])] = &[
    (
        "watchdog",
        &[
            key("policy", "\"graduated\"", "how it acts: `\"graduated\"`, `\"pl_mom\"` or `\"off\"`"),
            key(
                "pressure",
                "10",
                "percent of ten seconds in which all processes waited for memory, from which on it acts",
            ),
            key("plenty", "20", "percent of memory that is free, from which on pressure does not count"),
            key("free", "3", "percent of memory that has to be free, where the kernel does not report pressure"),
            key("swap", "90", "percent of swap that may be in use"),
            key("every", "5", "seconds between looks, and between steps"),
            key("relief", "30", "seconds without want before a frozen guest goes on"),
            key("last", "\"restart\"", "the last step: `\"restart\"` or `\"stop\"`"),
            key(
                "victim",
                "\"excess\"",
                "whose memory goes first, of those above their reservations: `\"excess\"` (furthest above), `\"largest\"`, `\"newest\"`, or `\"share\"` (furthest above for its processor shares)",
            ),
            key(
                "notice",
                "0",
                "seconds from telling that a guest is going to be frozen, restarted or stopped to doing it",
            ),
            key("dry_run", "false", "`true`: it makes events, and does nothing"),
        ],
    ),
    (
        "memory",
        &[
            key(
                "share",
                "\"off\"",
                "whose pages are shared again that are equal: `\"off\"`, `\"clones\"` of one image, or all `\"guests\"` out of images ([memory](memory.md))",
            ),
            key(
                "share_processor",
                "1.0",
                "percent of a processor that looking for them and merging them takes on the whole",
            ),
            key("share_every", "10", "seconds between looks, at the least"),
            key("share_fewest", "64", "pages that a mapping has to promise"),
            key("share_hot", "3", "how often a page may be found rewritten before it counts for nothing"),
            key("share_hints", "65536", "how many pages are remembered at most"),
            key(
                "admit",
                "\"always\"",
                "by what is decided whether a guest may start: `\"always\"`, `\"learned\"` or `\"reserved\"` ([memory](memory.md#room-for-one-more))",
            ),
            key("overbook", "1.0", "how often the same memory is given away"),
            key(
                "guests_memory",
                "",
                "what all guests may come to together, as `\"64G\"`; without it all of the machine's memory",
            ),
            key(
                "settle",
                "30",
                "seconds after which a guest is counted for what it has, not for what its kind may come to",
            ),
            key("reclaim_idle", "", "seconds for which a guest has to be idle before its memory is taken back"),
        ],
    ),
    (
        "images",
        &[
            key("signers", "", "a file with the allowed signers of imported images, as ssh-keygen(1) has it"),
            key("revoked", "", "a file with keys that are not believed any more, or a KRL"),
            key(
                "require_signature",
                "false",
                "`true`: an image that is imported has to be signed by one of the signers",
            ),
            key(
                "keep",
                "\"off\"",
                "how much of images of registries stays that no guest stands on, and how long after their last use: `\"20G, 30d\"`; `\"off\"`: all of it",
            ),
        ],
    ),
    ("logs", &[key("size", "\"16M\"", "the most that each guest's log takes of the disk")]),
    (
        "metrics",
        &[key("listen", "", "where metrics are served: `\"127.0.0.1:9464\"`, or the absolute path of a socket")],
    ),
    (
        "network",
        &[
            key("private", "", "the private network's addresses, as `\"10.50.0.0/16\"`"),
            key("link_rate", "", "a table of the rates of devices, as `eth0 = \"1gbit\"`"),
        ],
    ),
    (
        "transactions",
        &[
            key(
                "contention",
                "\"priority\"",
                "which is favoured when transactions meet: `\"priority\"`, `\"first\"` or `\"oldest\"`",
            ),
            key(
                "gate",
                "\"auto\"",
                "what keeps others from seeing a commit on the host half done: `\"auto\"` (the best that there is; `bpf` for commands that run for a quarter of a second or longer), `\"bpf\"`, `\"hold\"`, `\"fanotify\"`, `\"freeze\"` or `\"none\"`",
            ),
            key(
                "keep",
                "\"off\"",
                "how much is kept of commits so that they can be undone, and how long: `\"2G, 30d\"`",
            ),
            key(
                "users",
                "[]",
                "who may have [transactions](transactions-users.md) without being root: users, and with `@` groups, by name or number, as `[\"alice\", \"@staff\"]`",
            ),
            key("users_at_once", "4", "how many such transactions each of them may have at once"),
            key("users_room", "\"256M\"", "how much memory the changes of one of them may take"),
        ],
    ),
];

/// When a change of a table's keys takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The next transaction or import reads it.
    Always,
    /// A daemon that is told to read the file again.
    Reload,
    /// The next daemon that starts.
    NextDaemon,
}

/// When a change of the keys of a table takes effect.
pub fn effect(table: &str) -> Effect {
    match table {
        "transactions" | "images" => Effect::Always,
        "watchdog" | "memory" | "logs" | "metrics" => Effect::Reload,
        _ => Effect::NextDaemon,
    }
}

/// What is wrong with a file of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The table, or what stands in a table's place; empty where it is the whole file.
    pub table: String,
    /// What, in a sentence without its end.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.what)
    }
}

/// A file of settings, pando.toml, as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    path: PathBuf,
    tables: Table,
    /// Why it could not be read at all.
    unreadable: Option<String>,
}

impl Settings {
    /// Reads those of a state root. One that is not there says nothing.
    pub fn read(places: &Places) -> Self {
        let path = places.settings();
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self { path, ..Self::default() },
            Err(error) => Self { path, unreadable: Some(error.to_string()), ..Self::default() },
        }
    }

    /// Reads the settings that a text has.
    pub fn parse(path: &Path, text: &str) -> Self {
        match text.parse::<Table>() {
            Ok(tables) => Self { path: path.to_owned(), tables, unreadable: None },
            Err(error) => {
                let line = error.span().map(|span| text[..span.start.min(text.len())].lines().count().max(1));
                let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
                Self {
                    path: path.to_owned(),
                    unreadable: Some(format!("{line}{}", error.message())),
                    ..Self::default()
                }
            }
        }
    }

    /// Whether there is a file of which nothing is understood.
    pub fn is_unreadable(&self) -> bool {
        self.unreadable.is_some()
    }

    /// What a table says, key by key: those that make no sense are left out, and are problems.
    pub fn table<T: DeserializeOwned + Default>(&self, name: &str) -> (T, Vec<Problem>) {
        if let Some(why) = &self.unreadable {
            let what = format!("{} cannot be read: {why}", self.path.display());
            return (T::default(), vec![Problem { table: String::new(), what }]);
        }
        let mut problems = Vec::new();
        let keys = match self.tables.get(name) {
            None => Table::new(),
            Some(Value::Table(keys)) => keys.clone(),
            Some(_) => {
                problems.push(self.problem(name, format!("{name} is a table, and has to be written as [{name}]")));
                Table::new()
            }
        };
        let known = TABLES.iter().find(|(table, _)| *table == name).map_or(&[][..], |(_, keys)| *keys);
        let mut good = Table::new();
        for (key, value) in keys {
            if known.iter().all(|known| known.name != key) {
                let nearest = nearest(&key, known.iter().map(|known| known.name));
                problems.push(self.problem(name, format!("[{name}] has no key '{key}'{nearest}")));
                continue;
            }
            let alone = Table::from_iter([(key.clone(), value.clone())]);
            match alone.try_into::<T>() {
                Ok(_) => drop(good.insert(key, value)),
                Err(error) => {
                    problems.push(self.problem(name, format!("[{name}] {key} = {value}: {}", error.message())));
                }
            }
        }
        (good.try_into().unwrap_or_default(), problems)
    }

    /// Tables of the file that no part of Pando reads, a problem each.
    pub fn unknown_tables(&self) -> Vec<Problem> {
        let unknown = self.tables.keys().filter(|name| TABLES.iter().all(|(table, _)| table != name));
        unknown
            .map(|name| {
                let nearest = nearest(name, TABLES.iter().map(|(table, _)| *table));
                self.problem(name, format!("there is no table [{name}]{nearest}"))
            })
            .collect()
    }

    /// What a key was set to, for each key of each table: to compare two readings.
    pub fn values(&self) -> Vec<(String, String)> {
        let mut values = Vec::new();
        for (table, keys) in &self.tables {
            for (key, value) in keys.as_table().into_iter().flatten() {
                values.push((format!("{table}.{key}"), value.to_string()));
            }
        }
        values
    }

    fn problem(&self, table: &str, what: String) -> Problem {
        Problem { table: table.to_owned(), what: format!("{}: {what}", self.path.display()) }
    }
}

/// The known word that is nearest to one, as the end of a sentence.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    const NEAR: f64 = 0.7;
    let near = known.clone().map(|known| (strsim::jaro_winkler(word, known), known)).filter(|(near, _)| *near > NEAR);
    match near.max_by(|one, other| one.0.total_cmp(&other.0)) {
        Some((_, nearest)) => format!("; did you mean '{nearest}'?"),
        None => format!("; there are {}", known.collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::fmt::Write;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Dog {
        policy: String,
        swap: f64,
    }

    fn read(text: &str) -> (Dog, Vec<Problem>) {
        Settings::parse(Path::new("pando.toml"), text).table("watchdog")
    }

    #[test]
    fn a_mistyped_key_takes_no_other_along() {
        let (dog, problems) = read("[watchdog]\npolicy = \"off\"\nswpa = 80\nfree = \"x\"\n");
        assert_eq!(dog.policy, "off");
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].to_string(), "pando.toml: [watchdog] has no key 'swpa'; did you mean 'swap'?");
    }

    #[test]
    fn a_value_that_makes_no_sense_is_said_with_its_key() {
        let (dog, problems) = read("[watchdog]\npolicy = \"off\"\nswap = \"much\"\n");
        assert_eq!(dog.policy, "off");
        assert!(problems[0].to_string().contains("swap = \"much\""), "{problems:?}");
    }

    #[test]
    fn a_table_that_nobody_reads_and_a_file_that_is_no_toml_are_said() {
        let settings = Settings::parse(Path::new("p"), "[watchdgo]\n");
        assert_eq!(settings.unknown_tables()[0].what, "p: there is no table [watchdgo]; did you mean 'watchdog'?");
        let (_, problems) = read("[logs]\n\nsize\n");
        assert!(problems[0].what.contains("line 3"), "{problems:?}");
    }

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    const MARKS: [&str; 2] = ["<!-- keys: begin -->\n", "<!-- keys: end -->\n"];

    /// The tables, as the page has them.
    fn text() -> String {
        let mut text = String::new();
        for (table, keys) in TABLES {
            let effect = match effect(table) {
                Effect::Always => "at the next use: a transaction, an import",
                Effect::Reload => "after `pando daemon reload`, or SIGHUP",
                Effect::NextDaemon => "when the daemon is started again",
            };
            let head = "| key | without it | what it is |\n|---|---|---|";
            let _ = writeln!(text, "### `[{table}]`\n\nA change holds {effect}.\n\n{head}");
            for key in *keys {
                let usual = if key.usual.is_empty() { String::new() } else { format!("`{}`", key.usual) };
                let _ = writeln!(text, "| `{}` | {usual} | {} |", key.name, key.meaning);
            }
            text.push('\n');
        }
        text
    }

    /// With `PANDO_WRITE_DOCS` in the environment the page is written anew.
    #[test]
    fn the_page_has_the_tables_that_the_list_makes() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(MARKS[0]).expect("the page has the mark before the tables");
        let (found, after) = rest.split_once(MARKS[1]).expect("the page has the mark after the tables");
        if std::env::var_os("PANDO_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, format!("{before}{}{}{}{after}", MARKS[0], text(), MARKS[1])).unwrap();
            return;
        }
        let advice = "docs/configuration.md: PANDO_WRITE_DOCS=1 cargo test -p pando-guest the_page writes it anew";
        assert!(found == text(), "{advice}");
    }

    #[test]
    fn the_usual_values_of_sharing_are_those_that_it_has_without_settings() {
        let (_, keys) = TABLES.iter().find(|(table, _)| *table == "memory").unwrap();
        let keys = keys.iter().filter(|key| !key.usual.is_empty());
        let lines: String = keys.map(|key| format!("{} = {}\n", key.name, key.usual)).collect();
        let settings = Settings::parse(Path::new("p"), &format!("[memory]\n{lines}"));
        let (rules, problems) = settings.table::<pando_limit::admission::Rules>("memory");
        assert_eq!((rules, problems), (pando_limit::admission::Rules::default(), Vec::new()));
        let (rules, problems) = settings.table::<pando_limit::page_sharing::Rules>("memory");
        assert_eq!((rules, problems), (pando_limit::page_sharing::Rules::default(), Vec::new()));
    }

    #[test]
    fn the_usual_values_of_the_watchdog_are_those_that_it_has_without_settings() {
        let (_, keys) = TABLES.iter().find(|(table, _)| *table == "watchdog").unwrap();
        let lines: String = keys.iter().map(|key| format!("{} = {}\n", key.name, key.usual)).collect();
        let settings = Settings::parse(Path::new("p"), &format!("[watchdog]\n{lines}"));
        let (rules, problems) = settings.table::<pando_limit::watchdog::Rules>("watchdog");
        assert_eq!((rules, problems), (pando_limit::watchdog::Rules::default(), Vec::new()));
        assert_eq!(settings.values().len(), keys.len());
    }
}

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

/// A key, and what it is for.
pub type Key = (&'static str, &'static str);

/// Every table with its keys.
pub const TABLES: &[(&str, &[Key])] = &[
    (
        "watchdog",
        &[
            ("policy", "\"graduated\", \"pl_mom\" or \"off\""),
            ("pressure", "percent of ten seconds in which nobody got on for want of memory, from which on it acts"),
            ("plenty", "percent of memory that is free from which on pressure is no want of the machine's"),
            ("free", "percent of memory that has to be free where the kernel does not tell of pressure"),
            ("swap", "percent of swap that may be in use"),
            ("every", "seconds between looks, and between steps"),
            ("relief", "seconds without want before a frozen guest goes on"),
            ("last", "the last step: \"restart\" or \"stop\""),
            ("dry_run", "true: only events, nothing is done"),
        ],
    ),
    (
        "images",
        &[
            ("signers", "a file with the allowed signers of imported images, as ssh-keygen(1) has it"),
            ("revoked", "a file with keys that are not believed any more, or a KRL"),
            ("require_signature", "true: what is imported has to be signed by one of the signers"),
        ],
    ),
    ("logs", &[("size", "the most that each guest's log takes of the disk: \"16M\"")]),
    ("metrics", &[("listen", "where metrics are served: \"127.0.0.1:9464\", or the absolute path of a socket")]),
    (
        "network",
        &[
            ("private", "the private network's addresses: \"10.50.0.0/16\""),
            ("link_rate", "a table of the rates of devices: eth0 = \"1gbit\""),
        ],
    ),
    (
        "transactions",
        &[("contention", "who is favoured when transactions meet: \"priority\", \"first\" or \"oldest\"")],
    ),
];

/// When a change of a table's keys takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The next transaction or import reads it.
    Always,
    /// A daemon that is told to read the file again.
    Reload,
    /// The next daemon.
    NextDaemon,
}

/// When a change of the keys of a table takes effect.
pub fn effect(table: &str) -> Effect {
    match table {
        "transactions" | "images" => Effect::Always,
        "watchdog" | "logs" | "metrics" => Effect::Reload,
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

    /// Those that a text has.
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
            if known.iter().all(|(known, _)| *known != key) {
                let nearest = nearest(&key, known.iter().map(|(known, _)| *known));
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
}

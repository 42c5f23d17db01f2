//! What is done alike with all that guests are given and that is known by its name: volumes and networks.

use crate::confirmation::is_confirmed;
use crate::counted::counted;
use crate::table::{Table, print, print_json};
use crate::template::Template;
use anyhow::anyhow;
use pando_api::{Fault, FaultKind};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Something that is known by its name, and is given to guests.
pub(super) trait Named: Serialize + Sized {
    /// What it is, which is the verb's name too; and more of them.
    const WORDS: [&'static str; 2];

    fn name(&self) -> &str;

    /// The guests and images that have it.
    fn guests(&self) -> &[String];

    /// A line each, at a time in seconds since the epoch.
    fn table(all: &[Self], now: i64) -> Table;
}

/// Prints all of them.
pub(super) fn list<N: Named>(all: &[N], quiet: bool, json: bool) -> anyhow::Result<u8> {
    if json {
        print_json(&all)?;
    } else if quiet {
        print(&all.iter().map(|one| format!("{}\n", one.name())).collect::<String>())?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        N::table(all, i64::try_from(now).unwrap_or(i64::MAX)).print()?;
    }
    Ok(0)
}

/// Prints all that is known of some.
pub(super) fn inspect<N: Named>(all: &[N], names: &[String], format: Option<&Template>) -> anyhow::Result<u8> {
    let [word, _] = N::WORDS;
    let mut chosen = Vec::new();
    for name in names {
        let unknown = || {
            let message = format!("there is no {word} '{name}'; `pando {word} ls` lists them");
            anyhow!(Fault::new(FaultKind::BadRequest, name.as_str(), message))
        };
        chosen.push(all.iter().find(|one| one.name() == *name).ok_or_else(unknown)?);
    }
    match format {
        Some(format) => {
            let line = |one: &&N| format.fill(&serde_json::to_value(one)?);
            print(&chosen.iter().map(line).collect::<anyhow::Result<String>>()?)?;
        }
        None => print_json(&chosen)?,
    }
    Ok(0)
}

/// Those that nobody has, if they are to be removed: with `force`, or when whoever is asked wants that. `besides` says
/// what goes with them.
pub(super) fn to_prune<N: Named>(all: &[N], force: bool, besides: &str) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> =
        all.iter().filter(|one| one.guests().is_empty()).map(|one| one.name().to_owned()).collect();
    let [word, several] = N::WORDS;
    let unasked = || {
        let count = counted(names.len() as u64, word, several);
        format!("{count} would be removed; `pando {word} prune --force` does it unasked")
    };
    let question = || format!("Remove the {several} {}{besides}?", names.join(", "));
    let goes = names.is_empty() || force || is_confirmed(&question(), unasked())?;
    Ok(if goes { names } else { Vec::new() })
}

/// The names of those who have one, for a table.
pub(super) fn guests_shown(one: &impl Named) -> String {
    if one.guests().is_empty() { "-".to_owned() } else { one.guests().join(", ") }
}

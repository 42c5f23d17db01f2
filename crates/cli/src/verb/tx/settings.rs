//! The part of pando.toml that is for transactions; others read the rest.

use crate::state_root::StateRoot;
use pando_guest::Places;
use pando_guest::settings::Settings;
use pando_tx::Contention;
use serde::Deserialize;

/// The table `[transactions]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transactions {
    contention: Contention,
}

/// Who is favoured when transactions meet.
pub(super) fn contention(root: &StateRoot) -> anyhow::Result<Contention> {
    read(&Settings::read(&Places::new(root.directory())))
}

fn read(settings: &Settings) -> anyhow::Result<Contention> {
    let (transactions, mut problems) = settings.table::<Transactions>("transactions");
    problems.extend(settings.unknown_tables());
    match problems.first() {
        None => Ok(transactions.contention),
        Some(problem) => anyhow::bail!("cannot go by the settings: {problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_policy_is_read_and_what_is_none_is_an_error() {
        let read = |text: &str| read(&Settings::parse(Path::new("pando.toml"), text));
        assert_eq!(read("[network]\nprivate = 'x'\n").unwrap(), Contention::Priority);
        assert_eq!(read("[transactions]\ncontention = 'oldest'\n").unwrap(), Contention::Oldest);
        for (wrong, word) in [
            ("[transactions]\ncontention = 'youngest'\n", "youngest"),
            ("[transactions]\ncontetnion = 'oldest'\n", "did you mean 'contention'?"),
            ("[transaction]\ncontention = 'oldest'\n", "did you mean 'transactions'?"),
            ("[transactions", "pando.toml"),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }
}

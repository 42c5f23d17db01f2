//! The part of pando.toml that is for transactions; others read the rest.

use crate::state_root::StateRoot;
use pando_guest::Places;
use pando_guest::settings::Settings;
use pando_tx::{Contention, KeepBounds, KeepRequest};
use serde::Deserialize;

/// The table `[transactions]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transactions {
    contention: Contention,
    #[serde(deserialize_with = "KeepBounds::setting")]
    keep: Option<KeepBounds>,
}

/// Who is favoured when transactions meet, and what is kept of a commit.
pub(super) fn of_run(root: &StateRoot) -> anyhow::Result<(Contention, Option<KeepRequest>)> {
    let Transactions { contention, keep } = of(root)?;
    Ok((contention, keep.map(|bounds| keep_within(bounds, None))))
}

/// What is kept of a commit that this process makes, which undoes another perhaps.
pub(super) fn keep(root: &StateRoot, undoes: Option<u64>) -> anyhow::Result<Option<KeepRequest>> {
    Ok(of(root)?.keep.map(|bounds| keep_within(bounds, undoes)))
}

fn keep_within(KeepBounds { bytes, age }: KeepBounds, undoes: Option<u64>) -> KeepRequest {
    KeepRequest { bytes, age, uid: pando_kernel::process::login_user(), undoes }
}

fn of(root: &StateRoot) -> anyhow::Result<Transactions> {
    read(&Settings::read(&Places::new(root.directory())))
}

fn read(settings: &Settings) -> anyhow::Result<Transactions> {
    let (transactions, mut problems) = settings.table::<Transactions>("transactions");
    problems.extend(settings.unknown_tables());
    match problems.first() {
        None => Ok(transactions),
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
        assert_eq!(read("[network]\nprivate = 'x'\n").unwrap().contention, Contention::Priority);
        assert_eq!(read("[transactions]\ncontention = 'oldest'\n").unwrap().contention, Contention::Oldest);
        assert!(read("[transactions]\nkeep = '2G, 30d'\n").unwrap().keep.is_some());
        assert_eq!(read("[transactions]\nkeep = 'off'\n").unwrap().keep, None);
        for (wrong, word) in [
            ("[transactions]\ncontention = 'youngest'\n", "youngest"),
            ("[transactions]\nkeep = 'all'\n", "such as \"2G, 30d\""),
            ("[transactions]\ncontetnion = 'oldest'\n", "did you mean 'contention'?"),
            ("[transaction]\ncontention = 'oldest'\n", "did you mean 'transactions'?"),
            ("[transactions", "pando.toml"),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }
}

//! The part of pando.toml that is for transactions; others read the rest.

use crate::state_root::StateRoot;
use anyhow::Context;
use pando_guest::Places;
use pando_tx::Contention;
use serde::Deserialize;
use std::io::ErrorKind;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    transactions: Transactions,
}

/// The table `[transactions]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Transactions {
    contention: Contention,
}

/// Who is favoured when transactions meet.
pub(super) fn contention(root: &StateRoot) -> anyhow::Result<Contention> {
    let path = Places::new(root.directory()).settings();
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contention::default()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    read(&text).with_context(|| format!("cannot understand {}", path.display()))
}

fn read(text: &str) -> Result<Contention, toml::de::Error> {
    toml::from_str::<Settings>(text).map(|settings| settings.transactions.contention)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_read_and_what_is_none_is_an_error() {
        assert_eq!(read("[network]\nprivate = 'x'\n"), Ok(Contention::Priority));
        assert_eq!(read("[transactions]\ncontention = 'oldest'\n"), Ok(Contention::Oldest));
        for wrong in ["[transactions]\ncontention = 'youngest'\n", "[transactions]\nretries = 3\n"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}

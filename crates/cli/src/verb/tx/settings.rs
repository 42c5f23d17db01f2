//! The part of pando.toml that is for transactions; others read the rest.

use crate::state_root::StateRoot;
use pando_guest::Places;
use pando_guest::settings::Settings;
use pando_tx::{Contention, GateChoice, KeepBounds, KeepRequest};
use serde::Deserialize;

/// The table `[transactions]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transactions {
    contention: Contention,
    gate: GateChoice,
    #[serde(deserialize_with = "KeepBounds::setting")]
    keep: Option<KeepBounds>,
    #[serde(flatten)]
    of_users: UsersSettings,
}

/// Who may have transactions without being root, and how much they take.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(super) struct UsersSettings {
    /// Names and numbers of users, and with `@` in front of groups.
    pub(super) users: Vec<String>,
    /// How many each may have at once.
    pub(super) users_at_once: u32,
    users_room: String,
}

impl Default for UsersSettings {
    fn default() -> Self {
        Self { users: Vec::new(), users_at_once: 4, users_room: "256M".to_owned() }
    }
}

impl UsersSettings {
    /// How many bytes of memory the changes of one may take.
    pub(super) fn room(&self) -> anyhow::Result<u64> {
        super::memory_size::read(&self.users_room)
            .map_err(|why| anyhow::anyhow!("cannot go by the settings: [transactions] users_room: {why}"))
    }
}

/// What is said of users who are not root.
pub(super) fn of_users(root: &StateRoot) -> anyhow::Result<UsersSettings> {
    let settings = of(root)?.of_users;
    settings.room()?;
    Ok(settings)
}

/// Who is favoured when transactions meet, and what is kept of a commit.
pub(super) fn of_run(root: &StateRoot) -> anyhow::Result<(Contention, Option<KeepRequest>)> {
    let Transactions { contention, keep, .. } = of(root)?;
    Ok((contention, keep.map(|bounds| keep_within(bounds, None))))
}

/// Which gate a commit on the host is to have.
pub(super) fn gate(root: &StateRoot) -> anyhow::Result<GateChoice> {
    Ok(of(root)?.gate)
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
        assert_eq!(read("[transactions]\ngate = 'none'\n").unwrap().gate, "none".parse().unwrap());
        let users = read("[transactions]\nusers = ['alice', '@staff']\nusers_room = '64M'\n").unwrap().of_users;
        assert_eq!((users.users.len(), users.users_at_once, users.room().unwrap()), (2, 4, 64 << 20));
        assert!(read("").unwrap().of_users.users.is_empty(), "nobody, unless somebody is named");
        for (wrong, word) in [
            ("[transactions]\nusers = 'alice'\n", "users"),
            ("[transactions]\nuser = ['alice']\n", "did you mean 'users'?"),
            ("[transactions]\ncontention = 'youngest'\n", "youngest"),
            ("[transactions]\ngate = 'door'\n", "auto, bpf, hold, fanotify, freeze, none"),
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

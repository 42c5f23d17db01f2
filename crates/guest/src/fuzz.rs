//! What a fuzzer calls. Each takes any bytes, and panics where what is promised of them is broken.

use crate::account::Account;
use crate::settings::{Settings, TABLES};
use crate::{GuestName, source};
use std::path::Path;

/// Account files of a guest: the user that a command runs as. The bytes are the user that is wanted, a line feed, and
/// both files.
pub fn accounts(data: &[u8]) {
    source::fuzz::account_files(data);
    let text = String::from_utf8_lossy(data);
    let (wanted, files) = text.split_once('\n').unwrap_or((&text, ""));
    let half = files.char_indices().map(|(at, _)| at).find(|at| at * 2 >= files.len()).unwrap_or(0);
    let (passwd, group) = files.split_at(half);
    for (passwd, group) in [(passwd, group), (files, files)] {
        let Ok(account) = Account::resolve(wanted, passwd, group) else { continue };
        if account.check(true).is_ok() {
            let ids = [account.uid, account.gid].into_iter().chain(account.groups.iter().copied());
            assert!(ids.max().is_none_or(|id| id < 65_536), "{account:?}");
        }
        assert!(account.groups.len() <= 256, "{} groups", account.groups.len());
    }
}

/// Settings (`pando.toml`): each table is read, and each thing that is wrong is said.
pub fn settings(data: &[u8]) {
    let settings = Settings::parse(Path::new("pando.toml"), &String::from_utf8_lossy(data));
    for (table, _) in TABLES {
        let (_, problems) = settings.table::<toml::Table>(table);
        assert!(!settings.is_unreadable() || problems.len() == 1);
    }
    let _ = (settings.unknown_tables(), settings.values());
}

/// What users write: sources and names.
pub fn words(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    source::fuzz::syntax(&text);
    if let Ok(name) = text.parse::<GuestName>() {
        assert!(!name.as_ref().contains(['/', '\0', '\n']) && !name.as_ref().starts_with('.'));
    }
}

//! A process that works with a store, to be stopped or killed while it does: this very program, called as `pando-tests
//! store-worker WORK STORE …`.

use pando_store::{LayerId, Store, Taking};
use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

/// The word that makes this program a worker.
pub(crate) const WORD: &str = "store-worker";

/// Does the work; every error ends it with its words.
pub(crate) fn work(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["import", store, tree, told] => import(store, tree, told),
        ["collect", store, told, used @ ..] => collect(store, told, used),
        ["churn", store, trees, told, seed] => churn(store, trees, told, seed),
        other => Err(format!("this is no work: {other:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Done = Result<(), Box<dyn std::error::Error>>;

/// Tells somebody outside that what was asked for is done, by a file that appears as a whole.
fn tell(told: &str, text: &str) -> Done {
    let new = format!("{told}.new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(&new, told)?)
}

fn import(store: &str, tree: &str, told: &str) -> Done {
    let imported = Store::open(Path::new(store))?.import(Path::new(tree), Taking::Copy)?;
    tell(told, &imported.layer.to_string())?;
    // Until somebody has seen it.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn collect(store: &str, told: &str, used: &[&str]) -> Done {
    let used = used.iter().map(|layer| layer.parse()).collect::<Result<HashSet<LayerId>, _>>()?;
    Store::open(Path::new(store))?.exclusive()?.collect(&used)?;
    tell(told, "collected")
}

/// Imports, collects and verifies in an order that looks random, and says which layers are in use, until it is killed.
fn churn(store: &str, trees: &str, told: &str, seed: &str) -> Done {
    let store = Store::open(Path::new(store))?;
    let mut trees: Vec<_> = std::fs::read_dir(trees)?.flatten().map(|entry| entry.path()).collect();
    trees.sort();
    let mut used: HashSet<LayerId> =
        std::fs::read_to_string(told).unwrap_or_default().lines().map(str::parse).collect::<Result<_, _>>()?;
    let mut dice: u64 = seed.parse()?;
    loop {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        match dice % 8 {
            0..=3 => {
                let tree = &trees[(dice >> 8) as usize % trees.len()];
                let imported = store.import(tree, Taking::Copy)?;
                used.insert(imported.layer);
                say(told, &used)?;
            }
            4 | 5 => {
                if let Some(layer) = used.iter().min().copied() {
                    used.remove(&layer);
                    say(told, &used)?;
                }
                store.exclusive()?.collect(&used)?;
            }
            6 => {
                let damages = store.verify()?.damages;
                if !damages.is_empty() {
                    return Err(format!("damage: {damages:?}").into());
                }
            }
            _ => drop(used.iter().next().map(|layer| store.farm(layer)).transpose()?),
        }
    }
}

fn say(told: &str, used: &HashSet<LayerId>) -> Done {
    let lines: Vec<String> = used.iter().map(LayerId::to_string).collect();
    tell(told, &lines.join("\n"))
}

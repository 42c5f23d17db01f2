//! The store after a kill, and after a power cut: what was acknowledged is there, and all that is there is whole.
//!
//! A power cut is a copy of a disk's image while a worker stands still: what the worker's file system has not written
//! to it by then is lost. The harness shows that it would notice, by planting mistakes that must be noticed.

use crate::case::{Case, Tag};
use crate::line::{Line, Started};
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use crate::store_worker::WORD;
use pando_kernel::file::tree_removal::remove_tree;
use pando_store::{LayerId, Store, Taking};
use rustix::process::Signal;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("store::a_power_cut_loses_nothing_acknowledged", a_power_cut_loses_nothing_acknowledged),
    Case::new("store::each_planted_mistake_is_noticed", each_planted_mistake_is_noticed),
    Case::new("store::killed_at_random_moments", |sandbox| killed_at_random(sandbox, 40)),
    Case::new("store::killed_at_300_random_moments", |sandbox| killed_at_random(sandbox, 300)).tags(&[Tag::Slow]),
];

/// Where the power goes: between two steps of an import, and right after its acknowledgement.
const CUTS: [&str; 7] =
    ["store.scanned", "store.staged", "store.synced", "store.renamed", "store.objects", "store.named", "acknowledged"];

fn worker(words: &[&str]) -> Line {
    Line::new(std::env::current_exe().expect("it runs")).args([WORD]).args(words)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the test chose it")
}

/// Nothing is written before somebody asks for it: neither by the clock, nor because a file takes another's name.
const OPTIONS: &str = "commit=600,noauto_da_alloc";

fn disk(scratch: &Path) -> SmallDisk {
    let format = ["mkfs.ext4", "-q", "-F", "-J", "size=4"];
    SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 48, &format, OPTIONS)
}

/// Two trees that share a file and differ in others; each has a file with two names.
fn trees(scratch: &Path) -> [PathBuf; 2] {
    [("first", 1_u8), ("second", 2)].map(|(name, byte)| {
        let tree = scratch.join(name);
        let _ = remove_tree(&tree);
        std::fs::create_dir_all(tree.join("below")).expect("a directory");
        std::fs::write(tree.join("shared"), vec![9; 300_000]).expect("a file");
        for number in 0..12_u8 {
            std::fs::write(tree.join("below").join(number.to_string()), vec![byte * 100 + number; 20_000])
                .expect("a file");
        }
        std::fs::hard_link(tree.join("shared"), tree.join("other-name")).expect("a link");
        tree
    })
}

/// Cuts the power at one place of an import, with a mistake planted; what is wrong afterwards.
fn cut_at(scratch: &Path, place: &str, mistake: &str) -> Result<(), String> {
    let [first, second] = trees(scratch);
    let disk = disk(scratch);
    let store = Store::open(&disk.at.join("store")).expect("a store");
    let kept = store.import(&first, Taking::Copy).expect("a layer").layer;
    Line::new("sync").args(["-f"]).args([&disk.at]).ok();
    let told = scratch.join("told");
    let _ = std::fs::remove_file(&told);
    let store = disk.at.join("store");
    let working = worker(&["import", text(&store), text(&second), text(&told)])
        .env("PANDO_PAUSE_AT", place)
        .env("PANDO_MISTAKE", mistake)
        .start();
    stands_still(&working, &told);
    let afterwards = disk.cut(scratch.join("cut"), scratch.join("afterwards"), OPTIONS);
    process::kill(working.pid());
    drop(working);
    let acknowledged = std::fs::read_to_string(&told).ok().map(|text| text.parse::<LayerId>().expect("a layer"));
    assert_eq!(acknowledged.is_some(), place == "acknowledged");
    look_after(&afterwards.at.join("store"), &second, kept, acknowledged)
}

fn stands_still(working: &Started, told: &Path) {
    eventually("the worker stands still", || told.exists() || process::state(working.pid()) == Some('T'));
}

/// What has to hold when the power is back.
fn look_after(path: &Path, tree: &Path, kept: LayerId, acknowledged: Option<LayerId>) -> Result<(), String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let store = Store::open(path).map_err(|error| words(&error))?;
    for layer in std::iter::once(kept).chain(acknowledged) {
        if !store.has(&layer) {
            return Err(format!("layer {layer} was acknowledged and is gone"));
        }
    }
    whole(&store)?;
    let again = store.import(tree, Taking::Copy).map_err(|error| words(&error))?;
    whole(&store)?;
    links(&store, &again.layer)?;
    drop(again);
    store.exclusive().and_then(|exclusive| exclusive.collect(&HashSet::from([kept]))).map_err(|error| words(&error))?;
    whole(&store)?;
    if store.has(&kept) { Ok(()) } else { Err("a used layer was collected".to_owned()) }
}

fn whole(store: &Store) -> Result<(), String> {
    let verified = store.verify().map_err(|error| error.to_string())?;
    if verified.damages.is_empty() {
        return Ok(());
    }
    Err(format!("{} objects are damaged, the first: {}", verified.damages.len(), verified.damages[0].what))
}

/// Names of one file are names of one file.
fn links(store: &Store, layer: &LayerId) -> Result<(), String> {
    let farm = store.farm(layer).map_err(|error| error.to_string())?;
    let inode = |name: &str| farm.join(name).metadata().map(|found| found.ino()).map_err(|error| error.to_string());
    if inode("shared")? == inode("other-name")? { Ok(()) } else { Err("a hard link was lost".to_owned()) }
}

fn a_power_cut_loses_nothing_acknowledged(sandbox: &Sandbox) {
    for place in CUTS {
        cut_at(&sandbox.scratch(), place, "").unwrap_or_else(|wrong| panic!("power cut at {place}: {wrong}"));
    }
    println!("     the power was cut {} times", CUTS.len());
}

/// How often a planted mistake may go unnoticed.
const TRIES: u32 = 4;

fn each_planted_mistake_is_noticed(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    for (mistake, place) in
        [("NoDataSync", "acknowledged"), ("WrongOrder", "store.named-early"), ("NoDirectorySync", "acknowledged")]
    {
        // On a busy machine the kernel may write by itself meanwhile what was not brought to the disk.
        let noticed = (1..TRIES).fold(cut_at(&scratch, place, mistake), |noticed, _| {
            if noticed.is_err() { noticed } else { cut_at(&scratch, place, mistake) }
        });
        println!(
            "     {mistake}: {}",
            noticed.as_ref().err().map_or("not noticed", |wrong| wrong.split('{').next().unwrap_or_default())
        );
        assert!(noticed.is_err(), "{mistake} was not noticed");
    }
    let [first, second] = trees(&scratch);
    let (store, told) = (scratch.join("store"), scratch.join("told"));
    let kept = Store::open(&store).expect("a store").import(&first, Taking::Copy).expect("a layer").layer;
    let _ = std::fs::remove_file(&told);
    let mistaken = worker(&["import", text(&store), text(&second), text(&told)]).env("PANDO_MISTAKE", "LostHardLink");
    mistaken.ok();
    let wrong = std::fs::read_to_string(&told).expect("it was told").parse().expect("a layer");
    let opened = Store::open(&store).expect("a store");
    assert!(links(&opened, &wrong).is_err(), "LostHardLink was not noticed");
    let used = kept.to_string();
    worker(&["collect", text(&store), text(&told), &used]).env("PANDO_MISTAKE", "CollectUsed").ok();
    let noticed = look_after(&store, &second, kept, None);
    assert!(noticed.is_err(), "CollectUsed was not noticed");
}

fn killed_at_random(sandbox: &Sandbox, kills: u32) {
    let scratch = sandbox.scratch();
    let (store, all, told) = (scratch.join("store"), scratch.join("trees"), scratch.join("used"));
    std::fs::create_dir_all(&all).expect("a directory");
    trees(&all);
    for number in 0..3_u8 {
        let tree = all.join(format!("more-{number}"));
        std::fs::create_dir_all(&tree).expect("a directory");
        std::fs::write(tree.join("shared"), vec![9; 300_000]).expect("a file");
        std::fs::write(tree.join("own"), vec![number; 50_000]).expect("a file");
    }
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
    for kill in 0..kills {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        let seed = (dice | 1).to_string();
        let working = worker(&["churn", text(&store), text(&all), text(&told), &seed]).start();
        std::thread::sleep(Duration::from_micros(2_000 + dice % 60_000));
        working.signal(Signal::KILL);
        // What it was killed by is what it ended by: it found nothing wrong itself.
        working.wait().ended_with(137);
        let opened = Store::open(&store).expect("a store");
        whole(&opened).unwrap_or_else(|wrong| panic!("kill {kill}: {wrong}"));
        for layer in std::fs::read_to_string(&told).unwrap_or_default().lines() {
            let layer: LayerId = layer.parse().expect("a layer");
            assert!(opened.has(&layer), "kill {kill}: layer {layer} was said to be in use and is gone");
            opened.farm(&layer).unwrap_or_else(|wrong| panic!("kill {kill}: {wrong}"));
        }
    }
    println!("     killed {kills} times");
}

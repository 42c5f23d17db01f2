//! The corpus and the seeds of every target, without a fuzzer: what once broke a promise does not again.

use cap::Cap;
use pando_fuzz::{MOST_MEMORY, TARGETS};
use std::alloc::System;
use std::collections::BTreeSet;
use std::path::Path;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// A corpus is read in seconds, and kept small: a target's is no larger.
const MOST: usize = 32 << 10;

fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let read =
        entries.map(|entry| (entry.path().display().to_string(), std::fs::read(entry.path()).expect("it is read")));
    let mut all: Vec<_> = read.collect();
    all.sort();
    all
}

#[test]
fn every_input_that_is_kept_keeps_its_promise() {
    MEMORY.set_limit(MEMORY.allocated() + MOST_MEMORY).unwrap();
    for target in TARGETS {
        let seeds = (target.seeds)().into_iter().enumerate().map(|(number, seed)| (format!("seed {number}"), seed));
        for (name, input) in seeds.chain(files(&target.corpus())) {
            // Told first: what ends the program says nothing more.
            eprintln!("{}: {name}, {} bytes", target.name, input.len());
            (target.run)(&input);
        }
        (target.run)(&[]);
    }
}

#[test]
fn each_target_has_a_small_corpus_and_each_corpus_a_target() {
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len(), "two targets have one name");
    for target in TARGETS {
        let files = files(&target.corpus());
        let size: usize = files.iter().map(|(_, input)| input.len()).sum();
        assert!(!files.is_empty() && size <= MOST, "{}: {} files, {size} bytes", target.name, files.len());
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let found = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(found.collect::<BTreeSet<_>>(), names);
}

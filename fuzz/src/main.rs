//! A fuzz target under libFuzzer, whose options this program takes. `PANDO_FUZZ_TARGET` says which; its seeds are
//! written to `PANDO_FUZZ_SEEDS` first.

#![no_main]

use cap::Cap;
use libfuzzer_sys::fuzz_target;
use pando_fuzz::{MOST_MEMORY, Target};
use std::alloc::System;
use std::path::Path;
use std::sync::OnceLock;

/// Whoever wants more ends the program, which libFuzzer takes for a find.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

fn target() -> &'static Target {
    static CHOSEN: OnceLock<&Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("PANDO_FUZZ_TARGET").unwrap_or_default();
        Target::named(&name).unwrap_or_else(|| {
            let all: Vec<_> = pando_fuzz::TARGETS.iter().map(|target| target.name).collect();
            eprintln!("PANDO_FUZZ_TARGET has to be one of: {}", all.join(" "));
            std::process::exit(2)
        })
    })
}

fn begin() {
    if let Ok(place) = std::env::var("PANDO_FUZZ_SEEDS") {
        for (number, seed) in (target().seeds)().into_iter().enumerate() {
            std::fs::write(Path::new(&place).join(format!("seed-{number}")), seed).expect("a directory for seeds");
        }
    }
    MEMORY.set_limit(MEMORY.allocated() + MOST_MEMORY).expect("more than there is");
}

fuzz_target!(init: begin(), |data: &[u8]| (target().run)(data));

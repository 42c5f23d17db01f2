//! Compiles what is measured inside and outside of a guest: static, so that it is the same program in both.

use std::path::PathBuf;
use std::process::Command;

const SOURCES: [&str; 3] = ["lm.c", "alone.c", "processes.c"];

fn main() {
    let sources = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("lmbench");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed={}", sources.display());
    let mut line = Command::new("cc");
    line.args(["-static", "-O2", "-Wall", "-Wextra", "-o"]).arg(out.join("lm"));
    let ended = line.args(SOURCES.map(|file| sources.join(file))).status();
    let ended = ended.unwrap_or_else(|error| panic!("cc cannot be run ({error}); is gcc installed?"));
    assert!(ended.success(), "compiling {SOURCES:?} failed");
}

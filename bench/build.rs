//! Compiles the programs that are measured: static, so that they are the same inside and outside of a guest.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let directory = |name| PathBuf::from(std::env::var_os(name).expect("cargo sets it"));
    let (here, out) = (directory("CARGO_MANIFEST_DIR"), directory("OUT_DIR"));
    compile(&here.join("lmbench"), &["lm.c", "alone.c", "processes.c"], &out.join("lm"));
    compile(&here.join("forked"), &["forked.c"], &out.join("forked"));
}

fn compile(directory: &Path, sources: &[&str], program: &Path) {
    println!("cargo::rerun-if-changed={}", directory.display());
    let mut line = Command::new("cc");
    line.args(["-static", "-O2", "-Wall", "-Wextra", "-o"]).arg(program);
    let ended = line.args(sources.iter().map(|file| directory.join(file))).status();
    let ended = ended.unwrap_or_else(|error| panic!("cc cannot be run ({error}); is gcc installed?"));
    assert!(ended.success(), "compiling {sources:?} failed");
}

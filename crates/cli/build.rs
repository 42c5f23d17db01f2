//! Builds the front, code that runs before the C library, and makes the command begin with it: one object that shows
//! its entry and the place of its handover, and that needs nothing but the C library's own entry.

use pando_freestanding::{Kind, build};
use std::path::PathBuf;
use std::process::Command;

const ENTRY: &str = "pando_begin";
const HANDOVER: &str = "PANDO_HANDOVER";

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let archive = build("front", Kind::Library);
    // Its memory routines are the shim's.
    println!("cargo:rerun-if-changed=../shim/src/memory.rs");
    let (whole, object) = (out.join("front-whole.o"), out.join("front.o"));
    run(Command::new("ld").args(["-r", "--gc-sections", "-e", ENTRY, "-u", ENTRY, "-o"]).arg(&whole).arg(archive));
    // They have the names of the C library's, which are not there yet when the front runs.
    let kept = [ENTRY, HANDOVER].map(|symbol| format!("--keep-global-symbol={symbol}"));
    run(Command::new("objcopy").args(kept).arg("--strip-debug").args([&whole, &object]));
    let missing = run(Command::new("nm").args(["--undefined-only", "--format=just-symbols"]).arg(&object));
    assert_eq!(missing.trim(), "_start", "the front must stand alone until it hands over");
    println!("cargo:rustc-link-arg={}", object.display());
    println!("cargo:rustc-link-arg=-Wl,-e,{ENTRY}");
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed: {said}{complained}");
    said.into_owned()
}

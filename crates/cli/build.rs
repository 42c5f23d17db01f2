//! Builds the front, code that runs before the C library, and makes the command begin with it: one object that shows its entry and the place of its
//! handover, and that needs nothing but the C library's own entry.

use std::path::{Path, PathBuf};
use std::process::Command;

const ENTRY: &str = "pando_begin";
const HANDOVER: &str = "PANDO_HANDOVER";

fn main() {
    let front = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../front");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for source in ["src", "Cargo.toml", ".cargo/config.toml", "../seed/src/memory.rs"] {
        println!("cargo:rerun-if-changed={}", front.join(source).display());
    }
    let archive = archive(&front, &out.join("front"));
    let (whole, object) = (out.join("front-whole.o"), out.join("front.o"));
    run(Command::new("ld").args(["-r", "--gc-sections", "-e", ENTRY, "-u", ENTRY, "-o"]).arg(&whole).arg(archive));
    // Its memory routines have the names of the C library's, which are not there yet when it runs.
    let kept = [ENTRY, HANDOVER].map(|symbol| format!("--keep-global-symbol={symbol}"));
    run(Command::new("objcopy").args(kept).arg("--strip-debug").args([&whole, &object]));
    let missing = run(Command::new("nm").args(["--undefined-only", "--format=just-symbols"]).arg(&object));
    assert_eq!(missing.trim(), "_start", "the front must stand alone until it hands over");
    println!("cargo:rustc-link-arg={}", object.display());
    println!("cargo:rustc-link-arg=-Wl,-e,{ENTRY}");
}

/// The front as a static library.
fn archive(front: &Path, target_directory: &Path) -> PathBuf {
    let target = std::env::var("TARGET").expect("cargo sets it");
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .args(["rustc", "--release", "--quiet", "--lib", "--crate-type", "staticlib", "--features", "program"])
        .args(["--target", &target, "--target-dir"])
        .arg(target_directory)
        .current_dir(front)
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS");
    // The outer build's flags and profiles are for programs with a C library; this one's stand in its own files.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.ends_with("RUSTFLAGS") || text.starts_with("CARGO_PROFILE_") {
            cargo.env_remove(&name);
        }
    }
    run(&mut cargo);
    target_directory.join(target).join("release/libpando_front.a")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} failed: {said}{complained}");
    said.into_owned()
}

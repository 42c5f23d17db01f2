//! Builds the restorer, a program without std, so that it can be embedded in this crate. It has a workspace of its own.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let restorer = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../restorer");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let target = std::env::var("TARGET").expect("cargo sets it");
    println!("cargo:rerun-if-changed={}", restorer.join("src").display());
    println!("cargo:rerun-if-changed={}", restorer.join("Cargo.toml").display());
    println!("cargo:rerun-if-changed={}", restorer.join(".cargo/config.toml").display());
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .args(["build", "--release", "--quiet", "--features", "program", "--target", &target, "--target-dir"])
        .arg(out.join("restorer"))
        .current_dir(&restorer)
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS");
    // The outer build's flags and profiles are for programs with a C library; this one's stand in its own files.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.ends_with("RUSTFLAGS") || text.starts_with("CARGO_PROFILE_") {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "building the restorer in {} failed", restorer.display());
    println!(
        "cargo:rustc-env=PANDO_RESTORER={}",
        out.join("restorer").join(&target).join("release/pando-restorer").display()
    );
}

//! Builds Pando's freestanding programs, those without std and without a C library, for the build scripts of the crates
//! that embed them.
//!
//! Each has a workspace of its own, since it needs other flags and another way to panic than the rest: so a build
//! script calls cargo for it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What is made of a freestanding crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program.
    Program,
    /// A static library.
    Library,
}

/// Builds the crate `pando-NAME` in `../NAME`, seen from the crate whose build script this is, and says where the
/// outcome is. It is built again when its sources change.
///
/// # Panics
///
/// When it cannot be built: a build script has no better way to say so.
pub fn build(name: &str, kind: Kind) -> PathBuf {
    let directory = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..").join(name);
    let (out, target) = (PathBuf::from(variable("OUT_DIR")).join(name), variable("TARGET"));
    for source in ["src", "Cargo.toml", ".cargo/config.toml"] {
        println!("cargo:rerun-if-changed={}", directory.join(source).display());
    }
    let mut cargo = Command::new(variable("CARGO"));
    match kind {
        Kind::Program => cargo.arg("build"),
        Kind::Library => cargo.args(["rustc", "--lib", "--crate-type", "staticlib"]),
    };
    cargo.args(["--release", "--quiet", "--features", "program", "--target", &target, "--target-dir"]).arg(&out);
    cargo.current_dir(&directory).env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS");
    // The outer build's flags and profiles are for programs with a C library; this one's stand in its own files.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.ends_with("RUSTFLAGS") || text.starts_with("CARGO_PROFILE_") {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "building {} failed", directory.display());
    outcome(&out.join(target).join("release"), name, kind)
}

fn outcome(directory: &Path, name: &str, kind: Kind) -> PathBuf {
    directory.join(match kind {
        Kind::Program => format!("pando-{name}"),
        Kind::Library => format!("libpando_{name}.a"),
    })
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}

//! Builds the shim, so that it can be embedded in this crate.

use pando_freestanding::{Kind, build};

fn main() {
    println!("cargo:rustc-env=PANDO_SHIM={}", build("shim", Kind::Program).display());
}

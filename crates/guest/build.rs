//! Builds the seed, so that it can be embedded in this crate.

use pando_freestanding::{Kind, build};

fn main() {
    println!("cargo:rustc-env=PANDO_SEED={}", build("seed", Kind::Program).display());
}

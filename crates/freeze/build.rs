//! Builds the restorer, so that it can be embedded in this crate.

use pando_freestanding::{Kind, build};

fn main() {
    println!("cargo:rustc-env=PANDO_RESTORER={}", build("restorer", Kind::Program).display());
}

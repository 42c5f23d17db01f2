//! Names the shared library by the number that changes with its interface.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpando.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}

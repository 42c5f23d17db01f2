//! Links the program without a C library, without a dynamic linker, and at the address where it stays.

/// As `pando_restorer::REGION`; a build script cannot use the library that it builds.
const REGION: &str = "0x400000000000";

fn main() {
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,norelro"] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    // The two linkers in use name the same thing differently; this one is on every machine that has a C compiler.
    println!("cargo:rustc-link-arg-bins=-fuse-ld=bfd");
    println!("cargo:rustc-link-arg-bins=-Wl,-Ttext-segment={REGION}");
    println!("cargo:rerun-if-changed=build.rs");
}

//! Links the program without a C library and without a dynamic linker: a guest's init should cost a few pages, and
//! start in microseconds.

fn main() {
    for argument in
        ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,noseparate-code"]
    {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

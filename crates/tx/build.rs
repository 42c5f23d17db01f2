//! Compiles the BPF programs, for whatever kernel it will be loaded into: the loader fits it.

use std::env;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Where distributions that hold several architectures keep the headers of this one.
    let headers = format!("-I/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    // Line information names files, and is the same wherever the sources lie.
    let here = format!("-ffile-prefix-map={}=.", env::var("CARGO_MANIFEST_DIR")?);
    for program in ["read_set", "gate", "hold"] {
        libbpf_cargo::SkeletonBuilder::new()
            .source(format!("bpf/{program}.bpf.c"))
            .obj(out.join(format!("{program}.bpf.o")))
            .clang_args(["-Wall", "-mcpu=v3", headers.as_str(), here.as_str()])
            .build()?;
    }
    Ok(())
}

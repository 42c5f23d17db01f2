//! Compiles the programs that attack: static, so that they run in every guest.

use std::path::PathBuf;
use std::process::Command;

const ATTACK: [&str; 5] = ["main.c", "calls.c", "files.c", "neighbours.c", "published.c"];
const PROGRAM32: &str = "program32.c";

fn main() {
    let sources = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("attacks");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed={}", sources.display());
    let compile = |output: &str, options: &[&str], files: &[&str]| {
        let mut line = Command::new("cc");
        line.args(["-static", "-O1", "-Wall", "-Wextra"]).args(options).arg("-o").arg(out.join(output));
        let ended = line.args(files.iter().map(|file| sources.join(file))).status();
        let ended = ended.unwrap_or_else(|error| panic!("cc cannot be run ({error}); is gcc installed?"));
        assert!(ended.success(), "compiling {files:?} failed");
    };
    compile("attack", &[], &ATTACK);
    compile("burglar", &[], &["burglar.c"]);
    compile("standing", &["-pthread"], &["standing.c"]);
    compile("kept", &[], &["kept.c"]);
    compile("keys", &[], &["keys.c"]);
    compile("filtered", &["-pthread"], &["filtered.c"]);
    compile(
        "program32",
        &["-m32", "-ffreestanding", "-nostdlib", "-fno-pie", "-no-pie", "-fno-stack-protector"],
        &[PROGRAM32],
    );
}

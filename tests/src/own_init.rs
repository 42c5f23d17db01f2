//! Guests on the small tree that boot an init of their own.

use crate::line::Line;
use crate::sandbox::Sandbox;
use std::fs::{Permissions, create_dir_all, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Makes a guest whose init is a script, and starts it. It ends when it is told to.
#[track_caller]
pub(crate) fn scripted(sandbox: &Sandbox, name: &str, script: &str) {
    scripted_with(sandbox, name, script, &[]);
}

/// The same with more options.
#[track_caller]
pub(crate) fn scripted_with(sandbox: &Sandbox, name: &str, script: &str, options: &[&str]) {
    let tree = tree(sandbox, name);
    let script = format!("#!/bin/sh\ntrap 'exit 0' TERM\n{script}\nwhile :; do sleep 0.1; done\n");
    program(tree.join("bin/own-init"), &script);
    let own = ["--init", "/bin/own-init", "--stop-signal", "TERM", "--start"];
    sandbox.pando(["create", name, "--from", &tree.to_string_lossy()].into_iter().chain(own)).args(options).ok();
}

/// Makes a guest that boots busybox's init, with a script that it runs first and one that it keeps running, and starts
/// it.
#[track_caller]
pub(crate) fn booted(sandbox: &Sandbox, name: &str, first: &str, service: &str) {
    let tree = tree(sandbox, name);
    create_dir_all(tree.join("etc")).expect("a directory");
    write(tree.join("etc/inittab"), "::sysinit:/bin/first\n::respawn:/bin/service\n").expect("a file");
    program(tree.join("bin/first"), &format!("#!/bin/sh\n{first}\n"));
    program(tree.join("bin/service"), &format!("#!/bin/sh\n{service}\n"));
    let own = ["--init", "/bin/init", "--start"];
    sandbox.pando(["create", name, "--from", &tree.to_string_lossy()].into_iter().chain(own)).ok();
}

fn tree(sandbox: &Sandbox, name: &str) -> PathBuf {
    let tree = sandbox.scratch().join(name);
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    tree
}

fn program(path: PathBuf, text: &str) {
    write(&path, text).expect("a file");
    set_permissions(&path, Permissions::from_mode(0o755)).expect("a program");
}

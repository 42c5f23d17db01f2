//! A small tree for guests to run on: busybox, and the few files that programs look for.

use pando_kernel::file::tree_removal::TemporaryDirectory;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tree; it goes away with this value.
#[derive(Debug)]
pub(crate) struct BusyboxRoot(TemporaryDirectory);

impl BusyboxRoot {
    /// Makes it beside this program: below the build's own directory.
    pub(crate) fn make() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let beside = program.parent().ok_or(io::ErrorKind::NotFound)?;
        let made = tempfile::Builder::new().prefix("busybox-root-").tempdir_in(beside)?;
        let made = TemporaryDirectory::of(made.keep());
        std::fs::set_permissions(made.path(), PermissionsExt::from_mode(0o755))?;
        fill(made.path())?;
        Ok(Self(made))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

fn fill(root: &Path) -> io::Result<()> {
    for directory in ["bin", "etc", "root", "home/ada", "srv", "var/log", "tmp", "usr/bin"] {
        std::fs::create_dir_all(root.join(directory))?;
    }
    let busybox =
        busybox().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no busybox in the PATH"))?;
    std::fs::copy(&busybox, root.join("bin/busybox"))?;
    let listed = Command::new(&busybox).arg("--list").output()?;
    for applet in String::from_utf8_lossy(&listed.stdout).lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000:Ada:/home/ada:/bin/sh\n")?;
    std::fs::write(root.join("etc/group"), "root:x:0:\nada:x:1000:\nstaff:x:50:ada\n")?;
    std::fs::write(root.join("etc/hostname"), "tree\n")?;
    std::fs::write(root.join("bin/not-a-program"), "neither fish nor flesh")?;
    std::fs::set_permissions(root.join("bin/not-a-program"), PermissionsExt::from_mode(0o644))?;
    std::os::unix::fs::chown(root.join("home/ada"), Some(1000), Some(1000))
}

/// A copy of such a tree that can run python3, as this machine has it: the program, what it is linked with, and its own
/// modules.
pub(crate) fn with_python(root: &Path, copy: &Path) -> io::Result<()> {
    const SCRIPT: &str = r#"
        root=$1 copy=$2
        cp -a "$root" "$copy"
        take() { mkdir -p "$copy${1%/*}"; cp -L "$1" "$copy$1"; }
        modules=$(/usr/bin/python3 -c 'import os; print(os.path.dirname(os.__file__))')
        for library in $(ldd /usr/bin/python3 "$modules"/lib-dynload/*.so | grep -o '[[:space:]]/[^ :]*' | sort -u); do take "$library"; done
        take /usr/bin/python3
        mkdir -p "$copy${modules%/*}"
        cp -a "$modules" "$copy$modules"
        rm -rf "$copy$modules"/config-* "$copy$modules"/test
    "#;
    let done = Command::new("sh").args(["-euc", SCRIPT, "sh"]).args([root, copy]).output()?;
    if done.status.success() { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(&done.stderr))) }
}

fn busybox() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join("busybox")).find(|file| file.is_file())
}

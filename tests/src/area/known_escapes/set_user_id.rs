//! Files of a guest's with a set-user-id bit or capabilities. On the host's disk they may well be root's: what keeps
//! the host's users from them is that nobody but root gets to where they lie, and that what is brought out of a guest
//! has lost both.

use super::table::WALLS;
use crate::area::attacks;
use crate::line::Line;
use crate::sandbox::Sandbox;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Nobody in particular.
const USER: u32 = 65_534;

/// What gives whoever executes it more than he has.
const PLANT: &str = "mkdir -p /srv/d && for at in /srv/root /srv/d/root; do cp /bin/busybox $at && chmod 6755 $at; done; \
                     cp /bin/busybox /srv/able && /bin/attack give-capability /srv/able >/dev/null; chmod 755 /srv/able";

const SET_ID: u32 = 0o6000;

pub(super) fn users_of_the_host(sandbox: &Sandbox) {
    let tree = attacks::tree(sandbox).to_string_lossy().into_owned();
    for wall in WALLS {
        let name = wall.name;
        sandbox.pando(["create", name, "--from", &tree, "--start"]).args(wall.options()).ok();
        sandbox.exec_sh(name, PLANT).ok();
        sandbox.pando(["tx", "run", "-q", "--guest", name, "--", "cp", "-p", "/srv/root", "/srv/committed"]).ok();
        brings_nothing_out(sandbox, name);
        // As image, as clone, as an import, as what other guests are made of.
        sandbox.pando(["freeze", name, "--wait"]).ok();
        sandbox.pando(["clone", name, &format!("{name}-clone")]).ok();
        sandbox.pando(["stop", "-t", "0", name]).ok();
        sandbox.pando(["create", &format!("{name}-copy"), "--from", &format!("guest:{name}")]).ok();
    }
    // A layer made of a tree has it as well.
    let layer = sandbox.scratch().join("layer");
    Line::new("cp").args(["-a", &tree]).args([layer.as_os_str()]).ok();
    sandbox.pando(["run", "--from", &layer.to_string_lossy(), "--", "true"]).ok();
    let state = [sandbox.places().state(), sandbox.places().run()];
    open_the_way(sandbox, &state);
    let there: usize = state.iter().map(|top| set_id_files(top, None).len()).sum();
    assert!(there > 2 * WALLS.len(), "they are there: {there}");
    for top in &state {
        assert_eq!(set_id_files(top, Some(USER)), [""; 0], "a user gets to what would make him root");
    }
    // The control: he would, but for the state's directory and those of guests.
    let guests = sandbox.places().guests();
    for path in std::iter::once(guests.clone())
        .chain(guests.ancestors().skip(1).map(Path::to_owned).take_while(|path| path != sandbox.root()))
    {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is ours");
    }
    for guest in std::fs::read_dir(&guests).expect("there are guests").flatten() {
        for path in [guest.path(), guest.path().join("files")] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is ours");
        }
    }
    assert!(!set_id_files(&guests, Some(USER)).is_empty(), "the search finds nothing: it proves nothing");
}

/// What is above the state is as it is on every machine.
fn open_the_way(sandbox: &Sandbox, state: &[PathBuf]) {
    for top in state {
        for path in top.ancestors().skip(1).take_while(|path| path.starts_with(sandbox.root())) {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("it is ours");
        }
    }
}

/// `pando cp` out of a guest, of a file and of a directory.
fn brings_nothing_out(sandbox: &Sandbox, name: &str) {
    let place = sandbox.scratch().join(format!("out-of-{name}"));
    std::fs::create_dir(&place).expect("a directory");
    for path in ["/srv/root", "/srv/able", "/srv/d"] {
        sandbox.pando(["cp", &format!("{name}:{path}"), &place.to_string_lossy()]).ok();
    }
    for file in ["root", "able", "d/root"] {
        let path = place.join(file);
        let about = std::fs::metadata(&path).expect("it was copied");
        assert_eq!(about.mode() & SET_ID, 0, "{name}: {file} came out with a set-user-id bit");
        let mut room = [0_u8; 64];
        let attribute = rustix::fs::getxattr(&path, "security.capability", &mut room);
        assert_eq!(attribute, Err(rustix::io::Errno::NODATA), "{name}: {file} came out with capabilities");
    }
}

/// The files with such a bit that somebody finds below a directory.
fn set_id_files(top: &Path, user: Option<u32>) -> Vec<String> {
    let mut command = Command::new("find");
    command.arg(top).args(["-xdev", "-type", "f", "-perm", "/6000"]).current_dir("/");
    if let Some(user) = user {
        // This gives up what other groups root has, too.
        command.uid(user).gid(user);
    }
    let found = command.output().expect("find can be started");
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

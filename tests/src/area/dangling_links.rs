//! Links to nothing where Pando puts files of its own, or volumes: what they lead to is made, inside the guest.

use crate::case::Case;
use crate::sandbox::Sandbox;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("dangling::name_servers_are_found", name_servers_are_found),
    Case::new("dangling::volumes_are_mounted", volumes_are_mounted),
    Case::new("dangling::nothing_is_made_on_the_host", nothing_is_made_on_the_host),
    Case::new("dangling::a_ring_is_refused", a_ring_is_refused),
];

/// A copy of the small system, with a link in it.
fn with_link(sandbox: &Sandbox, name: &str, at: &str, to: &str) -> PathBuf {
    let tree = sandbox.scratch().join(name);
    crate::line::Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    let link = tree.join(at);
    let _ = std::fs::remove_file(&link);
    std::fs::create_dir_all(link.parent().expect("it is below the tree")).expect("a directory");
    symlink(to, link).expect("a link");
    tree
}

fn run(sandbox: &Sandbox, tree: &Path, words: &[&str]) -> crate::line::Ended {
    sandbox.pando(["run", "--from"]).args([tree]).args(words).run()
}

fn name_servers_are_found(sandbox: &Sandbox) {
    let ways = ["../run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/stub-resolv.conf", "../../../run/x"];
    for (number, to) in ways.into_iter().enumerate() {
        let tree = with_link(sandbox, &format!("tree{number}"), "etc/resolv.conf", to);
        for net in ["host", "private"] {
            let ended = run(
                sandbox,
                &tree,
                &["--net", net, "--", "sh", "-c", "grep -c . /etc/resolv.conf; test -L /etc/resolv.conf"],
            );
            assert!(ended.code() == 0, "{to}, --net {net}: {}", ended.err());
        }
        let path = tree.to_string_lossy().into_owned();
        sandbox.pando(["create", &format!("web{number}"), "--from", &path, "--net", "host", "--start"]).ok();
    }
}

fn volumes_are_mounted(sandbox: &Sandbox) {
    let tree = with_link(sandbox, "tree", "etc/localtime", "../usr/share/zoneinfo/Nowhere/Never");
    symlink("deep/est", tree.join("srv/first")).expect("a link");
    symlink("../opt/second", tree.join("srv/deep")).expect("a link");
    let (file, directory) = (sandbox.scratch().join("time"), sandbox.scratch().join("shown"));
    std::fs::write(&file, "time\n").expect("a file");
    std::fs::create_dir(&directory).expect("a directory");
    std::fs::write(directory.join("x"), "shown\n").expect("a file");
    let volumes = [format!("{}:/etc/localtime", file.display()), format!("{}:/srv/first/below", directory.display())];
    let script = "cat /etc/localtime /usr/share/zoneinfo/Nowhere/Never /srv/first/below/x /opt/second/est/below/x";
    let ended = run(sandbox, &tree, &["-v", &volumes[0], "-v", &volumes[1], "--", "sh", "-c", script]);
    ended.succeeded().says("time\ntime\nshown\nshown\n");
}

fn nothing_is_made_on_the_host(sandbox: &Sandbox) {
    let outside = sandbox.scratch().join("outside");
    let path = outside.to_string_lossy().into_owned();
    let tree = with_link(sandbox, "tree", "srv/out", &format!("../../../../../../../..{path}/made"));
    let volume = format!("{}:/srv/out", sandbox.scratch().display());
    run(sandbox, &tree, &["-v", &volume, "--", "sh", "-c", &format!("test -d {path}/made && test ! -L {path}")])
        .succeeded();
    assert!(!outside.exists(), "the link led out of the guest");
}

fn a_ring_is_refused(sandbox: &Sandbox) {
    let tree = with_link(sandbox, "tree", "srv/a", "b");
    symlink("a", tree.join("srv/b")).expect("a link");
    let volume = format!("{}:/srv/a", sandbox.scratch().display());
    run(sandbox, &tree, &["-v", &volume, "--", "true"]).ended_with(125).complains_of(&["/srv/a"]);
}

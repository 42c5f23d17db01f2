//! Images of guests: they have the layers of the image that the guest came from, and one of their own.

use crate::area::registry::{WITH_A_REAL_ONE, honest, kept, real};
use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::registry_image::{HERE, Images, busybox, file};
use crate::sandbox::Sandbox;
use crate::tree_state;
use std::path::{Path, PathBuf};

const WITH_ATTRIBUTES: [Need; 5] =
    [WITH_A_REAL_ONE[0], WITH_A_REAL_ONE[1], WITH_A_REAL_ONE[2], WITH_A_REAL_ONE[3], Need::Program("setfattr", "attr")];

pub(crate) const CASES: &[Case] = &[
    Case::new("registry::a_commit_adds_one_layer_to_those_of_its_image", one_layer).needs(&WITH_ATTRIBUTES),
    Case::new("registry::a_commit_of_an_image_with_many_layers_keeps_them", many_layers).needs(&WITH_A_REAL_ONE),
    Case::new("registry::a_name_that_means_gone_in_a_layer_is_refused", whiteout_names).needs(&WITH_A_REAL_ONE),
];

/// Has skopeo unpack an image of a registry as others do; the directory of its tree.
fn unpacked(sandbox: &Sandbox, name: &str, place: &str) -> PathBuf {
    let storage = sandbox.scratch().join(place);
    let (root, run) = (storage.join("root"), storage.join("run"));
    let to = format!("containers-storage:[vfs@{}+{}]unpacked:1", root.display(), run.display());
    let words = ["--insecure-policy", "copy", "--src-tls-verify=false"];
    Line::new("skopeo").args(words).args([format!("docker://{name}"), to]).ok();
    let layers = std::fs::read(root.join("vfs-layers/layers.json")).expect("skopeo writes it");
    let layers: serde_json::Value = serde_json::from_slice(&layers).expect("JSON");
    let layers = layers.as_array().expect("a list");
    let is_top = |layer: &&serde_json::Value| layers.iter().all(|other| other["parent"] != layer["id"]);
    let top = layers.iter().find(is_top).expect("the uppermost layer");
    root.join("vfs/dir").join(top["id"].as_str().expect("a word"))
}

fn lines(tree: &Path) -> Vec<String> {
    // The root's own directory is the storage's.
    tree_state::lines(tree).split_off(1)
}

fn manifest(name: &str) -> serde_json::Value {
    let words = ["inspect", "--tls-verify=false", "--raw"];
    let manifest = Line::new("skopeo").args(words).args([format!("docker://{name}")]).ok();
    serde_json::from_str(&manifest).expect("JSON")
}

/// A guest's image in a registry of which another guest was made.
fn base(sandbox: &Sandbox, name: &str) {
    sandbox.pando(["create", "first", "--from", sandbox.busybox(), "--", "sleep", "1000"]).ok();
    sandbox.pando(["start", "first"]).ok();
    let script = "mkdir -p /srv/d/e /srv/kept; echo one >/srv/d/one; echo two >/srv/d/e/two; echo gone >/srv/gone
        echo a >/srv/a; ln /srv/a /srv/kept/a; echo b >/srv/b; ln /srv/b /srv/parted; ln -s a /srv/s; chown 7:8 /srv/d/one
        echo changed >/srv/same; touch -d 2001-01-01 /srv/same; echo file >/srv/turned; echo mode >/srv/mode; echo deep >/srv/kept/x";
    sandbox.exec_sh("first", script).ok();
    sandbox.pando(["kill", "first"]).ok();
    sandbox.becomes("first", "stopped");
    sandbox.pando(["commit", "first", name]).ok();
    sandbox.pando(["push", name]).ok();
    sandbox.pando(["image", "rm", name]).ok();
    sandbox.pando(["rm", "first"]).ok();
}

/// Every kind of change.
const CHANGES: &str = "rm -r /srv/d /srv/gone; mkdir /srv/d; echo new >/srv/d/new; echo more >>/srv/a
    rm /srv/parted; echo b >/srv/parted; ln -s b /srv/t; rm /srv/s; ln -s b /srv/s
    echo CHANGED >/srv/same; touch -d 2001-01-01 /srv/same; rm /srv/turned; mkdir /srv/turned; echo in >/srv/turned/in
    echo h >/srv/h1; ln /srv/h1 /srv/h2; chown 5:6 /srv/h1; chmod 4711 /srv/h1; chmod 600 /srv/mode; chown 9:9 /srv/mode
    echo odd >\"/srv/an odd \\name\"; mv /srv/kept /srv/moved; mkfifo /srv/fifo";

fn one_layer(sandbox: &Sandbox) {
    let (_server, registry) = real(sandbox);
    let name = |tag: &str| format!("{registry}/team/app:{tag}");
    base(sandbox, &name("1"));
    sandbox.pando(["create", "web", "--from", &name("1"), "--", "sleep", "1000"]).ok();
    // Nothing is new: there is no layer of it.
    sandbox.pando(["commit", "web", &name("same")]).ok();
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", CHANGES).ok();
    sandbox.pando(["kill", "web"]).ok();
    sandbox.becomes("web", "stopped");
    let own = PathBuf::from(sandbox.inspect("web")["directory"].as_str().expect("a path")).join("files/upper/srv/h1");
    Line::new("setfattr").args(["-n", "user.colour", "-v", "green"]).args([own]).ok();
    let committed = sandbox.pando(["commit", "web", &name("2")]).run().succeeded();
    assert!(committed.err().contains("2 layers"), "{}", committed.err());
    // Whenever it is made it is the same.
    sandbox.pando(["commit", "web", &name("again")]).ok();
    let listed: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["images", "--sources", "--json"]).ok()).expect("JSON");
    let digest = |tag: &str| {
        let images = listed.as_array().expect("a list").iter();
        images.clone().find(|image| image["reference"] == name(tag)).map(|image| image["digest"].clone())
    };
    assert_eq!(digest("2"), digest("again"));
    // A push sends its layer and its configuration, and nothing that the registry has.
    let log = || std::fs::read_to_string(sandbox.scratch().join("registry.log")).expect("it writes one");
    let sent = |log: &str| log.lines().filter(|line| line.contains("PUT /v2/team/app/blobs/uploads")).count();
    let before = sent(&log());
    sandbox.pando(["push", &name("2")]).ok();
    assert_eq!(sent(&log()) - before, 2);
    let (old, new) = (manifest(&name("1")), manifest(&name("2")));
    assert_eq!(new["layers"][0]["digest"], old["layers"][0]["digest"]);
    assert_eq!(new["layers"].as_array().map(Vec::len), Some(2));
    sandbox.pando(["push", &name("same")]).ok();
    assert_eq!(manifest(&name("same"))["layers"].as_array().map(Vec::len), Some(1));
    // A copy of the guest came from no image that is here: its image is one layer, and shows others the same.
    sandbox.pando(["image", "rm", &name("2"), &name("again")]).ok();
    sandbox.pando(["create", "copy", "--from", "guest:web"]).ok();
    let committed = sandbox.pando(["commit", "copy", &name("whole")]).run().succeeded();
    assert!(committed.err().contains("1 layer,"), "{}", committed.err());
    sandbox.pando(["push", &name("whole")]).ok();
    let (layered, whole) = (unpacked(sandbox, &name("2"), "layered"), unpacked(sandbox, &name("whole"), "whole"));
    let shown = lines(&layered);
    assert_alike(&shown, &lines(&whole));
    let has = |words: &[&str]| {
        let fits = |line: &&String| words.iter().all(|word| line.contains(word));
        assert!(shown.iter().any(|line| fits(&line)), "{words:?} is not among\n{}", shown.join("\n"));
    };
    has(&["/srv/h1 104711 5:6", "user.colour", "srv/h1=srv/h2"]);
    has(&["/srv/a 100644", "srv/a=srv/moved/a"]);
    has(&["/srv/mode 100600 9:9"]);
    assert!(!shown.iter().any(|line| line.contains("/srv/d/e") || line.contains("/srv/gone") || line.contains(".wh.")));
    // What comes back here is the same.
    let look = "cat /srv/a /srv/same /srv/d/*; ls /srv; stat -c '%a %u:%g %h' /srv/h1";
    let expected = "a\nmore\nCHANGED\nnew\na\nan odd \\name\nb\nd\nfifo\nh1\nh2\nmode\nmoved\nparted\ns\nsame\nt\nturned\n4711 5:6 2\n";
    sandbox.pando(["run", "--from", &name("2"), "--", "sh", "-c", look]).run().succeeded().says(expected);
    assert_eq!(kept(sandbox).iter().filter(|name| name.starts_with('.')).count(), 0);
}

fn assert_alike(one: &[String], other: &[String]) {
    let missing = |from: &[String], of: &[String]| {
        of.iter().filter(|line| !from.contains(line)).cloned().collect::<Vec<_>>().join("\n")
    };
    assert!(one == other, "only layered:\n{}\nonly whole:\n{}", missing(other, one), missing(one, other));
}

fn many_layers(sandbox: &Sandbox) {
    let mut images = Images::default();
    let layers: Vec<_> = ["a", "b", "c"].map(|name| file(sandbox, name, name)).into();
    images.add("1", HERE, &[&[busybox(sandbox)][..], &layers].concat(), "cat /srv/*");
    let server = honest(sandbox, &images);
    let name = format!("{}/app:1", server.name());
    sandbox.pando(["create", "web", "--from", &name]).ok();
    let new = sandbox.scratch().join("new");
    std::fs::write(&new, "d").expect("a file");
    sandbox.pando(["cp", &new.to_string_lossy(), "web:/srv/d"]).ok();
    let committed = sandbox.pando(["commit", "web", "mine:2"]).run().succeeded();
    assert!(committed.err().contains("5 layers"), "{}", committed.err());
    // A guest of that one adds another.
    sandbox.pando(["create", "next", "--from", "mine:2"]).ok();
    sandbox.pando(["cp", &new.to_string_lossy(), "next:/srv/e"]).ok();
    assert!(sandbox.pando(["commit", "next", "mine:3"]).run().succeeded().err().contains("6 layers"));
    sandbox.pando(["run", "--from", "mine:3", "--", "sh", "-c", "cat /srv/*"]).run().succeeded().says("abcdd");
    // The image has gone, and so have its layers: then it is one.
    sandbox.pando(["image", "rm", &name, "mine:2", "mine:3"]).ok();
    assert!(sandbox.pando(["commit", "web", "mine:4"]).run().succeeded().err().contains("1 layer,"));
    assert_eq!(kept(sandbox).len(), 1);
}

fn whiteout_names(sandbox: &Sandbox) {
    sandbox.pando(["create", "web", "--from", sandbox.busybox()]).ok();
    let odd = sandbox.scratch().join(".wh.busybox");
    std::fs::write(&odd, "").expect("a file");
    sandbox.pando(["cp", &odd.to_string_lossy(), "web:/bin/.wh.busybox"]).ok();
    let refused = sandbox.pando(["commit", "web", "mine:1"]).run().ended_with(125);
    refused.complains_of(&["bin/.wh.busybox", "rename or remove it"]);
    assert_eq!(kept(sandbox), [""; 0]);
}

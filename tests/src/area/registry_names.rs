//! What images of registries are called here: further names, and the words of other tools.

use crate::area::registry::{NEEDS, honest, kept};
use crate::case::Case;
use crate::need::Need;
use crate::registry_image::{HERE, Images, busybox};
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("registry::an_image_may_have_further_names", further_names).needs(&NEEDS),
    Case::new("registry::words_of_docker_about_images_are_answered", words).needs(&[Need::Root]),
];

fn further_names(sandbox: &Sandbox) {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "echo one");
    images.add("2", HERE, &[busybox(sandbox)], "echo two");
    let server = honest(sandbox, &images);
    let name = |tag: &str| format!("{}/app:{tag}", server.name());
    sandbox.pando(["pull", &name("1"), &name("2")]).ok();
    let tag = |image: &str, to: &str| sandbox.pando(["image", "tag", image, to]).run();
    tag("nobody/nothing", "mine").ended_with(125).complains_of(&["nobody/nothing", "images --sources"]);
    let digest = format!("mine@sha256:{}", "a".repeat(64));
    tag(&name("1"), &digest).ended_with(125).complains_of(&["give it a tag"]);
    tag(&name("1"), "mine").succeeded().says("docker.io/library/mine:latest\n");
    assert_eq!(kept(sandbox).len(), 3);
    // The same files: no byte more.
    let blobs = |reference: &str| {
        let named = sandbox.places().pulled().join(pando_digest(reference)).join("blobs/sha256");
        let entries = std::fs::read_dir(named).expect("a layout").flatten();
        let mut inodes: Vec<u64> =
            entries.map(|entry| std::os::unix::fs::MetadataExt::ino(&entry.metadata().expect("a blob"))).collect();
        inodes.sort_unstable();
        inodes
    };
    assert_eq!(blobs(&name("1")), blobs("docker.io/library/mine:latest"));
    // Each is whole without the other, also for the next daemon.
    sandbox.pando(["image", "rm", &name("1")]).ok();
    sandbox.end_daemon();
    sandbox.pando(["run", "--from", "mine"]).run().succeeded().says("one\n");
    let listed = sandbox.pando(["images", "--sources"]).ok();
    assert!(listed.contains("PULLED") && listed.contains("docker.io/library/mine:latest"), "{listed}");
    // A name that another image had is that one's no more.
    tag(&name("2"), "mine:latest").succeeded();
    sandbox.pando(["run", "--from", "mine"]).run().succeeded().says("two\n");
    assert_eq!(kept(sandbox).len(), 2);
    sandbox.pando(["image", "delete", "mine"]).ok();
    assert_eq!(kept(sandbox).len(), 1);
}

/// The name of the directory in which an image lies.
fn pando_digest(reference: &str) -> String {
    crate::registry_image::digest(reference.as_bytes()).trim_start_matches("sha256:").to_owned()
}

fn words(sandbox: &Sandbox) {
    let answer = |words: &[&str]| sandbox.pando(words).run();
    answer(&["rmi", "web"]).ended_with(125).complains_of(&["pando image rm"]);
    answer(&["tag", "web", "other"]).ended_with(125).complains_of(&["pando image tag"]);
    answer(&["image", "list"]).succeeded();
    answer(&["image", "remove", "web"]).ended_with(125).complains_of(&["web"]);
}

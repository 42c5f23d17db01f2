//! Images of registries that nobody uses, and what pando.toml says of them.

use crate::area::registry::{NEEDS, honest, kept};
use crate::case::Case;
use crate::patience::eventually;
use crate::registry_image::{HERE, Images, busybox, digest, file};
use crate::sandbox::Sandbox;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const CASES: &[Case] = &[
    Case::new("registry::images_that_nobody_uses_go_by_age_and_by_size", bounded).needs(&NEEDS),
    Case::new("registry::a_bound_of_images_that_says_nothing_is_told", nonsense).needs(&[NEEDS[0]]),
];

/// Has the daemon believe that an image was used last so many seconds ago.
fn used(sandbox: &Sandbox, name: &str, ago: u64) {
    let directory = digest(name.as_bytes()).trim_start_matches("sha256:").to_owned();
    let path = sandbox.places().pulled().join(directory).join("pulled.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect("a record")).expect("JSON");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    record["used"] = (now - ago).into();
    std::fs::write(path, record.to_string()).expect("it is ours");
}

fn names(sandbox: &Sandbox) -> String {
    sandbox.pando(["images", "--sources", "--quiet"]).ok()
}

fn bounded(sandbox: &Sandbox) {
    let mut images = Images::default();
    let large = |name: &str| file(sandbox, name, &name.repeat(8 << 20));
    images.add("a", HERE, &[busybox(sandbox)], "true");
    images.add("b", HERE, &[busybox(sandbox), large("b")], "true");
    images.add("c", HERE, &[busybox(sandbox), large("c")], "true");
    let server = honest(sandbox, &images);
    let [a, b, c] = ["a", "b", "c"].map(|tag| format!("{}/app:{tag}", server.name()));
    sandbox.pando(["pull", &a, &b, &c]).ok();
    sandbox.pando(["create", "web", "--from", &a, "--start", "--", "sleep", "1000"]).ok();
    sandbox.end_daemon();
    // All were used long ago. What a guest stands on stays, and so does what was used a moment ago.
    used(sandbox, &a, 200_000);
    used(sandbox, &b, 200_000);
    sandbox.settings("[images]\nkeep = \"1d\"\n");
    eventually("the one that nobody uses goes", || !names(sandbox).contains(&b));
    assert_eq!(names(sandbox), format!("{a}\n{c}\n"));
    // Two that are young enough, and too large together.
    sandbox.pando(["pull", &b]).ok();
    sandbox.end_daemon();
    used(sandbox, &b, 2000);
    used(sandbox, &c, 4000);
    sandbox.settings("[images]\nkeep = \"14M, 1d\"\n");
    eventually("the one that was used less lately goes", || !names(sandbox).contains(&c));
    assert_eq!(names(sandbox), format!("{a}\n{b}\n"));
    assert_eq!(kept(sandbox).len(), 2);
    assert_eq!(sandbox.state("web"), "running");
}

fn nonsense(sandbox: &Sandbox) {
    sandbox.pando(["ls"]).ok();
    sandbox.settings("[images]\nkeep = \"much\"\n");
    let said = sandbox.pando(["daemon", "reload"]).run();
    assert!(said.err().contains("much") && said.err().contains("30d"), "{}{}", said.out(), said.err());
}

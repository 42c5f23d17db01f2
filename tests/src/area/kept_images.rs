//! Images on the disk: they outlive holder and daemon, nothing damaged is used, and they go from one machine to
//! another.

use crate::area::clones::count;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use crate::teardown::tear_down;
use crate::world::World;
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("kept_images::an_image_outlives_its_holder_and_the_daemon", an_image_outlives_its_holder_and_the_daemon),
    Case::new("kept_images::a_damaged_image_is_refused", a_damaged_image_is_refused),
    Case::new("kept_images::an_image_moves_to_another_root", an_image_moves_to_another_root)
        .needs(&[Need::Program("tar", "tar")]),
    Case::new("kept_images::what_is_no_export_is_refused", what_is_no_export_is_refused),
    Case::new(
        "kept_images::an_image_in_memory_alone_ends_with_its_holder",
        an_image_in_memory_alone_ends_with_its_holder,
    ),
    Case::new("kept_images::a_daemon_killed_while_it_writes", a_daemon_killed_while_it_writes),
];

/// Counts in a variable, and leaves the count where it can be seen. What it wrote before it was frozen is told by a
/// file.
const COUNTER: &str =
    "echo once >>/begun; n=0; while :; do n=$((n+1)); echo $n >/count.new; mv /count.new /count; sleep 0.05; done";

#[track_caller]
fn counter(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sh", "-c", COUNTER]);
    eventually("it counts", || count(sandbox, "web") > 5);
}

/// A clone that counts on from where it was frozen.
#[track_caller]
fn clone_counts_on(sandbox: &Sandbox, image: &str, name: &str) {
    assert_eq!(sandbox.pando(["clone", image, name]).ok(), format!("{name}\n"));
    let first = count(sandbox, name);
    assert!(first > 5, "it began anew: {first}");
    eventually("the clone counts on", || count(sandbox, name) > first);
    assert_eq!(sandbox.exec_sh(name, "cat /begun").ok(), "once\n");
    assert_eq!(sandbox.exec_sh(name, "hostname").ok().trim(), name);
}

#[track_caller]
fn inspected(sandbox: &Sandbox, image: &str) -> serde_json::Value {
    serde_json::from_str(&sandbox.pando(["image", "inspect", image]).ok()).expect("inspect prints JSON")
}

fn directory(sandbox: &Sandbox, image: &str) -> PathBuf {
    sandbox.places().images().join(image)
}

fn an_image_outlives_its_holder_and_the_daemon(sandbox: &Sandbox) {
    counter(sandbox);
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    sandbox.pando(["rm", "web"]).ok();
    let holder = inspected(sandbox, "warm")["holder"].as_i64().expect("a pid");
    process::kill(i32::try_from(holder).expect("a pid fits"));
    clone_counts_on(sandbox, "warm", "one");
    sandbox.end_daemon();
    let listed = sandbox.pando(["images"]).ok();
    assert!(listed.contains("warm") && listed.contains("disk"), "{listed}");
    assert_eq!(inspected(sandbox, "warm")["status"]["held"], false);
    clone_counts_on(sandbox, "warm", "two");
    if let Some(daemon) = sandbox.daemon() {
        process::kill(daemon);
        eventually("the daemon has ended", || !process::is_alive(daemon));
    }
    clone_counts_on(sandbox, "warm", "three");
    sandbox.pando(["clone", "warm", "-n", "3"]).ok();
    sandbox.pando(["image", "rm", "warm"]).ok();
    assert!(!directory(sandbox, "warm").exists());
    let seen = count(sandbox, "one");
    eventually("a clone lives on without its image", || count(sandbox, "one") > seen);
}

/// Every file of an image with a byte changed, cut short, or gone.
fn a_damaged_image_is_refused(sandbox: &Sandbox) {
    counter(sandbox);
    sandbox.pando(["freeze", "web", "warm", "--wait"]).ok();
    sandbox.pando(["stop", "web"]).ok();
    for file in ["about", "tree", "memory"] {
        let path = directory(sandbox, "warm").join(file);
        let whole = std::fs::read(&path).expect("a file of the image");
        for damage in 0..3 {
            sandbox.end_daemon();
            match damage {
                0 => {
                    let mut changed = whole.clone();
                    let place = 4096 + (whole.len() - 4096) / 2;
                    changed[place] ^= 1;
                    std::fs::write(&path, changed).expect("it is damaged");
                }
                1 => std::fs::write(&path, &whole[..whole.len() - 10]).expect("it is cut short"),
                _ => std::fs::remove_file(&path).expect("it is removed"),
            }
            let refused = sandbox.pando(["clone", "warm", "one"]).run().ended_with(125);
            refused.complains_of(&["warm", "cannot be used", file]);
            assert_eq!(sandbox.state("one"), "absent");
            std::fs::write(&path, &whole).expect("it is put back");
        }
    }
    sandbox.end_daemon();
    clone_counts_on(sandbox, "warm", "one");
    sandbox.pando(["rm", "--force", "one"]).ok();
    // One that nobody can read is removed all the same.
    sandbox.end_daemon();
    std::fs::write(directory(sandbox, "warm").join("about"), "nonsense").expect("it is damaged");
    sandbox.pando(["image", "rm", "warm"]).ok();
    assert!(!directory(sandbox, "warm").exists());
}

fn an_image_moves_to_another_root(sandbox: &Sandbox) {
    counter(sandbox);
    sandbox.exec_sh("web", "mkfifo /pipe; ln /begun /linked; ln -s begun /link; chmod 4755 /begun; rm /bin/vi").ok();
    sandbox.pando(["freeze", "web", "warm"]).ok();
    let export = sandbox.scratch().join("warm.pando");
    let file = export.to_string_lossy().into_owned();
    sandbox.pando(["image", "export", "warm", &file]).ok();
    sandbox.pando(["image", "export", "warm", &file]).run().ended_with(125).complains_of(&["already"]);
    let other = Sandbox::new(Path::new(sandbox.busybox())).expect("another root");
    let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        assert_eq!(other.pando(["image", "import", &file]).ok(), "warm\n");
        clone_counts_on(&other, "warm", "one");
        let look = "stat -c '%F %a' /pipe /begun /link; ls /bin/vi 2>&1 | grep -c 'No such'; [ /begun -ef /linked ] && echo same";
        let seen = other.exec_sh("one", look).ok();
        assert_eq!(seen, "fifo 644\nregular file 4755\nsymbolic link 777\n1\nsame\n");
        other.pando(["image", "import", &file]).run().ended_with(125).complains_of(&["warm", "already"]);
        // From standard input to standard output, and under another name.
        let again = format!(
            "{0} --root {1} image export warm - | {0} --root {1} image import - second",
            other.program().display(),
            other.root().display()
        );
        assert_eq!(crate::line::Line::new("sh").args(["-c", &again]).limit(120).ok(), "second\n");
        clone_counts_on(&other, "second", "two");
    }));
    tear_down(other).expect("the other root is removed");
    if let Err(panic) = moved {
        std::panic::resume_unwind(panic);
    }
}

fn what_is_no_export_is_refused(sandbox: &Sandbox) {
    let before = World::of(sandbox);
    let file = sandbox.root().join("nonsense");
    std::fs::write(&file, "nonsense").expect("a file");
    let import = || sandbox.pando(["image", "import", &file.to_string_lossy(), "warm"]).run().ended_with(125);
    import().complains_of(&["export"]);
    std::fs::write(&file, "").expect("a file");
    import().complains_of(&["export"]);
    sandbox.pando(["image", "import", "/no/such/file"]).run().ended_with(125).complains_of(&["/no/such/file"]);
    sandbox.pando(["image", "export", "nothing", "/dev/null/x"]).run().ended_with(125);
    sandbox.pando(["image", "inspect", "nothing"]).run().ended_with(125).complains_of(&["no image", "nothing"]);
    std::fs::remove_file(&file).expect("it is removed");
    before.comes_back(sandbox, "refused imports");
}

fn an_image_in_memory_alone_ends_with_its_holder(sandbox: &Sandbox) {
    counter(sandbox);
    sandbox.pando(["freeze", "web", "warm", "--memory"]).ok();
    clone_counts_on(sandbox, "warm", "one");
    assert!(!directory(sandbox, "warm").exists());
    let holder = inspected(sandbox, "warm")["holder"].as_i64().expect("a pid");
    process::kill(i32::try_from(holder).expect("a pid fits"));
    // One that was made ahead may be had as long as somebody waits for an answer of the holder's.
    eventually("no clone is made any more", || {
        let ended = sandbox.pando(["clone", "warm", "two"]).run();
        if ended.code() == 0 {
            sandbox.pando(["rm", "--force", "two"]).ok();
        }
        ended.code() == 125
    });
    sandbox.pando(["clone", "warm", "two"]).run().ended_with(125).complains_of(&["warm", "killed", "freeze again"]);
    let listed = sandbox.pando(["image", "ls"]).ok();
    assert!(listed.contains("lost"), "{listed}");
    sandbox.pando(["image", "rm", "warm"]).ok();
    assert_eq!(sandbox.state("one"), "running");
}

fn a_daemon_killed_while_it_writes(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "100000"]);
    let before = World::of(sandbox);
    for (step, kept) in [("image.written", false), ("image.kept", true)] {
        sandbox.end_daemon();
        let daemon = super::crash::daemon_with(sandbox, "PANDO_CRASH_AT", step);
        // It may be killed before it has answered.
        sandbox.pando(["freeze", "web", "warm"]).run();
        daemon.wait().ended_with(137);
        assert_eq!(sandbox.pando(["images", "-q"]).ok(), if kept { "warm\n" } else { "" }, "after {step}");
        if kept {
            sandbox.pando(["clone", "warm", "one"]).ok();
            assert!(sandbox.exec_sh("one", "tr '\\0' ' ' </proc/2/cmdline").ok().starts_with("sleep 100000"));
            sandbox.pando(["rm", "--force", "one"]).ok();
            sandbox.pando(["image", "rm", "warm"]).ok();
        }
        before.comes_back(sandbox, &format!("the daemon killed at {step}, and the image removed"));
    }
}

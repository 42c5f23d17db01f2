//! Foreign data is read by a process without powers: what it has, what it cannot do although it is taken over, how its
//! end is told.

use super::crash::daemon_with;
use crate::case::Case;
use crate::line::{Ended, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::process::{self, Process};
use crate::sandbox::Sandbox;
use std::path::PathBuf;

pub(crate) const CASES: &[Case] = &[
    Case::new("readers::one_has_no_powers", no_powers),
    Case::new("readers::one_goes_with_the_daemon", goes_with_the_daemon),
    Case::new("readers::one_that_is_killed_is_told_of", killed),
    Case::new("readers::one_that_is_taken_over_reaches_nothing", taken_over).needs(&TAR),
    Case::new("readers::without_its_walls_it_would", without_walls).needs(&TAR),
    Case::new("readers::one_takes_no_more_memory_than_its_bound", memory).needs(&TAR),
    Case::new("readers::one_takes_no_more_time_than_its_bound", time).needs(&TAR),
    Case::new("readers::nonsense_is_not_believed", nonsense).needs(&TAR),
    Case::new("readers::one_that_lies_gets_nothing_for_it", lies).needs(&TAR),
    Case::new("readers::one_that_says_nothing_holds_nobody_up", silence).needs(&TAR),
    Case::new("readers::links_that_one_tells_of_lead_nowhere", links).needs(&TAR),
    Case::new("readers::what_comes_out_of_a_guest_is_read_so_too", copied_out),
    Case::new("readers::layers_and_exports_are_read_so_too", layers_and_exports).needs(&TAR),
    Case::new("readers::records_of_images_are_read_so_too", records).needs(&TAR),
];

const TAR: [Need; 2] = [Need::Root, Need::Program("tar", "tar")];

/// Nobody's id, of which no other process may be.
const READER: u32 = u32::MAX - 0x1_0001;

/// An import that waits for its input, and what reads that.
fn held(sandbox: &Sandbox) -> (Started, Process) {
    sandbox.pando(["ls"]).ok();
    let daemon = sandbox.daemon().expect("it runs");
    let import = sandbox.pando(["image", "import", "-"]).start_with_open_input();
    let found = || {
        let all = process::all();
        let is = |process: &&Process| {
            process.words.first().is_some_and(|word| word == "pando-reader")
                && process::parent(process.pid) == Some(daemon)
                // From then on it has nothing.
                && process::status(process.pid, "Seccomp").is_some_and(|mode| mode == "2")
        };
        all.iter().find(is).cloned()
    };
    eventually("a reader is there", || found().is_some());
    (import, found().expect("it waits for input"))
}

fn no_powers(sandbox: &Sandbox) {
    let (import, reader) = held(sandbox);
    let is = |field: &str| process::status(reader.pid, field).unwrap_or_else(|| panic!("no {field}"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(is(set), "0000000000000000", "{set}");
    }
    for ids in ["Uid", "Gid"] {
        assert_eq!(is(ids), [READER; 4].map(|id| id.to_string()).join("\t"), "{ids}");
    }
    assert_eq!((is("Groups"), is("NoNewPrivs"), is("Seccomp")), (String::new(), "1".into(), "2".into()));
    let mut descriptors: Vec<_> = std::fs::read_dir(format!("/proc/{}/fd", reader.pid))
        .expect("root may look")
        .map(|entry| entry.expect("a descriptor").file_name().into_string().expect("a number"))
        .collect();
    descriptors.sort();
    assert_eq!(descriptors, ["0", "1", "2"]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", reader.pid)).expect("root may look");
    let bounded = |what: &str, most: u64| {
        let line = limits.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_else(|| panic!("no {what}"));
        let hard = line.split_whitespace().nth(1).expect("a hard limit");
        assert!(hard.parse::<u64>().is_ok_and(|hard| hard <= most), "{what}: {line}");
    };
    bounded("Max open files", 3);
    bounded("Max processes", 0);
    bounded("Max file size", 0);
    bounded("Max core file size", 0);
    bounded("Max address space", 1 << 30);
    bounded("Max cpu time", 4 * 3600);
    let environment = std::fs::read(format!("/proc/{}/environ", reader.pid)).expect("root may look");
    assert_eq!(String::from_utf8_lossy(&environment), "", "it has an environment");
    import.close_input().wait().complains_of(&["not what 'pando image export' wrote"]);
    eventually("the reader ends", || !process::is_alive(reader.pid));
}

fn goes_with_the_daemon(sandbox: &Sandbox) {
    let (import, reader) = held(sandbox);
    process::kill(sandbox.daemon().expect("it runs"));
    eventually("the reader ends", || !process::is_alive(reader.pid));
    drop(import.close_input().wait());
}

fn killed(sandbox: &Sandbox) {
    let (import, reader) = held(sandbox);
    process::kill(reader.pid);
    import.close_input().wait().complains_of(&["process that reads it ended too early", "Nothing was imported"]);
    assert_eq!(sandbox.pando(["images", "-q"]).ok(), "");
}

/// A small archive, of a kind.
fn archive(sandbox: &Sandbox, options: &[&str]) -> PathBuf {
    let (tree, path) = (sandbox.scratch().join("tree"), sandbox.scratch().join("archive.tar"));
    std::fs::create_dir_all(&tree).expect("there is room");
    std::fs::write(tree.join("file"), "content").expect("there is room");
    let made =
        std::process::Command::new("tar").args(options).arg("-cf").arg(&path).arg("-C").arg(&tree).arg(".").status();
    assert!(made.is_ok_and(|status| status.success()), "tar failed");
    path
}

/// What comes of an archive that takes its reader over.
fn created(sandbox: &Sandbox, mistake: &str) -> Ended {
    let path = archive(sandbox, &[]);
    let daemon = daemon_with(sandbox, "PANDO_PLANT", mistake);
    let before = sandbox.daemon();
    let ended = sandbox.pando(["create", "guest", "--from", &path.to_string_lossy()]).limit(120).run();
    assert_eq!(sandbox.daemon(), before, "the daemon ended with its reader");
    assert!(sandbox.status("guest").is_none(), "something of it is there");
    let layers = std::fs::read_dir(sandbox.places().layers()).into_iter().flatten().count();
    assert_eq!(layers, 0, "a layer is there");
    sandbox.end_daemon();
    daemon.wait();
    ended
}

fn taken_over(sandbox: &Sandbox) {
    for deed in ["open", "connect", "fork"] {
        created(sandbox, &format!("reader.{deed}")).complains_of(&[
            "archive.tar",
            "which has no powers, tried what reading does not need",
            "nothing of it was kept",
        ]);
    }
}

/// The test above would notice.
fn without_walls(sandbox: &Sandbox) {
    for deed in ["open", "connect", "fork"] {
        created(sandbox, &format!("reader.bare.{deed}")).complains_of(&["ended too early", "exit status: 4"]);
    }
}

fn memory(sandbox: &Sandbox) {
    created(sandbox, "reader.memory").complains_of(&["ended itself", "memory allocation of", "archive.tar"]);
}

fn time(sandbox: &Sandbox) {
    created(sandbox, "reader.time").complains_of(&["more processor time than it may have", "archive.tar"]);
}

fn nonsense(sandbox: &Sandbox) {
    created(sandbox, "reader.nonsense").complains_of(&["said what no reader says", "archive.tar"]);
}

/// What one says that was taken over while the daemon writes: sizes that are none, content without end, names that
/// climb.
fn lies(sandbox: &Sandbox) {
    const NONSENSE: &str = "said what no reader says";
    for (lie, words) in [
        ("content-of-a-directory", NONSENSE),
        ("content-beyond-the-end", NONSENSE),
        ("less-content", NONSENSE),
        ("runs-backwards", NONSENSE),
        ("nobodys", NONSENSE),
        ("another-job", NONSENSE),
        ("content-that-fills-the-disk", "no space left"),
        ("climbs", "was refused"),
        ("is-the-root", "was refused"),
        ("nothing-at-all", "holds no files"),
    ] {
        created(sandbox, &format!("reader.lie.{lie}")).ended_with(125).complains_of(&[words]);
    }
}

/// It sleeps, which takes no processor time.
fn silence(sandbox: &Sandbox) {
    created(sandbox, "reader.lie.silence").complains_of(&["has stood still", "archive.tar"]);
}

/// A link out of the tree, what lies behind it, and a directory in its place.
fn links(sandbox: &Sandbox) {
    let bait = sandbox.scratch().join("bait");
    std::fs::create_dir(&bait).expect("a directory");
    std::fs::write(bait.join("kept"), "of the host").expect("a file");
    created(sandbox, &format!("reader.lie.leads-away:{}", bait.display())).ended_with(125);
    let names: Vec<_> =
        std::fs::read_dir(&bait).expect("it is there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["kept"], "something was written to where a link leads");
    let about = std::fs::metadata(bait.join("kept")).expect("it is there");
    assert_eq!((std::os::unix::fs::MetadataExt::nlink(&about), about.len()), (1, 11));
}

fn layers_and_exports(sandbox: &Sandbox) {
    let layout = sandbox.scratch().join("layout");
    std::fs::create_dir(&layout).expect("there is room");
    std::fs::write(layout.join("index.json"), r#"{"schemaVersion":2,"manifests":[]}"#).expect("there is room");
    let daemon = daemon_with(sandbox, "PANDO_PLANT", "reader.open");
    let from = format!("oci:{}", layout.display());
    sandbox.pando(["create", "guest", "--from", &from]).run().complains_of(&["tried what reading does not need"]);
    sandbox
        .pando(["image", "import", "-"])
        .input("anything")
        .run()
        .complains_of(&["tried what reading does not need", "Nothing was imported"]);
    sandbox.end_daemon();
    daemon.wait();
}

/// What an image says of itself and of its processes.
fn records(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sh", "-c", "exec sleep 100000"]);
    sandbox.pando(["freeze", "web", "warm", "--wait"]).ok();
    let file = sandbox.scratch().join("warm.pando").to_string_lossy().into_owned();
    sandbox.pando(["image", "export", "warm", &file]).ok();
    let imported = |mistake: &str| {
        sandbox.end_daemon();
        let daemon = daemon_with(sandbox, "PANDO_PLANT", mistake);
        let before = sandbox.daemon();
        let ended = sandbox.pando(["image", "import", &file, "copy"]).limit(120).run();
        assert_eq!(sandbox.daemon(), before, "the daemon ended with its reader");
        sandbox.end_daemon();
        daemon.wait();
        ended
    };
    let refused = |mistake: &str, words: &[&str]| {
        imported(mistake).ended_with(125).complains_of(words).complains_of(&["image 'copy' cannot be used"]);
        let kept: Vec<_> = std::fs::read_dir(sandbox.places().images()).expect("it is there").flatten().collect();
        assert_eq!(kept.len(), 1, "{mistake}: {kept:?}");
    };
    for deed in ["open", "connect", "fork"] {
        refused(&format!("record.{deed}"), &["tried what reading does not need", "Nothing was imported"]);
        // The test would notice.
        refused(&format!("record.bare.{deed}"), &["exit status: 4"]);
    }
    refused("record.memory", &["ended itself", "memory allocation of"]);
    refused("record.time", &["more processor time than it may have"]);
    refused("record.nonsense", &["said what no reader says"]);
    imported("nothing").succeeded();
    sandbox.pando(["clone", "copy", "web2"]).ok();
}

/// The command itself has the guest's stream read by one.
fn copied_out(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    sandbox.exec_sh("web", "mkdir /out; echo content >/out/file").ok();
    let into = sandbox.scratch().join("out");
    let copy = |mistake: &str| {
        let words = ["cp".into(), "web:/out".into(), into.to_string_lossy().into_owned()];
        sandbox.pando(words).env("PANDO_PLANT", mistake).run()
    };
    for deed in ["open", "connect", "fork"] {
        copy(&format!("reader.{deed}")).complains_of(&["tried what reading does not need"]);
        copy(&format!("reader.bare.{deed}")).complains_of(&["exit status: 4"]);
        assert!(!into.exists(), "something was copied");
    }
    copy("nothing").ended_with(0);
    assert_eq!(std::fs::read_to_string(into.join("file")).expect("it was copied"), "content\n");
}

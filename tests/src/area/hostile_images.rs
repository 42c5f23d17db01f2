//! Exports of images that somebody has changed: what they want of the machine is granted by name alone, their paths
//! lead to nothing of the host's, and nobody waits for them.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::image_export::{ImageExport, text, varint};
use crate::line::{Ended, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use serde_json::json;
use std::fs::read_dir;
use std::path::{Path, PathBuf};

const TAR: &[Need] = &[Need::Root, Need::Program("tar", "tar")];
/// What a damaged tree says may take all memory: that is nobody's machine.
const EMULATED: &[Need] = &[Need::Root, Need::Emulated, Need::Program("tar", "tar")];
const NETWORK: &[Need] =
    &[Need::Root, Need::Program("tar", "tar"), Need::Program("ip", "iproute2"), Need::Program("nft", "nftables")];

pub(crate) const CASES: &[Case] = &[
    Case::new("hostile_images::a_plain_one_needs_no_word_and_a_network_its_own", network_of_its_own).needs(NETWORK),
    Case::new("hostile_images::one_that_is_restored_starts_when_it_is_told_to", starts_when_told),
    Case::new("hostile_images::no_spec_is_taken_that_create_would_refuse", specs_that_create_refuses).needs(TAR),
    Case::new("hostile_images::silent_ones_leave_threads_to_others", silent),
    Case::new("hostile_images::the_hosts_files_are_granted_by_name", |sandbox| {
        let volume = json!([{"source": "/", "target": "/host", "read_only": false}]);
        wants(sandbox, "volumes", volume, "volumes", &["/ of this machine at /host", "to write"]);
    })
    .needs(TAR),
    Case::new("hostile_images::the_hosts_ids_are_granted_by_name", |sandbox| {
        wants(sandbox, "user_namespace", json!(false), "userns", &["no user namespace"]);
    })
    .needs(TAR),
    Case::new("hostile_images::no_filter_is_granted_by_name", |sandbox| {
        wants(sandbox, "seccomp", json!("off"), "seccomp", &["no filter of system calls"]);
    })
    .needs(TAR),
    Case::new("hostile_images::capabilities_are_granted_by_name", |sandbox| {
        wants(sandbox, "cap_add", json!(["ALL"]), "caps", &["the capabilities ALL"]);
    })
    .needs(TAR),
    Case::new("hostile_images::the_hosts_network_is_granted_by_name", |sandbox| {
        wants(sandbox, "network", json!("host"), "network", &["this machine's network"]);
    })
    .needs(TAR),
    Case::new("hostile_images::another_profile_is_granted_by_name", |sandbox| {
        wants(sandbox, "profile", json!("system"), "profile", &["the profile 'system'"]);
    })
    .needs(TAR),
    Case::new("hostile_images::processes_of_a_lesser_profile_are_named", |sandbox| {
        wants(sandbox, "profile", json!("strict"), "profile", &["may gain privileges"]);
    })
    .needs(TAR),
    Case::new("hostile_images::capabilities_of_processes_are_granted_by_name", capabilities_of_processes).needs(TAR),
    Case::new("hostile_images::processes_without_the_filter_are_granted_by_name", no_filter_of_processes).needs(TAR),
    Case::new("hostile_images::sockets_that_the_filter_refuses_are_granted_by_name", sockets).needs(TAR),
    Case::new("hostile_images::packet_filters_that_the_filter_refuses_are_granted_by_name", packet_filters).needs(TAR),
    Case::new("hostile_images::sockets_that_take_a_capability_are_granted_by_name", raw_sockets).needs(TAR),
    Case::new("hostile_images::more_processes_than_a_guest_may_have_are_granted_by_name", |sandbox| {
        wants(sandbox, "pids", json!("4000000"), "resources", &["pids=4000000"]);
    })
    .needs(TAR),
    Case::new("hostile_images::room_that_is_set_aside_is_granted_by_name", |sandbox| {
        wants(sandbox, "disk", json!({"size": "100M"}), "resources", &["disk.size=100M"]);
    })
    .needs(TAR),
    Case::new("hostile_images::more_open_files_than_its_profile_lets_it_have_are_granted_by_name", open_files)
        .needs(TAR),
    Case::new("hostile_images::no_step_is_taken_that_no_capture_writes", advice).needs(TAR),
    Case::new("hostile_images::own_files_of_proc_are_those_of_a_capture", own_files_of_proc).needs(TAR),
    Case::new("hostile_images::its_clones_are_compared_whatever_it_says", compared).needs(TAR),
    Case::new("hostile_images::a_pipe_that_holds_too_much_holds_nobody_up", a_pipe_that_holds_too_much).needs(TAR),
    Case::new("hostile_images::paths_lead_to_no_descriptor_of_the_hosts", paths_to_descriptors).needs(TAR),
    Case::new("hostile_images::a_program_that_is_a_fifo_holds_nobody_up", a_program_that_is_a_fifo).needs(TAR),
    Case::new("hostile_images::an_open_file_that_is_a_fifo_holds_nobody_up", an_open_file_that_is_a_fifo).needs(TAR),
    Case::new("hostile_images::whatever_a_tree_says_nobody_else_is_touched", whatever_a_tree_says)
        .tags(&[Tag::Slow, Tag::Vm])
        .needs(EMULATED),
];

/// What the frozen guest has open.
const OPEN: &str = "/srv/aaaaaaaaaa";

/// Starts a guest whose program does something, and then nothing.
fn start(sandbox: &Sandbox, options: &[&str], script: &str) {
    let ready = format!("{script}; exec sleep 100000");
    sandbox.guest("web", &[options, &["--", "sh", "-c", &ready]].concat());
    let of_command = "tr '\\0' ' ' </proc/2/cmdline";
    eventually("its program runs", || sandbox.exec_sh("web", of_command).ok().starts_with("sleep 100000"));
}

/// An export of it. Of guest and image nothing is left.
fn taken(sandbox: &Sandbox) -> ImageExport {
    sandbox.pando(["freeze", "web", "warm", "--stop"]).ok();
    let file = sandbox.scratch().join("plain.pando");
    sandbox.pando(["image", "export", "warm", &file.to_string_lossy()]).ok();
    sandbox.pando(["rm", "web"]).ok();
    sandbox.pando(["image", "rm", "warm"]).ok();
    let export = ImageExport::read(&file);
    std::fs::remove_file(file).expect("it was read");
    export
}

fn export_of(sandbox: &Sandbox, options: &[&str], script: &str) -> ImageExport {
    start(sandbox, options, script);
    taken(sandbox)
}

fn file_of(sandbox: &Sandbox, export: &ImageExport) -> PathBuf {
    let file = sandbox.scratch().join("hostile.pando");
    export.write(&file);
    file
}

/// Streams that nobody writes to take a thread each, and some are left.
fn silent(sandbox: &Sandbox) {
    let import = || sandbox.pando(["image", "import", "/dev/stdin"]);
    sandbox.pando(["ls"]).ok();
    let mut waiting: Vec<_> = (0..9).map(|_| import().start_with_open_input()).collect();
    let mut refused = None;
    eventually("one of them is one too many", || {
        refused = waiting.iter_mut().position(|one| one.has_ended());
        refused.is_some()
    });
    let refused = waiting.swap_remove(refused.expect("it has just been found")).wait();
    refused.complains_of(&["are being imported already"]);
    sandbox.guest("web", &["--", "sleep", "1000"]);
    sandbox.pando(["freeze", "web", "warm"]).ok();
    drop(waiting);
    eventually("there is room again", || !import().run().err().contains("are being imported already"));
}

/// When a guest starts by itself is not for whoever made an image to say.
fn starts_when_told(sandbox: &Sandbox) {
    sandbox.guest("web", &["--restart", "always", "--", "sleep", "1000"]);
    sandbox.pando(["set", "web", "boot.autostart=true"]).ok();
    let file = sandbox.scratch().join("export").to_string_lossy().into_owned();
    sandbox.pando(["freeze", "--stop", "web", "warm"]).ok();
    sandbox.pando(["image", "export", "warm", &file]).ok();
    sandbox.pando(["image", "rm", "--force", "warm"]).run();
    sandbox.pando(["rm", "--force", "web"]).run();
    sandbox.pando(["image", "import", &file, "evil"]).ok();
    sandbox.pando(["restore", "evil"]).ok();
    let text = sandbox.pando(["inspect", "web"]).ok();
    assert!(text.contains("sleep") && !text.contains("always") && !text.contains("\"autostart\": true"), "{text}");
}

fn import(sandbox: &Sandbox, file: &Path, allowed: &[&str]) -> Ended {
    let words: Vec<&str> = allowed.iter().flat_map(|word| ["--allow", word]).collect();
    sandbox.pando(["image", "import", &file.to_string_lossy(), "evil"]).args(words).run()
}

fn names_in(directory: PathBuf) -> Vec<String> {
    let entries = read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Wants nothing of a refused image to be there.
#[track_caller]
fn nothing_is_left(sandbox: &Sandbox) {
    let places = sandbox.places();
    assert_eq!(sandbox.pando(["images", "--quiet"]).ok(), "", "it is listed");
    assert_eq!(names_in(places.images()), [""; 0], "something of it is among the images");
    eventually("nothing is left in the trash", || names_in(places.trash()).is_empty());
    eventually("nothing is left among the layers", || names_in(places.layers()).is_empty());
}

/// Wants an image to be refused with these words; which words grant it, as it says.
#[track_caller]
fn refused(sandbox: &Sandbox, file: &Path, allowed: &[&str], words: &[&str]) -> Vec<String> {
    let refused = import(sandbox, file, allowed).ended_with(125).complains_of(words);
    nothing_is_left(sandbox);
    let said = refused.complains_of(&["is not imported", "--allow ", "Nothing was imported"]).err();
    let behind = said.split("--allow ").nth(1).and_then(|rest| rest.split('.').next()).expect("it says which");
    behind.split(',').map(str::to_owned).collect()
}

/// Wants an image to be refused with words that say why, and imported where that is granted, by `word` among others,
/// and not by less.
#[track_caller]
fn granted_by_name_alone(sandbox: &Sandbox, file: &Path, word: &str, why: &[&str]) {
    let asked = refused(sandbox, file, &[], why);
    assert!(asked.iter().any(|one| one == word), "'{word}' is not among {asked:?}");
    let all: Vec<&str> = asked.iter().map(String::as_str).collect();
    let besides = if word == "limits" { "freeze" } else { "limits" };
    let others: Vec<&str> = all.iter().copied().filter(|one| *one != word).chain([besides]).collect();
    assert_eq!(refused(sandbox, file, &others, why), [word], "other words granted it");
    import(sandbox, file, &all).succeeded().says("evil\n");
    assert_eq!(sandbox.pando(["images", "--quiet"]).ok(), "evil\n");
    sandbox.pando(["image", "rm", "evil"]).ok();
}

/// An export of a plain guest in whose spec a field has another value.
fn wants(sandbox: &Sandbox, field: &str, value: serde_json::Value, word: &str, why: &[&str]) {
    let mut export = export_of(sandbox, &[], ":");
    export.change_spec(field, value);
    granted_by_name_alone(sandbox, &file_of(sandbox, &export), word, why);
}

/// A guest that cannot be stopped, for example.
fn specs_that_create_refuses(sandbox: &Sandbox) {
    let plain = export_of(sandbox, &[], ":");
    for (field, value, words) in [
        ("stop_signal", json!("NOSUCH"), "'NOSUCH' is not a signal"),
        ("stop_grace", json!(u32::MAX), "longer than a day"),
        ("init", json!("sbin/init"), "is not an absolute path"),
        ("publish_all", json!(true), "use --net private"),
    ] {
        let mut export = plain.clone();
        export.change_spec(field, value);
        let refused = import(sandbox, &file_of(sandbox, &export), &["all"]).ended_with(125);
        refused.complains_of(&["image 'evil' is not imported", words]);
        nothing_is_left(sandbox);
    }
    import(sandbox, &file_of(sandbox, &plain), &[]).succeeded();
}

fn network_of_its_own(sandbox: &Sandbox) {
    let plain = export_of(sandbox, &[], ":");
    import(sandbox, &file_of(sandbox, &plain), &[]).succeeded().says("evil\n");
    sandbox.pando(["clone", "evil", "one"]).ok();
    assert_eq!(sandbox.exec_sh("one", "cat /proc/2/comm").ok(), "sleep\n");
    sandbox.pando(["rm", "--force", "one"]).ok();
    sandbox.pando(["image", "rm", "evil"]).ok();
    let connected = export_of(sandbox, &["--net", "private"], ":");
    granted_by_name_alone(sandbox, &file_of(sandbox, &connected), "network", &["a private network"]);
}

fn capabilities_of_processes(sandbox: &Sandbox) {
    const ALL: u64 = (1 << 41) - 1;
    start(sandbox, &[], ":");
    let status = sandbox.exec_sh("web", "cat /proc/2/status").ok();
    let digits = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("every process has it");
    let bound = u64::from_str_radix(digits.trim(), 16).expect("a mask");
    let mut export = taken(sandbox);
    // Permitted, effective and bounding set, and no ambient one.
    let sets = |set: u64| [varint(set).repeat(3), vec![0]].concat();
    assert_ne!(export.replace_in_tree(&sets(bound), &sets(ALL)), 0, "its sets were not found");
    granted_by_name_alone(sandbox, &file_of(sandbox, &export), "caps", &["processes with capabilities", "SYS_ADMIN"]);
}

/// Whoever makes a clone makes its sockets without a filter: an image may not have one that its guest could not have
/// made.
fn sockets(sandbox: &Sandbox) {
    const OF_ANOTHER: [u8; 4] = [8, 0x50, 2, 12];
    let (mut export, socket) = with_a_listener(sandbox);
    assert_eq!(export.replace_in_tree(&socket, &OF_ANOTHER), 1, "a socket of TCP becomes one of AF_VSOCK");
    granted_by_name_alone(sandbox, &file_of(sandbox, &export), "seccomp", &["a socket of family 40"]);
}

/// A socket of TCP, with internet addresses of either length, as the tree begins to tell of it: what it is, family,
/// type, protocol.
const STREAMS: [[u8; 4]; 2] = [[8, 4, 2, 12], [8, 0x14, 2, 12]];

/// An export of a strict guest that has such a socket, and which of both it is.
fn with_a_listener(sandbox: &Sandbox) -> (ImageExport, [u8; 4]) {
    let export = export_of(sandbox, &["--profile", "strict"], "nc -l -p 9 >/dev/null & sleep 1");
    let has = |one: &&[u8; 4]| export.clone().replace_in_tree(*one, *one) > 0;
    let socket = *STREAMS.iter().find(has).expect("it listens");
    (export, socket)
}

/// Thousands of them that go at once hold up the kernel, which is why the profile refuses them.
fn packet_filters(sandbox: &Sandbox) {
    let (mut export, socket) = with_a_listener(sandbox);
    export.attach_packet_filter(&socket);
    granted_by_name_alone(sandbox, &file_of(sandbox, &export), "seccomp", &["a packet filter at a socket"]);
}

/// Whoever makes a clone has all capabilities over what is the clone's: an image may not have what took one that its
/// guest never had.
fn raw_sockets(sandbox: &Sandbox) {
    let (mut export, socket) = with_a_listener(sandbox);
    let [kind, family, ..] = socket;
    assert_eq!(export.replace_in_tree(&socket, &[kind, family, 6, 2]), 1, "a socket of TCP becomes a raw one of ICMP");
    granted_by_name_alone(sandbox, &file_of(sandbox, &export), "caps", &["type 3, protocol 1", "NET_RAW"]);
}

fn open_files(sandbox: &Sandbox) {
    let plain = export_of(sandbox, &["--profile", "strict"], ":");
    let mut export = plain.clone();
    export.change_spec("files", json!("1000000"));
    let most = refused(sandbox, &file_of(sandbox, &export), &[], &["files=1000000"]);
    assert_eq!(most, ["resources"]);
    // The same by what it says of processes: which limit, what they are held to, how far they may raise it.
    let limit = |hard: u64| [vec![7], varint(1024), varint(hard)].concat();
    let mut export = plain;
    assert_ne!(export.replace_in_tree(&limit(4096), &limit(1 << 20)), 0, "its limit was not found");
    granted_by_name_alone(sandbox, &file_of(sandbox, &export), "limits", &["another limit nofile"]);
}

/// Whoever has the memory of an image is the host's root, and is asked for what the image says that it was advised.
fn advice(sandbox: &Sandbox) {
    const DONTDUMP: u8 = 16;
    /// MADV_REMOVE, MADV_POPULATE_WRITE, MADV_HWPOISON, MADV_SOFT_OFFLINE.
    const ACTS: [u8; 4] = [9, 23, 100, 101];
    start(sandbox, &[], ":");
    let maps = sandbox.exec_sh("web", "cat /proc/2/maps").ok();
    let stack = maps.lines().find(|line| line.ends_with("[stack]")).expect("each process has one");
    let (first, last) = stack.split(' ').next().and_then(|range| range.split_once('-')).expect("it has a place");
    let number = |text: &str| varint(u64::from_str_radix(text, 16).expect("it is hexadecimal"));
    // Where it lies, its rights, that it is nobody's file, and its advice.
    let area = |advice: &[u8]| [&number(first)[..], &number(last), &[3, 0, advice.len() as u8], advice].concat();
    let plain = taken(sandbox);
    let with = |advice: u8| {
        let mut export = plain.clone();
        assert_eq!(export.replace_in_tree(&area(&[]), &area(&[advice])), 1, "its stack was not found");
        file_of(sandbox, &export)
    };
    for act in ACTS {
        import(sandbox, &with(act), &["all"]).ended_with(125).complains_of(&["no memory has such advice"]);
        nothing_is_left(sandbox);
    }
    import(sandbox, &with(DONTDUMP), &[]).succeeded();
    sandbox.pando(["clone", "evil", "one"]).ok();
}

/// Each process opens its own files of /proc while descriptors of whoever makes it are there.
fn own_files_of_proc(sandbox: &Sandbox) {
    const OWN: &str = "/proc/2/statm";
    let plain = export_of(sandbox, &[], "exec 5</proc/self/statm");
    for path in
        ["/proc/2/fd/1", "/proc/2/exe", "/proc/2/ns/mnt", "/proc/2/task/2/fd/1", "/proc/02/fd/1", "/proc/3/statm"]
    {
        let mut export = plain.clone();
        assert_eq!(export.replace_path(OWN, path), 1, "its open file was not found");
        import(sandbox, &file_of(sandbox, &export), &["all"]).ended_with(125).complains_of(&["a file of /proc"]);
        nothing_is_left(sandbox);
    }
    import(sandbox, &file_of(sandbox, &plain), &[]).succeeded();
    sandbox.pando(["clone", "evil", "one"]).ok();
    assert_eq!(sandbox.exec_sh("one", "readlink /proc/2/fd/5").ok(), format!("{OWN}\n"));
}

/// An image that says of itself that nobody is to compare its clones with it.
fn compared(sandbox: &Sandbox) {
    let mut export = export_of(sandbox, &[], &format!("mkdir {OPEN}; exec 5<{OPEN}"));
    assert_eq!(export.replace_path(OPEN, "/srv/../srv/aaaaaaaaaa"), 1, "its open file was not found");
    export.change_about("unchecked", json!(true));
    import(sandbox, &file_of(sandbox, &export), &[]).succeeded();
    let cloned = sandbox.pando(["clone", "evil", "one"]).run();
    cloned.ended_with(125).complains_of(&["is not what was frozen"]);
}

fn a_pipe_that_holds_too_much(sandbox: &Sandbox) {
    let mut export = export_of(sandbox, &[], "(echo waits; exec sleep 100000) | sleep 100000 & sleep 1");
    let much = "x".repeat(100_000);
    assert_eq!(export.replace_in_tree(&text("waits\n"), &text(&much)), 1, "its pipe was not found");
    import(sandbox, &file_of(sandbox, &export), &[]).succeeded();
    none_is_made_and_nobody_waits(sandbox, "filling a pipe");
}

fn no_filter_of_processes(sandbox: &Sandbox) {
    // It allows every call, whatever came before it in the list may say.
    const ALLOWS: [u8; 8] = [6, 0, 0, 0, 0, 0, 0xff, 0x7f];
    let plain = export_of(sandbox, &[], ":");
    let filters = plain.filters();
    let other = [&[1, 8], &ALLOWS[..]].concat();
    let before = [&[2, 8], &ALLOWS[..], &filters[1..]].concat();
    for list in [vec![0], other, before] {
        let mut export = plain.clone();
        assert_ne!(export.replace_in_tree(&filters, &list), 0, "its filter was not found");
        granted_by_name_alone(sandbox, &file_of(sandbox, &export), "seccomp", &["processes without the filter"]);
    }
    let mut export = plain;
    // One more than those of a guest is the program's own matter.
    let more = [&[2], &filters[1..], &[8], &ALLOWS[..]].concat();
    assert_ne!(export.replace_in_tree(&filters, &more), 0, "its filter was not found");
    import(sandbox, &file_of(sandbox, &export), &[]).succeeded().says("evil\n");
}

/// Where a descriptor of the clone's program leads to something that is in none of the clone's mounts, and in none of
/// the kernel's own.
const LOOK: &str = r#"
    leads=$(readlink /proc/2/fd/5) || exit 0
    case $leads in pipe:*|socket:*|anon_inode:*) exit 0;; esac
    mount=$(sed -n 's/^mnt_id:[^0-9]*//p' /proc/2/fdinfo/5)
    grep -q "^$mount " /proc/2/mountinfo || echo "it leads to $leads, outside of its mounts"
    [ -e "/proc/2/fd/5/../../../../../../../../../..$1" ] && echo "it leads to $leads, and from there to the host's root"
    exit 0
"#;

fn paths_to_descriptors(sandbox: &Sandbox) {
    let plain = export_of(sandbox, &[], &format!("mkdir {OPEN}; exec 5<{OPEN}"));
    let marker = sandbox.scratch().join("marker");
    std::fs::write(&marker, "").expect("a file");
    let descriptors = (0..=60).map(|number| format!("/proc/self/fd/{number}"));
    let others = ["/proc/thread-self/fd/3", "/proc/self/root", "/proc/self/cwd", "/proc/1/root", "/proc/1/cwd"];
    let mut found = String::new();
    for path in descriptors.chain(others.map(str::to_owned)) {
        let mut export = plain.clone();
        assert_eq!(export.replace_path(OPEN, &path), 1, "its open file was not found");
        import(sandbox, &file_of(sandbox, &export), &[]).succeeded();
        let cloned = sandbox.pando(["clone", "evil", "one"]).run();
        if cloned.code() == 0 {
            let marker = marker.to_string_lossy();
            let seen = sandbox.pando(["exec", "one", "--", "sh", "-c", LOOK, "sh", &marker]).ok();
            found.extend(seen.lines().map(|line| format!("{path}: {line}\n")));
            sandbox.pando(["rm", "--force", "one"]).ok();
        } else {
            cloned.ended_with(125).complains_of(&[&path]);
        }
        sandbox.pando(["image", "rm", "evil"]).ok();
    }
    assert_eq!(found, "", "paths lead to what is not the clone's");
    // As it was, the clone has its directory.
    import(sandbox, &file_of(sandbox, &plain), &[]).succeeded();
    sandbox.pando(["clone", "evil", "one"]).ok();
    assert_eq!(sandbox.exec_sh("one", "readlink /proc/2/fd/5").ok().trim(), OPEN);
}

/// Clones of an image, many at once, each of which is refused with a path, while the daemon answers.
#[track_caller]
fn none_is_made_and_nobody_waits(sandbox: &Sandbox, path: &str) {
    let clone = |number: usize| sandbox.pando(["clone", "evil", &format!("one-{number}")]).limit(20);
    clone(0).run().ended_with(125).complains_of(&[path]);
    let many: Vec<Started> = (1..=20).map(|number| clone(number).start()).collect();
    sandbox.pando(["ls"]).limit(20).ok();
    for one in many {
        one.wait().ended_with(125).complains_of(&[path]);
    }
    assert_eq!(sandbox.pando(["ls", "--quiet"]).limit(20).ok(), "", "a clone is there");
}

fn a_program_that_is_a_fifo(sandbox: &Sandbox) {
    const PROGRAM: &str = "/bin/busybox";
    let mut export = export_of(sandbox, &[], ":");
    let length = std::fs::metadata(format!("{}{PROGRAM}", sandbox.busybox())).expect("it is there").len();
    export.make_fifo(PROGRAM, &sandbox.scratch());
    let file = |length: u64| [text(PROGRAM), varint(length)].concat();
    assert_eq!(export.replace_in_tree(&file(length), &file(0)), 1, "its program was not found");
    import(sandbox, &file_of(sandbox, &export), &[]).succeeded();
    none_is_made_and_nobody_waits(sandbox, PROGRAM);
}

fn an_open_file_that_is_a_fifo(sandbox: &Sandbox) {
    // To write to, since one that is read from is opened at once, and is then a fifo like any other of the clone's.
    let mut export = export_of(sandbox, &[], &format!("exec 5>{OPEN}"));
    export.make_fifo(OPEN, &sandbox.scratch());
    import(sandbox, &file_of(sandbox, &export), &[]).succeeded();
    none_is_made_and_nobody_waits(sandbox, OPEN);
}

/// Trees that are damaged behind a checksum that is right, each imported with all that it wants, cloned by the restorer
/// and thrown away. Each is refused, or makes a clone within its own files and limits.
fn whatever_a_tree_says(sandbox: &Sandbox) {
    const TREES: usize = 60;
    let (mut dice, _) = Dice::of_this_run();
    let script = format!(
        "mkdir {OPEN}; exec 5<{OPEN}; mkfifo /srv/pipe; exec 6<>/srv/pipe; echo waits >&6; cat <&6 >/dev/null &"
    );
    let plain = export_of(sandbox, &[], &script);
    let marker = sandbox.scratch().join("marker");
    std::fs::write(&marker, "as it was").expect("a file");
    sandbox.guest("neighbour", &["--", "sleep", "100000"]);
    let neighbour = sandbox.first_process("neighbour");
    let daemon = sandbox.daemon();
    let (mut imported, mut cloned) = (0, 0);
    for _ in 0..TREES {
        let mut hostile = plain.clone();
        hostile.damage_tree(&mut dice);
        let outcome = import(sandbox, &file_of(sandbox, &hostile), &["all"]);
        if outcome.code() == 0 {
            imported += 1;
            if sandbox.pando(["clone", "evil", "one"]).limit(120).run().code() == 0 {
                cloned += 1;
                sandbox.pando(["rm", "--force", "one"]).limit(120).ok();
            }
            sandbox.pando(["image", "rm", "evil"]).limit(60).ok();
        } else {
            outcome.ended_with(125);
        }
        assert_eq!(
            std::fs::read_to_string(&marker).ok().as_deref(),
            Some("as it was"),
            "a file of the host was changed"
        );
        assert_eq!(sandbox.daemon(), daemon, "the daemon has ended");
        assert_eq!(sandbox.first_process("neighbour"), neighbour, "the neighbour was ended");
    }
    println!("     of {TREES} trees {imported} were imported and {cloned} cloned");
    assert!(imported < TREES, "none was refused: nothing was damaged");
    import(sandbox, &file_of(sandbox, &plain), &[]).succeeded();
    sandbox.pando(["clone", "evil", "one"]).ok();
    assert_eq!(sandbox.exec_sh("one", "readlink /proc/2/fd/5").ok().trim(), OPEN);
}

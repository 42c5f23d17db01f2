//! Devices of the host's that a guest is given by name, and those that none is.

use crate::case::Case;
use crate::need::Need;
use crate::sandbox::Sandbox;
use std::os::unix::fs::MetadataExt;

pub(crate) const CASES: &[Case] = &[
    Case::new("host_devices::one_is_used_and_no_other", one).needs(&[Need::Root]),
    Case::new("host_devices::access_is_what_was_said", access).needs(&[Need::Root]),
    Case::new("host_devices::the_nodes_are_the_guests_own", own_nodes).needs(&[Need::Root]),
    Case::new("host_devices::a_tunnel_is_made", tunnel).needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("host_devices::those_of_a_directory_come_together", directory).needs(&[Need::Root]),
    Case::new("host_devices::what_reaches_the_machine_is_refused", refusals).needs(&[Need::Root]),
    Case::new("host_devices::a_disk_in_use_is_refused", disks).needs(&[Need::Root]),
    Case::new("host_devices::the_next_run_has_them_too", again).needs(&[Need::Root]),
];

/// A device that does nothing: 1:9 is urandom, under a name that no guest has by itself.
const DICE: &str = "/dev/urandom:/dev/dice";

fn one(sandbox: &Sandbox) {
    // fuse is character device 10:229 on every Linux.
    let node = sandbox.scratch().join("fuse").to_string_lossy().into_owned();
    crate::line::Line::new("mknod").args([&node, "c", "10", "229"]).ok();
    let look = "stat -c '%t:%T %u:%g' /dev/fuse; (exec 3<>/dev/fuse) 2>&1 | sed 's/.*: //'";
    let device = format!("{node}:/dev/fuse");
    for more in [&[][..], &["--profile", "strict"], &["--userns", "host"]] {
        let options = [&["--device", device.as_str()][..], more].concat();
        let told = sandbox.run_sh(&options, look).ok();
        // Without the driver the kernel has no such device; what the list forbids is EPERM.
        assert!(told.starts_with("a:e5 0:0\n") && !told.contains("ermi"), "{more:?}: {told}");
    }
    sandbox.run_sh(&[], "ls /dev/fuse").run().complains_of(&["No such file"]);
    sandbox.pando(["run", "--device", "/dev/urandom:/dev/dice", "--", "sh", "-c", "[ -c /dev/dice ]"]).ok();
}

fn access(sandbox: &Sandbox) {
    let read = "head -c 1 /dev/dice | wc -c; echo x 2>/dev/null >/dev/dice && echo written || echo not written";
    // What every guest may do with 1:9 stays; a serial line's numbers are nobody's.
    let node = sandbox.scratch().join("line").to_string_lossy().into_owned();
    crate::line::Line::new("mknod").args([&node, "c", "4", "255"]).ok();
    let tried = |access: &str| {
        let device = format!("{node}:/dev/line:{access}");
        let script = "for how in '<' '>>' '<>'; do (eval \"exec 3$how/dev/line\") 2>&1 | sed 's/.*: //'; done";
        sandbox.run_sh(&["--device", &device], script).ok()
    };
    let denied = |text: &str| text.lines().map(|line| line.contains("ermi")).collect::<Vec<_>>();
    // Where there is no such line the kernel says so, and not that it is forbidden.
    let (both, reading) = (denied(&tried("rw")), denied(&tried("r")));
    assert!(!both.contains(&true), "{both:?}");
    assert_eq!(reading, [false, true, true]);
    sandbox.run_sh(&["--device", DICE], read).run().succeeded().says("1\nwritten\n");
}

fn own_nodes(sandbox: &Sandbox) {
    let host = std::fs::metadata("/dev/urandom").expect("every host has it");
    let told = sandbox
        .run_sh(&["--device", DICE], "stat -c '%d:%i' /dev/dice; chmod 600 /dev/dice && stat -c %a /dev/dice")
        .ok();
    let lines: Vec<&str> = told.lines().collect();
    assert_ne!(lines[0], format!("{}:{}", host.dev(), host.ino()));
    assert_eq!(lines[1], "600", "it is the guest's own to change");
    assert_eq!(std::fs::metadata("/dev/urandom").expect("it is there").mode(), host.mode());
}

/// A network device by /dev/net/tun, in the guest's own network.
const TUN: &str = r#"
import fcntl, struct
tun = open("/dev/net/tun", "r+b", buffering=0)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH", b"vpn0", 0x1001))
print(open("/proc/net/dev").read().count("vpn0"))
"#;

fn tunnel(sandbox: &Sandbox) {
    if std::fs::metadata("/dev/net/tun").is_err() {
        // A host without the driver has no node, and this says so.
        let refused = sandbox.pando(["run", "--device", "/dev/net/tun", "--", "true"]).run();
        refused.ended_with(125).complains_of(&["/dev/net/tun"]);
        return;
    }
    let options = ["run", "--device", "/dev/net/tun", "--cap-add", "NET_ADMIN", "--profile", "default"];
    let line = sandbox.pando(options).args(["--", "/usr/bin/python3", "-c", TUN]);
    line.run().succeeded().says("1\n");
    let without = sandbox.pando(["run", "--cap-add", "NET_ADMIN", "--", "/usr/bin/python3", "-c", TUN]).run();
    without.ended_with(1).complains_of(&["No such file"]);
}

fn directory(sandbox: &Sandbox) {
    let cards = sandbox.scratch().join("cards");
    std::fs::create_dir(&cards).expect("it is a temporary one");
    let at = cards.to_string_lossy().into_owned();
    let make =
        format!("mknod {at}/card0 c 226 0; mknod {at}/renderD128 c 226 128; touch {at}/note; ln -s /etc {at}/link");
    crate::line::Line::new("sh").args(["-c", &make]).ok();
    let given = ["--device", &format!("{at}:/dev/dri")];
    sandbox
        .run_sh(&given, "ls /dev/dri; stat -c %t:%T /dev/dri/renderD128")
        .run()
        .succeeded()
        .says("card0\nrenderD128\ne2:80\n");
    let empty = sandbox.scratch().join("empty");
    std::fs::create_dir(&empty).expect("it is a temporary one");
    let given = ["--device", &format!("{}:/dev/dri", empty.display())];
    sandbox.run_sh(&given, "true").run().ended_with(125).complains_of(&["no device lies in the directory"]);
}

fn refusals(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let node = |name: &str, numbers: &str| {
        let path = scratch.join(name).to_string_lossy().into_owned();
        crate::line::Line::new("sh").args(["-c", &format!("mknod {path} c {numbers}")]).ok();
        format!("{path}:/dev/x")
    };
    let refused = |device: &str, words: &[&str]| {
        sandbox.run_sh(&["--device", device], "true").run().ended_with(125).complains_of(words);
    };
    refused(&node("mem", "1 1"), &["the memory of the whole machine"]);
    refused(&node("kmsg", "1 11"), &["kernel's log", "pando logs"]);
    refused(&node("console", "5 1"), &["the machine's own terminals"]);
    refused(&node("pts", "136 0"), &["a terminal of somebody on the host"]);
    refused(&node("msr", "202 0"), &["registers"]);
    refused(&node("loops", "10 237"), &["make what the guest needs on the host"]);
    refused("/etc/passwd:/dev/x", &["/etc/passwd is no device", "-v"]);
    refused("/dev/no-such-device", &["/dev/no-such-device"]);
    refused("/dev/zero:/dev/null", &["every guest has a /dev/null of its own"]);
    let wrong = sandbox.pando(["run", "--device", "fuse", "--", "true"]).run();
    wrong.ended_with(125).complains_of(&["for example --device /dev/fuse"]);
    let privileged = sandbox.pando(["run", "--privileged", "--", "true"]).run();
    privileged.ended_with(125).complains_of(&["root of this machine", "--device", "--cap-add"]);
    sandbox.pando(["run", "--gpus", "all", "--", "true"]).run().ended_with(125).complains_of(&["--device /dev/dri"]);
    // A link that a guest can put on the way is not followed.
    let shown = scratch.join("shown");
    std::fs::create_dir(&shown).expect("it is a temporary one");
    std::os::unix::fs::symlink("/dev/urandom", shown.join("link")).expect("it is a temporary one");
    let volume = format!("{}:/mnt", shown.display());
    let device = format!("{}/link:/dev/x", shown.display());
    sandbox.run_sh(&["-v", &volume, "--device", &device], "true").run().ended_with(125).complains_of(&["is a link"]);
}

fn disks(sandbox: &Sandbox) {
    // One that nobody uses is given: there is no such disk, and the kernel says that and not that it is forbidden.
    let free = sandbox.scratch().join("free").to_string_lossy().into_owned();
    crate::line::Line::new("mknod").args([free.as_str(), "b", "7", "999"]).ok();
    let look = "stat -c '%F %t:%T' /dev/disk; head -c 1 /dev/disk 2>&1";
    let told = sandbox.run_sh(&["--device", &format!("{free}:/dev/disk:r")], look).run().out();
    assert!(told.starts_with("block special file 7:3e7\n") && !told.contains("ermi"), "{told}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("every process has it");
    let fields = mounts.lines().filter_map(|line| Some((line.split(' ').nth(2)?, line.split(" - ").nth(1)?)));
    let mut disks = fields.filter(|(numbers, rest)| rest.contains(" /dev/") && !numbers.starts_with("0:"));
    let Some((numbers, _)) = disks.next() else {
        crate::case::skip("no disk is mounted on this machine".to_owned());
    };
    let node = sandbox.scratch().join("disk").to_string_lossy().into_owned();
    let (major, minor) = numbers.split_once(':').expect("two numbers");
    crate::line::Line::new("mknod").args([node.as_str(), "b", major, minor]).ok();
    let given = ["--device", &format!("{node}:/dev/disk:r")];
    sandbox.run_sh(&given, "true").run().ended_with(125).complains_of(&["the host uses it", "-v"]);
}

fn again(sandbox: &Sandbox) {
    sandbox.guest("web", &["--device", DICE, "--", "sleep", "100000"]);
    let look = || sandbox.exec_sh("web", "head -c 1 /dev/dice | wc -c").run().succeeded().says("1\n");
    look();
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    look();
    let security: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["inspect", "--security", "--json", "web"]).ok()).expect("JSON");
    let listed = security["devices"].as_array().expect("a list").iter().any(|one| one == "/dev/urandom:/dev/dice:rwm");
    assert!(listed, "{security}");
    sandbox.pando(["freeze", "web"]).ok();
    sandbox.pando(["clone", "web", "copy"]).ok();
    sandbox.exec_sh("copy", "head -c 1 /dev/dice | wc -c").run().succeeded().says("1\n");
    sandbox.pando(["set", "web", "devices="]).ok();
    sandbox.pando(["restart", "-t", "0", "web"]).ok();
    sandbox.exec_sh("web", "ls /dev/dice").run().complains_of(&["No such file"]);
}

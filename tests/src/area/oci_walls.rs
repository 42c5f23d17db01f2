//! The OCI runtime against whoever writes a configuration or packs an image: what of the host they must not get.

use crate::bundle::{Bundle, runtime};
use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use rustix::fs::{CWD, FileType, Mode, inotify, makedev, mknodat};
use rustix::io::Errno;
use serde_json::json;
use std::mem::MaybeUninit;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("oci_walls::a_setting_is_judged_by_where_it_is", climbing_settings),
    Case::new("oci_walls::a_hosts_namespace_that_is_joined_stays_the_hosts", joined_of_the_host),
    Case::new("oci_walls::a_bound_proc_is_masked_wherever_links_lead", bound_kernel_files),
    Case::new("oci_walls::a_bound_proc_in_its_place_is_masked", plainly_bound_proc),
    Case::new("oci_walls::what_is_mounted_is_what_is_protected", moved_ways),
    Case::new("oci_walls::devices_are_made_in_no_directory_of_the_hosts", devices_in_a_volume),
    Case::new("oci_walls::no_device_of_an_image_is_opened", device_for_a_file),
    Case::new("oci_walls::what_is_copied_up_is_the_containers_memory", copied_up),
    Case::new("oci_walls::no_process_of_others_is_moved_into_a_group", moved_process),
    Case::new("oci_walls::a_device_is_no_file_of_the_hosts", file_for_a_device),
    Case::new("oci_walls::a_further_process_has_none_of_its_callers_keys", callers_keys).needs(PYTHON),
    Case::new("oci_walls::a_hook_inside_has_the_containers_filter", filtered_hook),
    Case::new("oci_walls::words_of_a_configuration_drive_no_terminal", terminal_words),
    Case::new("oci_walls::a_log_that_is_a_pipe_is_not_waited_for", piped_log),
];

/// A setting's file, as it is: what a test writes there changes nothing.
fn present(path: &str) -> String {
    std::fs::read_to_string(Path::new("/proc/sys").join(path)).expect("the machine has it").trim_end().to_owned()
}

fn climbing_settings(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    let pattern = present("kernel/core_pattern");
    for name in ["net/../kernel/core_pattern", "net/ipv4/../../kernel/core_pattern", "net.//.kernel.core_pattern"] {
        bundle.change(|config| config["linux"]["sysctl"] = json!({name: pattern}));
        bundle.run().run().ended_with(1).complains_of(&["sysctl", name, "lead elsewhere"]);
        bundle.is_clear();
    }
    // Either separator will do, and the other one stands for it within a name.
    for name in ["net.ipv4.conf.lo.forwarding", "net/ipv4/conf/lo/forwarding"] {
        bundle.change(|config| {
            config["linux"]["sysctl"] = json!({name: "1"});
            config["process"]["args"] = json!(["cat", "/proc/sys/net/ipv4/conf/lo/forwarding"]);
        });
        bundle.run().run().succeeded().says("1\n");
    }
    bundle.is_clear();
}

fn joined_of_the_host(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    let spec = bundle.path().join("config.json");
    let before = std::fs::read(&spec).expect("it is there");
    let refuses = |kind: &str, name: &str, setting: Option<(&str, String)>, words: &[&str]| {
        std::fs::write(&spec, &before).expect("it is ours");
        bundle.change(|config| {
            let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
            namespaces.retain(|namespace| namespace["type"] != kind);
            namespaces.push(json!({"type": kind, "path": format!("/proc/self/ns/{name}")}));
            config["hostname"] = json!("");
            match setting {
                Some((key, value)) => config["linux"]["sysctl"] = json!({key: value}),
                None => config["hostname"] = json!(present("kernel/hostname")),
            }
        });
        bundle.run().run().ended_with(1).complains_of(words);
        bundle.is_clear();
    };
    let forward = ("net.ipv4.ip_forward", present("net/ipv4/ip_forward"));
    refuses("network", "net", Some(forward), &["net.ipv4.ip_forward", "not allowed"]);
    let longest = ("kernel.msgmax", present("kernel/msgmax"));
    refuses("ipc", "ipc", Some(longest), &["kernel.msgmax", "not allowed"]);
    refuses("uts", "uts", Some(("kernel.hostname", present("kernel/hostname"))), &["kernel.hostname", "not allowed"]);
    refuses("uts", "uts", None, &["private UTS namespace"]);
}

/// A directory of the bundle's and a volume, arranged so that `/NAME` leads to `/a` until the volume is mounted at
/// `/b`, and to where `afterwards` says from then on.
fn led_astray(bundle: &Bundle, sandbox: &Sandbox, name: &str, afterwards: &str) -> PathBuf {
    let volume = sandbox.scratch().join(format!("volume-{name}"));
    for directory in [bundle.inside("a"), bundle.inside("b"), bundle.inside("c"), volume.join("d")] {
        std::fs::create_dir_all(directory).expect("a directory");
    }
    let _ = std::fs::remove_dir(bundle.inside(name));
    symlink("b/q", bundle.inside(name)).expect("a link");
    let _ = std::fs::remove_file(bundle.inside("b/q"));
    symlink("../a", bundle.inside("b/q")).expect("a link");
    symlink(afterwards, volume.join("q")).expect("a link");
    volume
}

fn bound_kernel_files(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "cat /a/keys; ls /a/firmware");
    let spec = bundle.path().join("config.json");
    let before = std::fs::read(&spec).expect("it is there");
    for name in ["proc", "sys"] {
        let volume = led_astray(&bundle, sandbox, name, "../c");
        std::fs::write(&spec, &before).expect("it is ours");
        bundle.change(|config| {
            let mounts = config["mounts"].as_array_mut().expect("a list");
            mounts.retain(|mount| !mount["destination"].as_str().is_some_and(|at| at.starts_with(&format!("/{name}"))));
            let place = format!("/{name}");
            mounts.push(json!({"destination": place, "type": "bind", "source": place, "options": ["rbind", "ro"]}));
            mounts.push(json!({"destination": "/b", "type": "bind", "source": volume, "options": ["rbind", "ro"]}));
        });
        bundle.run().run().ended_with(1).complains_of(&["mounting", name, "ordinary directory"]);
        bundle.is_clear();
        // Whatever the destination is called, what is bound counts.
        bundle.change(|config| {
            let mounts = config["mounts"].as_array_mut().expect("a list");
            let bound = mounts.iter_mut().find(|mount| mount["destination"] == format!("/{name}")).expect("it");
            bound["destination"] = json!(format!("/{name}/../{name}/x"));
            let place = bundle.inside("a/x");
            std::fs::create_dir_all(place).expect("a directory");
        });
        bundle.run().run().ended_with(1).complains_of(&["mounting", name, "ordinary directory"]);
        bundle.is_clear();
        std::fs::remove_file(bundle.inside(name)).expect("it is ours");
        std::fs::create_dir(bundle.inside(name)).expect("a directory");
    }
}

/// As engines do it with the host's processes or in a user namespace.
fn plainly_bound_proc(sandbox: &Sandbox) {
    let bundle = Bundle::new(
        sandbox,
        "wc -c < /proc/keys; echo x > /proc/sys/kernel/domainname || echo ro; ls /sys/firmware; cat /proc/self/comm",
    );
    bundle.change(|config| {
        let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
        namespaces.retain(|namespace| namespace["type"] != "pid");
        for mount in config["mounts"].as_array_mut().expect("a list") {
            if mount["destination"] == "/proc" || mount["destination"] == "/sys" {
                mount["type"] = json!("bind");
                mount["source"] = mount["destination"].clone();
                mount["options"] = json!(["rbind", "nosuid", "noexec", "nodev"]);
            }
        }
        // By other words for the same paths.
        config["linux"]["maskedPaths"] = json!(["/./proc//keys", "/dev/../sys/firmware"]);
        config["linux"]["readonlyPaths"] = json!(["//proc/./sys"]);
    });
    bundle.run().run().succeeded().says("0\nro\ncat\n");
    bundle.is_clear();
}

/// A read-only file system in memory, whose path leads elsewhere when it is to become read-only.
fn moved_ways(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "touch /a/x 2>/dev/null || echo ro; touch /c/x && echo rw");
    let volume = led_astray(&bundle, sandbox, "t", "../c");
    bundle.change(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.push(json!({"destination": "/t", "type": "tmpfs", "source": "tmpfs", "options": ["ro"]}));
        mounts.push(json!({"destination": "/c", "type": "tmpfs", "source": "tmpfs"}));
        mounts.push(json!({"destination": "/b", "type": "bind", "source": volume, "options": ["rbind", "ro"]}));
    });
    bundle.run().run().succeeded().says("ro\nrw\n");
    bundle.is_clear();
}

/// Nodes that the host's users could open, in a directory of theirs.
fn devices_in_a_volume(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "ls /a/null /c");
    let volume = led_astray(&bundle, sandbox, "dev", "d");
    bundle.change(|config| {
        config["linux"]["devices"] = json!([{"path": "/dev/given", "type": "c", "major": 1, "minor": 3}]);
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| !mount["destination"].as_str().is_some_and(|at| at.starts_with("/dev/")));
        mounts.push(json!({"destination": "/b", "type": "bind", "source": volume, "options": ["rbind", "rw"]}));
    });
    let made = || std::fs::read_dir(volume.join("d")).expect("it is there").flatten().count();
    bundle.run().run().succeeded().says("/a/null\n\n/c:\n");
    assert_eq!(made(), 0, "nodes were made in a directory of the host's");
    bundle.is_clear();
    // And without a file system of the container's own there.
    bundle.change(|config| {
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| mount["destination"] != "/dev");
    });
    bundle.run().run().ended_with(1).complains_of(&["making device"]);
    assert_eq!(made(), 0, "nodes were made in a directory of the host's");
    bundle.is_clear();
}

/// To open a watchdog, and to close it again, reboots a machine; here the null device stands for it.
fn device_for_a_file(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "echo $HOME; exec sleep 1000");
    let node = bundle.inside("etc/passwd");
    let _ = std::fs::remove_file(&node);
    mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o644), makedev(1, 3)).expect("a node");
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).expect("a watch");
    inotify::add_watch(&watch, &node, inotify::WatchFlags::OPEN).expect("it is there");
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    assert_eq!(bundle.oci(["exec", "box", "sh", "-c", "echo $HOME"]).ok(), "/\n");
    let mut space = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut space);
    let opened = events.next().map(|event| event.events());
    assert_eq!(opened.err(), Some(Errno::AGAIN), "the runtime has opened a device");
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

/// Bytes of what an image has where a file system in memory is filled with it.
const COPIED: usize = 24 << 20;

fn copied_up(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    std::fs::create_dir(bundle.inside("full")).expect("a directory");
    std::fs::write(bundle.inside("full/large"), vec![b'x'; COPIED]).expect("a file");
    bundle.change(|config| {
        let mount = json!({"destination": "/full", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup"]});
        config["mounts"].as_array_mut().expect("a list").push(mount);
        config["linux"]["resources"]["memory"] = json!({"limit": 4 * COPIED});
    });
    bundle.create();
    let files = bundle.groups().into_iter();
    let files = files.flat_map(|group| [group.join("memory.usage_in_bytes"), group.join("memory.current")]);
    let counted: Vec<usize> =
        files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok()).collect();
    assert!(counted.iter().any(|bytes| *bytes >= COPIED), "the container is counted for {counted:?} bytes");
    bundle.oci(["start", "box"]).ok();
    assert_eq!(bundle.oci(["exec", "box", "wc", "-c", "/full/large"]).ok(), format!("{COPIED} /full/large\n"));
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
    let less = json!({"limit": COPIED / 2, "swap": COPIED / 2});
    bundle.change(|config| config["linux"]["resources"]["memory"] = less);
    bundle.run().run().ended_with(1).complains_of(&["copying /full up", "memory"]);
    bundle.is_clear();
}

/// Whatever is in a container's group ends with it.
fn moved_process(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    let spec = bundle.path().join("config.json");
    let before = std::fs::read(&spec).expect("it is there");
    let other = Line::new("sleep").args(["1000"]).start();
    let pid = other.pid().to_string();
    let groups = || std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    let there = groups();
    for file in ["cgroup.procs", "cgroup.threads"] {
        bundle.change(|config| config["linux"]["resources"]["unified"] = json!({file: pid}));
        bundle.run().run().ended_with(1).complains_of(&[file, "no limit"]);
        bundle.is_clear();
    }
    std::fs::write(&spec, before).expect("it is ours");
    bundle.change(|config| config["process"]["args"] = json!(["sleep", "1000"]));
    bundle.create();
    let update = json!({"unified": {"cgroup.procs": pid}}).to_string();
    bundle.oci(["update", "--resources", "-", "box"]).input(update).run().ended_with(1).complains_of(&["no limit"]);
    assert_eq!(groups(), there);
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

/// In a user namespace the host's node is shown, by the path that it has inside.
fn file_for_a_device(sandbox: &Sandbox) {
    let precious = sandbox.scratch().join("precious");
    let bundle = Bundle::new(sandbox, &format!("cat {0}; echo x >> {0}", precious.display()));
    std::fs::write(&precious, "precious").expect("a file");
    std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(0o666)).expect("it is ours");
    for path in ["", "tmp"] {
        chown(bundle.inside(path), Some(100_000), Some(100_000)).expect("it is ours");
    }
    let give = |device: serde_json::Value| {
        bundle.change(|config| config["linux"]["devices"] = json!([device]));
        bundle.run().run()
    };
    bundle.change(|config| {
        let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
        config["linux"]["uidMappings"] = map.clone();
        config["linux"]["gidMappings"] = map;
        config["linux"]["namespaces"].as_array_mut().expect("a list").push(json!({"type": "user"}));
    });
    let refused = give(json!({"path": precious, "type": "c", "major": 1, "minor": 3}));
    refused.ended_with(1).complains_of(&["is not the device c 1:3"]);
    let refused = give(json!({"path": "/dev/zero", "type": "c", "major": 1, "minor": 3}));
    refused.ended_with(1).complains_of(&["/dev/zero", "is not the device c 1:3"]);
    bundle.change(|config| config["process"]["args"] = json!(["head", "-c", "0", "/dev/full"]));
    give(json!({"path": "/dev/full", "type": "c", "major": 1, "minor": 7})).succeeded();
    assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "precious");
    bundle.is_clear();
}

const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

/// Executes a program in a session keyring of its own (keyctl(2), KEYCTL_JOIN_SESSION_KEYRING).
const WITH_A_KEYRING: &str = "import ctypes, os, sys
assert ctypes.CDLL(None).syscall(250, 1, b'pando-test-callers') > 0
os.execv(sys.argv[1], sys.argv[1:])";

fn callers_keys(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    bundle.change(|config| config["linux"]["maskedPaths"] = json!([]));
    bundle.create();
    bundle.oci(["start", "box"]).ok();
    // As a user that sees what it possesses, and nothing else.
    let look = "grep -c pando-test-callers /proc/keys; grep -q _ses.box /proc/keys && echo own";
    let line = Line::new("python3").args(["-c", WITH_A_KEYRING]).args([runtime().as_os_str(), "--root".as_ref()]);
    let line = line.args([bundle.states()]).args(["exec", "--user", "1000:1000", "box", "sh", "-c", look]);
    line.run().succeeded().says("0\nown\n");
    bundle.oci(["delete", "--force", "box"]).ok();
    bundle.is_clear();
}

/// A startContainer hook is a program of the image's.
fn filtered_hook(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "exec sleep 1000");
    let script = "{ grep Seccomp: /proc/self/status; mkdir /tmp/h && echo made; } > /hook 2>&1";
    for (sealed, id) in [(true, 0), (false, 0), (false, 1000)] {
        let hook = bundle.inside("hook");
        std::fs::write(&hook, "").expect("a file");
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o666)).expect("it is ours");
        bundle.change(|config| {
            config["process"]["noNewPrivileges"] = json!(sealed);
            config["process"]["user"] = json!({"uid": id, "gid": id});
            config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
                "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]});
            let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", format!("{script}; true")], "env": ["PATH=/bin"]});
            config["hooks"] = json!({"startContainer": [hook]});
        });
        bundle.create();
        bundle.oci(["start", "box"]).ok();
        let said = std::fs::read_to_string(&hook).expect("the hook has run");
        assert!(said.starts_with("Seccomp:\t2\n") && !said.contains("made"), "{said}");
        bundle.oci(["delete", "--force", "box"]).ok();
        bundle.is_clear();
    }
}

fn terminal_words(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    bundle.change(|config| config["process"]["args"] = json!(["/bin/\u{1b}]0;x\u{7}\nx"]));
    let ended = bundle.run().run();
    assert!(!ended.err().trim_end().contains(char::is_control), "{:?}", ended.err());
    ended.ended_with(1).complains_of(&["no such file or directory"]);
    bundle.is_clear();
}

/// A log is often in a directory of a user's.
fn piped_log(sandbox: &Sandbox) {
    let bundle = Bundle::new(sandbox, "true");
    let pipe = sandbox.scratch().join("log");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("a pipe");
    let line = bundle.oci(["--log".as_ref(), pipe.as_os_str(), "start".as_ref(), "none".as_ref()]);
    line.limit(10).run().ended_with(1).complains_of(&["does not exist"]);
}

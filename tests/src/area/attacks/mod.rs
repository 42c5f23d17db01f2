//! The hostile guest: each attack of the table in a guest of each profile, and beside it the same program where that
//! protection is off.
//!
//! ```text
//!   tests/attacks/*.c ──build.rs──▶ attack ──▶ control: gets through, else it proves nothing
//!   table.rs: words, control, profiles ──┘ └──▶ a guest of each profile that claims it: denied
//! ```

pub(super) mod races;
pub(super) mod table;

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use rustix::fs::{CWD, FileType, Mode, major, minor};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use table::{Attack, Control};

pub(crate) const CASES: &[Case] = &[
    Case::new("attacks::on_the_machine", |sandbox| all(sandbox, table::MACHINE)).needs(NEEDS),
    Case::new("attacks::on_the_larger_doors", |sandbox| all(sandbox, table::DOORS)).needs(NEEDS),
    Case::new("attacks::on_files", |sandbox| all(sandbox, table::FILES)).needs(NEEDS),
    Case::new("attacks::on_neighbours", |sandbox| all(sandbox, table::NEIGHBOURS)).needs(NEEDS),
    Case::new("attacks::on_the_hosts_abstract_sockets", abstract_sockets).needs(&[Need::Root, Need::Linux(6, 12)]),
    Case::new("attacks::on_the_hosts_abstract_sockets_by_clones", abstract_sockets_by_clones)
        .needs(&[Need::Root, Need::Linux(6, 12)]),
    Case::new("attacks::by_links_during_a_copy", races::links_during_a_copy),
    Case::new("attacks::by_links_during_a_start", races::links_during_a_start),
    Case::new("attacks::by_links_during_a_freeze", races::links_during_a_freeze),
    Case::new("attacks::by_links_in_memory_during_a_freeze", races::links_in_memory_during_a_freeze),
    Case::new("attacks::by_pipes_in_memory_during_a_freeze", races::pipes_in_memory_during_a_freeze),
    Case::new("attacks::programs_of_32_bits", programs_of_32_bits),
];

const NEEDS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux")];

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/attack"));
const PROGRAM32: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/program32"));

const PROFILES: [&str; 3] = ["default", "strict", "system"];

/// A number that nothing else on the machine is called by; also a key of System V's.
const KEY: &str = "1597463007";

/// What an attack's exit code says.
pub(super) const GOT_THROUGH: i32 = 0;
pub(super) const DENIED: i32 = 1;
const KILLED_BY_THE_FILTER: i32 = 128 + 31;

/// The guests, and what there is to attack.
struct Field<'a> {
    sandbox: &'a Sandbox,
    tree: PathBuf,
    marker: PathBuf,
    disk: (u32, u32),
}

impl<'a> Field<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        let tree = tree(sandbox);
        // Whoever is another user of the host could read it, if he got there.
        let marker = tree.with_file_name("marker");
        std::fs::write(&marker, "of the host").expect("a file");
        for path in [sandbox.root(), &sandbox.scratch()] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o711)).expect("they are ours");
        }
        let device = std::fs::metadata("/").expect("the root is there").dev();
        let disk = (major(device), minor(device));
        let node = tree.join("srv/node");
        let kernel_log = rustix::fs::makedev(1, 11);
        rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o666), kernel_log)
            .expect("a node");
        std::fs::set_permissions(&node, PermissionsExt::from_mode(0o666)).expect("it is ours");
        let shown = sandbox.scratch().join("shown");
        std::fs::create_dir_all(&shown).expect("a directory");
        std::fs::set_permissions(&shown, PermissionsExt::from_mode(0o777)).expect("it is ours");
        let (tree_path, volume) = (tree.to_string_lossy().into_owned(), format!("{}:/ro:ro", shown.display()));
        for profile in PROFILES {
            sandbox.pando(["create", profile, "--from", &tree_path, "--profile", profile, "-v", &volume]).ok();
            sandbox.pando(["start", profile]).ok();
        }
        sandbox.pando(["create", "near", "--from", &tree_path, "--", "/bin/attack", "stand", KEY]).ok();
        sandbox.pando(["start", "near"]).ok();
        let standing =
            || sandbox.pando(["exec", "near", "--", "/bin/attack", "named-memory", KEY]).run().code() == GOT_THROUGH;
        eventually("the neighbour stands", standing);
        Self { sandbox, tree, marker, disk }
    }

    fn words(&self, attack: &Attack, profile: &str) -> Vec<String> {
        let of = |name: &str| self.sandbox.inspect(name)["cgroups"][0].as_str().unwrap_or_default().to_owned();
        let word = |word: &str| match word {
            "{marker}" => vec![self.marker.to_string_lossy().into_owned()],
            "{key}" => vec![KEY.to_owned()],
            "{pid}" => vec![self.neighbour().to_string()],
            "{group}" if profile.is_empty() => vec![of("near")],
            "{group}" => vec!["/sys/fs/cgroup".to_owned()],
            "{disk}" => vec!["b".to_owned(), self.disk.0.to_string(), self.disk.1.to_string()],
            other => vec![other.to_owned()],
        };
        attack.words.split(' ').flat_map(word).collect()
    }

    /// The host's pid of who stands there: the command below the guest's first process.
    fn neighbour(&self) -> i64 {
        let text = self.sandbox.pando(["ps", "near", "--json"]).ok();
        let all: serde_json::Value = serde_json::from_str(&text).expect("ps --json prints JSON");
        let stands = |one: &&serde_json::Value| one["command"].as_str().is_some_and(|words| words.contains("stand"));
        all.as_array().expect("an array").iter().find(stands).expect("it stands")["host_pid"].as_i64().expect("a pid")
    }

    /// In a guest that runs.
    fn inside(&self, name: &str, attack: &Attack, profile: &str) -> Ended {
        let program = if attack.user.is_some() { "/bin/rooted" } else { "/bin/attack" };
        let user = attack.user.unwrap_or("root");
        let line = self.sandbox.pando(["exec", "-u", user, name, "--", program]);
        line.args(self.words(attack, profile)).run()
    }

    fn control(&self, attack: &Attack) -> Ended {
        match attack.control {
            Control::Near => self.inside("near", attack, ""),
            Control::Guest([]) => self.inside("default", attack, "default"),
            Control::Guest(options) => {
                let tree = self.tree.to_string_lossy().into_owned();
                let line = self.sandbox.pando(["run", "--from", &tree]).args(options).args(["--", "/bin/attack"]);
                line.args(self.words(attack, "default")).run()
            }
            Control::Open => Line::new(self.tree.join("bin/attack")).args(self.words(attack, "")).run(),
            Control::Host(_) => on_the_host(self.sandbox, &self.tree, &attack.control, &self.words(attack, "")),
        }
    }

    /// Whether there is something to attack.
    fn has(&self, attack: &Attack) -> bool {
        match attack.on {
            Some(table::DISK) => self.can_open_disk(),
            Some(path) => Path::new(path).exists(),
            None => true,
        }
    }

    /// The host may itself be held to a list of devices.
    fn can_open_disk(&self) -> bool {
        let node = self.sandbox.scratch().join("disk");
        let device = rustix::fs::makedev(self.disk.0, self.disk.1);
        let made = rustix::fs::mknodat(CWD, &node, FileType::BlockDevice, Mode::from_raw_mode(0o600), device);
        made.is_ok() && std::fs::File::open(&node).is_ok()
    }
}

/// Has the control of an attack try it as the host's root, in private namespaces.
pub(super) fn on_the_host(sandbox: &Sandbox, tree: &Path, control: &Control, words: &[String]) -> Ended {
    let Control::Host(script) = control else { panic!("{control:?} is none on the host") };
    let place = tempfile::tempdir_in(sandbox.scratch()).expect("a directory");
    let namespaces =
        ["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--ipc", "--uts", "--net"];
    let line = Line::new("unshare").args(namespaces).args(["sh", "-ec", script, "sh"]).args(words);
    line.env("ATTACK", tree.join("bin/attack")).env("TREE", tree).directory(place.path()).run()
}

/// The small tree, with the attacker in it twice: once more as a set-user-id file.
pub(super) fn tree(sandbox: &Sandbox) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a", sandbox.busybox()]).args([tree.as_os_str()]).ok();
    std::fs::create_dir_all(tree.join("proc")).expect("a directory");
    install(&tree.join("bin/attack"), PROGRAM, 0o755);
    install(&tree.join("bin/rooted"), PROGRAM, 0o4755);
    tree
}

fn install(path: &Path, program: &[u8], mode: u32) {
    std::fs::write(path, program).expect("a file");
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is ours");
}

/// Tries every attack of a list, and tells of all that went wrong at once.
fn all(sandbox: &Sandbox, attacks: &[Attack]) {
    let field = Field::new(sandbox);
    let mut wrong = Vec::new();
    for attack in attacks {
        if !field.has(attack) {
            eprintln!("attacks: '{}' is passed over: this host has nothing of the kind", attack.words);
            continue;
        }
        let control = field.control(attack);
        if control.code() != GOT_THROUGH {
            wrong.push(format!(
                "{} proves nothing: {:?} {} {}{}",
                attack.words,
                attack.control,
                control.code(),
                control.out(),
                control.err()
            ));
        }
        for profile in attack.denied_in {
            let ended = field.inside(profile, attack, profile);
            if ![DENIED, KILLED_BY_THE_FILTER].contains(&ended.code()) {
                wrong.push(format!("{} in {profile}: {} {}{}", attack.words, ended.code(), ended.out(), ended.err()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A guest on the host's network is kept from its abstract sockets by a Landlock domain, where its profile claims that.
fn abstract_sockets(sandbox: &Sandbox) {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("pando-attack-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a short name");
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("nobody else has this name");
    let tree = tree(sandbox).to_string_lossy().into_owned();
    let connect = |options: &[&str]| {
        let line = sandbox.pando(["run", "--from", &tree, "--net", "host"]).args(options);
        line.args(["--", "/bin/attack", "abstract-socket", &std::process::id().to_string()]).run()
    };
    assert_eq!(connect(&[]).code(), GOT_THROUGH, "the control: nothing keeps a guest on the host's network from it");
    let ended = connect(&["--profile", "strict"]);
    assert_eq!(ended.code(), DENIED, "{}{}", ended.out(), ended.err());
}

/// What was frozen is kept from them in a clone, too, and in a clone of that: it is not born of who holds the rest of
/// its guest.
fn abstract_sockets_by_clones(sandbox: &Sandbox) {
    use std::os::linux::net::SocketAddrExt;
    let own = format!("clones-{}", std::process::id());
    let address =
        std::os::unix::net::SocketAddr::from_abstract_name(format!("pando-attack-{own}")).expect("a short name");
    let _listener = std::os::unix::net::UnixListener::bind_addr(&address).expect("nobody else has this name");
    let tree = tree(sandbox).to_string_lossy().into_owned();
    let script = format!(
        "while :; do if [ -e /go ]; then rm /go; attack abstract-socket {own}; echo $? >/result.new; mv /result.new /result; fi; \
         sleep 0.05; done"
    );
    for (profile, wanted) in [("default", GOT_THROUGH), ("strict", DENIED)] {
        let create =
            ["create", profile, "--from", &tree, "--net", "host", "--profile", profile, "--", "sh", "-c", &script];
        sandbox.pando(create).ok();
        sandbox.pando(["start", profile]).ok();
        let mut last = profile.to_owned();
        for number in 0..3 {
            sandbox.exec_sh(&last, "rm -f /result; : >/go").ok();
            let outcome = || sandbox.exec_sh(&last, "cat /result").run().out();
            eventually("it has tried", || !outcome().is_empty());
            assert_eq!(outcome(), format!("{wanted}\n"), "{last} of profile {profile}");
            // Whoever comes in reaches it by signals, and ends it.
            sandbox.exec_sh(&last, "kill -0 2").ok();
            let (image, next) = (format!("{profile}-image-{number}"), format!("{profile}-{number}"));
            sandbox.pando(["freeze", &last, &image]).ok();
            sandbox.pando(["clone", &image, &next]).ok();
            sandbox.pando(["stop", &last]).ok();
            last = next;
        }
    }
}

fn programs_of_32_bits(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    install(&tree.join("bin/program32"), PROGRAM32, 0o755);
    if !Line::new(tree.join("bin/program32")).run().out().starts_with("of 32 bits") {
        crate::case::skip("this kernel runs no 32-bit programs");
    }
    let tree = tree.to_string_lossy().into_owned();
    let run =
        |profile: &str| sandbox.pando(["run", "--from", &tree, "--profile", profile, "--", "/bin/program32"]).run();
    run("default").succeeded().says("of 32 bits\n");
    run("system").succeeded().says("of 32 bits\n");
    run("strict").ended_with(KILLED_BY_THE_FILTER);
}

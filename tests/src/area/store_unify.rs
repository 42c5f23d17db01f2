//! Unification changes nothing that a guest can observe.

use super::crash::kill_daemon_at;
use crate::case::Case;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("unify::guests_at_rest_show_the_same_afterwards", guests_at_rest_show_the_same_afterwards),
    Case::new("unify::a_running_guest_waits_for_its_next_start", a_running_guest_waits_for_its_next_start),
    Case::new("unify::no_tree_is_too_deep_to_look_through", no_tree_is_too_deep),
    Case::new("unify::the_daemon_is_killed_at_every_step", the_daemon_is_killed_at_every_step),
];

/// Gives a guest files of its own that another one has too, of every kind, with everything that they can carry; and
/// takes some of its layer's away.
const WORK: &str = r#"
mkdir -p /opt/app/lib /opt/empty && cd /opt/app
i=0; while [ $i -lt 12 ]; do yes "library $i" | head -c 700000 >lib/$i.so; i=$((i+1)); done
cp lib/3.so lib/same-as-3.so; ln lib/4.so lib/name-of-4.so; ln -s lib/5.so link
mkfifo fifo; truncate -s 9000000 sparse; printf end >>sparse
chmod 4755 lib/6.so; chown 33:44 lib/7.so; chmod 0 lib/8.so; touch -d '2001-02-03 04:05:06' lib/9.so lib
printf '\377' >"$(printf 'name\377')"; : >empty
rm /etc/hostname; rm -rf /home; mv /srv /srv2; mkdir /srv; echo changed >>/etc/passwd; chmod 700 /var; ln /etc/group /etc/group2
mkdir /home; chmod 1777 /home; touch -d 1999-01-01 /; chown 7 /
"#;

/// All that can be seen of a guest's files but what tells one kind of file system from another: sizes and links of
/// directories. Links of files are seen as which names belong together: an overlay with an index counts one too many on
/// what was copied up.
fn portrait(sandbox: &Sandbox, name: &str) -> String {
    let script = r#"
        all() { find / -xdev -path /proc -prune -o -path /dev -prune -o -path /sys -prune -o -path /run -prune -o "$@" -print | sort | tr '\n' '\0'; }
        all -type d | xargs -0 stat -c '%n %f %u %g %y'
        all ! -type d | xargs -0 stat -c '%n %f %u %g %s %t:%T %y'
        all -type f | xargs -0 sha256sum
        all -type l | xargs -0 -n 1 readlink
        all ! -type d | xargs -0 stat -c '%i %n' | awk '{ n[$1] = n[$1] " " $2 } END { for (i in n) print "together" n[i] }' | sort"#;
    sandbox.exec_sh(name, script).ok()
}

/// Two guests with the same work done in each, not running; and what they look like.
fn two_guests(sandbox: &Sandbox) -> [String; 2] {
    ["a", "b"].map(|name| {
        sandbox.guest(name, &[]);
        sandbox.exec_sh(name, WORK).ok();
        let seen = portrait(sandbox, name);
        sandbox.pando(["stop", "--time", "1", name]).ok();
        seen
    })
}

fn unify(sandbox: &Sandbox, options: &[&str]) -> serde_json::Value {
    let text = sandbox.pando(["unify", "--json"]).args(options).ok();
    serde_json::from_str(&text).expect("JSON")
}

fn outcomes(told: &serde_json::Value) -> Vec<String> {
    let guests = told["guests"].as_array().expect("a list");
    guests.iter().map(|guest| format!("{} {}", guest["name"], guest["outcome"]).replace('"', "")).collect()
}

fn guests_at_rest_show_the_same_afterwards(sandbox: &Sandbox) {
    let before = two_guests(sandbox);
    let planned = unify(sandbox, &["--dry-run"]);
    // The first to be looked at pays for what both have; what it has twice it saves all the same.
    assert!(outcomes(&planned).contains(&"b shared".to_owned()), "{planned}");
    let untouched = sandbox.inspect("b")["layers"].clone();
    let told = unify(sandbox, &[]);
    assert!(outcomes(&told).contains(&"b shared".to_owned()), "{told}");
    assert_ne!(sandbox.inspect("b")["layers"], untouched);
    // Now the store has what the first one has of its own.
    unify(sandbox, &[]);
    assert_eq!(sandbox.inspect("a")["layers"].as_array().map(Vec::len), Some(1));
    for (name, before) in ["a", "b"].iter().zip(&before) {
        let upper = sandbox.places().guests().join(name).join("files/upper");
        assert_eq!(std::fs::read_dir(upper).expect("it is there").count(), 0, "{name} has files of its own");
        sandbox.pando(["start", name]).ok();
        assert_same(before, &portrait(sandbox, name));
        sandbox.exec_sh(name, "cd /opt/app/lib; stat -c %h 3.so 4.so").run().says("1\n2\n");
    }
    sandbox.pando(["store", "gc"]).ok();
    sandbox.pando(["store", "verify"]).ok();
    assert_same(&before[1], &portrait(sandbox, "b"));
    assert_eq!(outcomes(&unify(sandbox, &[])), Vec::<String>::new(), "there is nothing left to share");
}

#[track_caller]
fn assert_same(before: &str, after: &str) {
    let lost: Vec<_> = before.lines().filter(|line| !after.lines().any(|other| other == *line)).collect();
    let gained: Vec<_> = after.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
    assert!(lost.is_empty() && gained.is_empty(), "was {lost:#?}\nis {gained:#?}");
}

fn a_running_guest_waits_for_its_next_start(sandbox: &Sandbox) {
    let before = two_guests(sandbox);
    sandbox.pando(["start", "b"]).ok();
    let told = unify(sandbox, &[]);
    assert!(outcomes(&told).contains(&"b at next start".to_owned()), "{told}");
    assert_same(&before[1], &portrait(sandbox, "b"));
    sandbox.exec_sh("b", "echo later >/opt/app/later").ok();
    sandbox.pando(["stop", "--time", "1", "b"]).ok();
    sandbox.pando(["start", "b"]).ok();
    let upper = sandbox.places().guests().join("b/files/upper/opt");
    assert!(!upper.exists(), "its files are in the store");
    sandbox
        .exec_sh("b", "cat /opt/app/later && rm /opt/app/later && touch -r /opt/app/lib/9.so /opt/app")
        .run()
        .says("later\n");
}

const STEPS: [&str; 12] = [
    "fold.begun",
    "store.scanned",
    "store.staged",
    "store.synced",
    "store.renamed",
    "store.objects",
    "store.named",
    "fold.imported",
    "fold.prepared",
    "fold.exchanged",
    "fold.recorded",
    "store.forgotten",
];

fn the_daemon_is_killed_at_every_step(sandbox: &Sandbox) {
    for step in STEPS {
        let before = two_guests(sandbox);
        sandbox.end_daemon();
        // The last of them comes when what is left over goes in the background.
        kill_daemon_at(sandbox, step, sandbox.pando(["unify"]));
        for (name, before) in ["a", "b"].iter().zip(&before) {
            sandbox.pando(["start", name]).ok();
            let after = portrait(sandbox, name);
            assert!(*before == after, "{step}: {name} shows something else");
            sandbox.pando(["stop", "--time", "1", name]).ok();
        }
        sandbox.pando(["store", "verify"]).ok();
        let left = sandbox.places().guests().join("a/files.new");
        assert!(!left.exists(), "{step} left {}", left.display());
        sandbox.pando(["rm", "a", "b"]).ok();
    }
}

/// Directories in directories, as deep as a path can name, each with others beside it; and a file of terabytes without
/// data.
fn no_tree_is_too_deep(sandbox: &Sandbox) {
    let make = "mkdir /deep && cd /deep && i=0 && while [ $i -lt 1990 ]; do mkdir d e f && cd d || exit; i=$((i+1)); done; \
        head -c 100000 /dev/zero | tr '\\0' x >/deep/e/file; truncate -s 4T /hollow; echo done";
    for name in ["a", "b", "c"] {
        sandbox.guest(name, &[]);
        sandbox.exec_sh(name, make).limit(300).run().says("done\n");
    }
    let before = sandbox.daemon();
    let told = sandbox.pando(["unify", "--dry-run", "--json"]).limit(300).ok();
    assert!(told.contains("guests"), "{told}");
    assert_eq!(sandbox.daemon(), before, "the daemon ended by it");
}

//! The daemon is killed at random moments while guests are created, unified, collected and verified: what guests show
//! stays the same to the byte.

use crate::case::{Case, Tag};
use crate::dice::Dice;
use crate::line::Line;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    Case::new("unify::killed_at_random_moments", |sandbox| killed_at_random(sandbox, 25)),
    Case::new("unify::killed_at_300_random_moments", |sandbox| killed_at_random(sandbox, 300)).tags(&[Tag::Slow]),
];

/// Within how many microseconds after a command's start.
const WITHIN: u64 = 250_000;

const NAMES: [&str; 2] = ["a", "b"];

/// What two guests have in common and no layer has; `$SALT` differs from kill to kill, so that there is something to
/// unify each time.
const WORK: &str = r#"
mkdir -p /srv/app && cd /srv/app
i=0; while [ $i -lt 8 ]; do yes "library $i $SALT" | head -c 600000 >$i.so; i=$((i+1)); done
ln -f 4.so name; ln -sf 5.so link; [ -p fifo ] || mkfifo fifo; chmod 4755 6.so; chown 33:44 7.so; printf '\377' >"$(printf 'name\377')"
rm -rf /etc/hostname; touch -d '2001-02-03 04:05:06' 3.so .
"#;

/// Everything that a guest shows, whatever layers it stands on.
const PORTRAIT: &str = r#"
all() { find /srv /etc /root -xdev "$@" -print | sort | tr '\n' '\0'; }
all -type d | xargs -0 stat -c '%n %f %u %g %y'
all ! -type d | xargs -0 stat -c '%n %f %u %g %s %t:%T %y'
all -type f | xargs -0 sha256sum
all ! -type d | xargs -0 stat -c '%i %n' | awk '{ n[$1] = n[$1] " " $2 } END { for (i in n) print "together" n[i] }' | sort
"#;

fn work(sandbox: &Sandbox, name: &str, salt: u32) -> String {
    sandbox.pando(["start", name]).ok();
    sandbox.exec_sh(name, &format!("SALT={salt}{WORK}")).ok();
    let seen = sandbox.exec_sh(name, PORTRAIT).ok();
    sandbox.pando(["stop", "--time", "1", name]).ok();
    seen
}

fn killed_at_random(sandbox: &Sandbox, kills: u32) {
    let mut dice = Dice::new(0x5eed_cafe);
    NAMES.iter().for_each(|name| sandbox.create(name, &[]));
    sandbox.guest("steady", &["--", "sleep", "100000"]);
    let steady = sandbox.exec_sh("steady", PORTRAIT).ok();
    let mut portraits = Vec::new();
    let mut counted = [0; 4];
    for kill in 0..kills {
        // Work between every few kills: then there is something to unify again.
        if kill % 6 == 0 {
            portraits = NAMES.map(|name| work(sandbox, name, kill)).to_vec();
        }
        sandbox.pando(["ls"]).ok();
        let daemon = sandbox.daemon().expect("it has just answered");
        let (kind, line) = random_line(sandbox, &mut dice, kill);
        let line = line.start();
        std::thread::sleep(Duration::from_micros(dice.throw(WITHIN)));
        process::kill(daemon);
        counted[kind] += 1;
        let ended = line.wait();
        assert!(matches!(ended.code(), 0 | 1 | 125 | 137), "{}: {}", ended.code(), ended.err());
        eventually("the next daemon answers", || sandbox.pando(["ls"]).run().code() == 0);
        sandbox.pando(["rm", "--force", "made"]).run();
        if kill % 3 == 2 || kill + 1 == kills {
            sandbox.pando(["store", "verify"]).ok();
            for (name, before) in NAMES.iter().zip(&portraits) {
                sandbox.pando(["start", name]).ok();
                let now = sandbox.exec_sh(name, PORTRAIT).ok();
                assert!(*before == now, "kill {kill}: {name} was\n{before}\nand is\n{now}");
                sandbox.pando(["stop", "--time", "1", name]).ok();
            }
            assert_eq!(sandbox.exec_sh("steady", PORTRAIT).ok(), steady, "kill {kill}");
        }
    }
    let [created, unified, collected, verified] = counted;
    println!(
        "     killed during {created} creates, {unified} unifications, {collected} collections, {verified} verifications"
    );
}

fn random_line(sandbox: &Sandbox, dice: &mut Dice, kill: u32) -> (usize, Line) {
    match dice.throw(8) {
        0 | 1 => (0, create(sandbox, kill)),
        2..=4 => (1, sandbox.pando(["unify"])),
        5 | 6 => (2, sandbox.pando(["store", "gc"])),
        _ => (3, sandbox.pando(["store", "verify"])),
    }
}

/// A guest from a tree that no layer has yet.
fn create(sandbox: &Sandbox, kill: u32) -> Line {
    let tree = sandbox.scratch().join("tree");
    if !tree.exists() {
        Line::new("cp").args(["-a", sandbox.busybox()]).args([&tree]).ok();
    }
    for number in 0..20 {
        std::fs::write(tree.join(number.to_string()), format!("{kill} {number} ").repeat(5_000)).expect("a file");
    }
    sandbox.pando(["create", "made", "--from"]).args([&tree])
}

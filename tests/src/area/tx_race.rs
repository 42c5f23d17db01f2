//! The race between a check and a use, that TxOS's paper reproduces: without a transaction the attacker wins, with one
//! never.

use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::race::WORD;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] =
    &[Case::new("tx_race::a_link_between_a_check_and_a_use", link_between).tags(&[Tag::Slow])];

/// How often the victim checks and uses, each way; the wins that show that the attack is one.
const TIMES: u64 = 10_000;
const WINS: u64 = 500;

/// How often it does so in one transaction.
const AT_ONCE: u64 = 100;

/// What the guest may have of memory: the attacker wants more for its files, so that names are forgotten, and looking
/// one up takes long.
const MEMORY: &str = "128M";

/// Where this program is in the guest.
const HERE: &str = "/usr/bin/pando-tests";

fn link_between(sandbox: &Sandbox) {
    let program = std::env::current_exe().expect("this program has a path");
    sandbox.guest("g", &["--memory", MEMORY, "-v", &format!("{}:{HERE}:ro", program.display())]);
    let part = |words: &[&str]| sandbox.pando(["exec", "g", "--", HERE, WORD]).args(words).limit(3000);
    let wins = || -> u64 {
        let size = sandbox.exec_sh("g", "wc -c </srv/race/secret").run().succeeded().out();
        size.trim().parse().expect("it is a number")
    };
    part(&["prepare", "/srv/race"]).ok();
    let attacker = part(&["attacker", "/srv/race"]).start();
    eventually("the attacker attacks", || sandbox.exec_sh("g", "[ -L /srv/race/open/foo ]").run().code() == 0);
    let presser = part(&["presser", "/srv/race"]).start();
    part(&["victim", "/srv/race", &TIMES.to_string()]).ok();
    let without = wins();
    for _ in 0..TIMES / AT_ONCE {
        let line = sandbox.pando(["tx", "run", "-q", "--guest", "g", "--no-durable", "--retry", "1", "--", HERE, WORD]);
        line.args(["victim", "/srv/race", &AT_ONCE.to_string()]).limit(600).run().succeeded();
    }
    let with = wins() - without;
    println!("     {TIMES} checks and uses: {without} wins of the attacker's without a transaction, {with} with");
    sandbox.exec_sh("g", ": >/srv/race/stop").ok();
    attacker.wait().succeeded();
    presser.wait().succeeded();
    assert_eq!(with, 0);
    assert!(without >= WINS, "the attack is none: {without} wins");
}

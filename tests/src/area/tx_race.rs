//! The race between a check and a use, that TxOS's paper reproduces: without a transaction the attacker wins, with one never.

use crate::case::{Case, Tag};
use crate::patience::eventually;
use crate::race::WORD;
use crate::sandbox::Sandbox;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const CASES: &[Case] =
    &[Case::new("tx_race::a_link_between_a_check_and_a_use", link_between).tags(&[Tag::Slow])];

/// How often the victim checks and uses, each way; the wins that show that the attack is one.
const TIMES: u64 = 10_000;
const WINS: u64 = 500;

/// How often it does so in one transaction.
const AT_ONCE: u64 = 100;

/// How often the kernel is made to forget names, so that looking one up takes long.
const PRESSURE: Duration = Duration::from_secs(1);

/// Where this program is in the guest.
const HERE: &str = "/usr/bin/pando-tests";

/// Pressure on the caches, for as long as it lives.
struct Pressure {
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Pressure {
    fn begin() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let press = move || {
            while !told.load(Ordering::Relaxed) {
                // Names and inodes that nobody uses. Where it is not allowed the attacker has to do without.
                let _ = std::fs::write("/proc/sys/vm/drop_caches", "2");
                std::thread::sleep(PRESSURE);
            }
        };
        Self { over, thread: Some(std::thread::spawn(press)) }
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn link_between(sandbox: &Sandbox) {
    let program = std::env::current_exe().expect("this program has a path");
    sandbox.guest("g", &["-v", &format!("{}:{HERE}:ro", program.display())]);
    let part = |words: &[&str]| sandbox.pando(["exec", "g", "--", HERE, WORD]).args(words).limit(3000);
    let wins = || -> u64 {
        let size = sandbox.exec_sh("g", "wc -c </srv/race/secret").run().succeeded().out();
        size.trim().parse().expect("it is a number")
    };
    part(&["prepare", "/srv/race"]).ok();
    let attacker = part(&["attacker", "/srv/race"]).start();
    eventually("the attacker attacks", || sandbox.exec_sh("g", "[ -L /srv/race/open/foo ]").run().code() == 0);
    let pressure = Pressure::begin();
    part(&["victim", "/srv/race", &TIMES.to_string()]).ok();
    let without = wins();
    for _ in 0..TIMES / AT_ONCE {
        let line = sandbox.pando(["tx", "run", "-q", "--guest", "g", "--no-durable", "--retry", "1", "--", HERE, WORD]);
        line.args(["victim", "/srv/race", &AT_ONCE.to_string()]).limit(600).run().succeeded();
    }
    drop(pressure);
    let with = wins() - without;
    println!("     {TIMES} checks and uses: {without} wins of the attacker's without a transaction, {with} with");
    sandbox.exec_sh("g", ": >/srv/race/stop").ok();
    attacker.wait().succeeded();
    assert_eq!(with, 0);
    assert!(without >= WINS, "the attack is none: {without} wins");
}

//! A shell in a transaction: whoever leaves it decides what becomes of what was done there.

use crate::case::Case;
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::terminal::Terminal;
use std::fs;
use std::path::Path;

const NEEDS: &[Need] = &[Need::Root, Need::Program("setsid", "util-linux")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_shell::on_a_terminal_it_asks", asks).needs(NEEDS),
    Case::new("tx_shell::a_terminal_that_hangs_up_aborts", hangs_up).needs(NEEDS),
    Case::new("tx_shell::without_a_terminal_success_commits", without_a_terminal),
];

/// A shell on a terminal, which has written to a file.
fn shell(sandbox: &Sandbox, file: &Path) -> Terminal {
    let words = ["--root", sandbox.root().to_str().expect("a plain path"), "tx", "shell", "--name", "s"];
    let words = words.into_iter().chain(["--", "sh", "-c"]).map(str::to_owned);
    let script = format!("echo inside >{}; exit 3", file.display());
    Terminal::run(sandbox.program(), words.chain([script]), (24, 200))
}

fn asks(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("f");
    let mut terminal = shell(sandbox, &file);
    terminal.shows("in transaction 's'");
    terminal.shows("[d]iff, [c]ommit or [a]bort?");
    assert!(!file.exists());
    terminal.types("yes\n");
    terminal.shows("d, c or a");
    terminal.types("d\n");
    terminal.shows("+inside");
    assert!(!file.exists());
    terminal.types("c\n");
    terminal.shows("committed: 1 path");
    assert_eq!(terminal.ends(), 0);
    assert_eq!(fs::read_to_string(&file).expect("it is committed"), "inside\n");
    fs::write(&file, "before").expect("a file can be written");
    let mut terminal = shell(sandbox, &file);
    terminal.shows("[a]bort?");
    // In conflict it stays open, and is asked about again.
    fs::write(&file, "others").expect("a file can be written");
    terminal.types("c\n");
    terminal.shows("conflict");
    terminal.types("a\n");
    assert_eq!(terminal.ends(), 1);
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "others");
    assert_eq!(sandbox.pando(["tx", "ls", "--json"]).ok().trim(), "[]");
}

fn hangs_up(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("f");
    let terminal = shell(sandbox, &file);
    terminal.shows("[a]bort?");
    drop(terminal);
    // Whichever ends first, nothing of it stays.
    crate::patience::eventually("the transaction is gone", || {
        sandbox.pando(["tx", "recover"]).ok();
        sandbox.pando(["tx", "ls", "--json"]).ok().trim() == "[]"
    });
    assert!(!file.exists());
}

fn without_a_terminal(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let shell = |script: &str| sandbox.pando(["tx", "shell"]).input(script).directory(&directory).run();
    let ended = shell("echo a >a\necho b >b\n").succeeded();
    assert!(ended.err().contains("committed: 2 paths"), "{}", ended.err());
    assert!(directory.join("a").exists() && directory.join("b").exists());
    let ended = shell("echo c >c\nexit 7\n").ended_with(7);
    assert!(ended.err().contains("aborted"), "{}", ended.err());
    assert!(!directory.join("c").exists());
    let ended = sandbox.pando(["tx", "shell", "--", "no-such-program"]).run().ended_with(127);
    ended.complains_of(&["no-such-program"]);
    assert_eq!(sandbox.pando(["tx", "ls", "--json"]).ok().trim(), "[]");
}

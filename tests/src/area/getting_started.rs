//! The page for newcomers: each of its commands prints what the page says.

use crate::case::{Case, Tag};
use crate::line::Line;
use crate::need::Need;
use crate::page;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("getting_started::every_command_prints_what_the_page_says", every_command).needs(NEEDS),
    Case::new("getting_started::a_page_that_says_otherwise_is_noticed", otherwise).needs(&[]).tags(&[Tag::Vm]),
];

const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap"), Need::Program("python3", "python3")];

const PAGE: &str = include_str!("../../../docs/getting-started.md");

/// Seconds that installing a Debian system may take.
const LIMIT: u64 = 300;

fn every_command(sandbox: &Sandbox) {
    let commands = page::commands(PAGE);
    assert!(commands.len() > 25, "the page's commands are found: {commands:?}");
    // The page calls the installed command, by way of sudo.
    let before = format!("sudo() {{ \"$@\"; }}; pando() {{ \"{}\" \"$@\"; }}; ", sandbox.program().display());
    for command in commands {
        let line = Line::new("sh").args(["-c", &format!("{{ {before}{}\n}} 2>&1", command.line)]);
        let line = line.env("PANDO_ROOT", sandbox.root()).env("LC_ALL", "C.UTF-8");
        let printed = line.directory(sandbox.scratch()).limit(LIMIT).run().out();
        let lines: Vec<&str> = printed.lines().collect();
        assert!(page::agrees(&command.prints, &lines), "{} printed: {printed}", command.line);
    }
}

fn otherwise(_: &Sandbox) {
    let [one] = &page::commands("text\n```console\n$ ls\na …\n…\nlast\n```\n```\n$ not run\n```\n")[..] else {
        panic!("one command is run");
    };
    assert_eq!(one.line, "ls");
    assert!(page::agrees(&one.prints, &["a b", "last"]) && page::agrees(&one.prints, &["a b", "c", "d", "last"]));
    for other in [&["a b"][..], &["b", "last"], &["a b", "last", "more"], &[]] {
        assert!(!page::agrees(&one.prints, other), "{other:?}");
    }
}

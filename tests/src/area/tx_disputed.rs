//! One file, two who change it: what the one does to its attributes and the other to its content is both kept, once it
//! is known which file it is.

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::attributes_and_content_that_are_changed_by_two_are_both_kept", apart),
    Case::new("tx::what_two_have_changed_or_one_has_read_stays_a_conflict", together),
    Case::new("tx::what_two_change_apart_is_kept_by_a_commit_that_is_killed", killed),
    Case::new("tx::a_log_is_given_to_another_while_it_is_written", log),
];

/// Runs `command` in a transaction, and again once or twice. In each run others do `change` to what it has changed by
/// then, which knows the run's number as `$n`, before it ends. What they say to each other is the command's output,
/// which is no part of what it reads. Then `after` is looked at.
fn line(sandbox: &Sandbox, retries: u32, [command, change, after]: [&str; 3]) -> Line {
    let script = format!(
        "rm -rf tree; mkdir tree; cd tree; echo 1 >file; cp -p file like; echo 2 >two; ln two names; : >../out
         for n in 1 2 3; do until [ $(grep -c read ../out) = $n ]; do sleep .02; done; {change}; echo done $n >>../out; done & OTHERS=$!
         \"$PANDO\" --root \"$ROOT\" tx run --retry {retries} -- sh -ec '{command}; echo read; n=$(grep -c read ../out)
             until grep -q \"done $n\" ../out; do sleep .02; done' >>../out
         code=$?; kill $OTHERS 2>/dev/null; {after}; exit $code"
    );
    let line = Line::new("bash").args(["-c", &script]).directory(sandbox.scratch());
    line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root())
}

fn run(sandbox: &Sandbox, script: [&str; 3]) -> Ended {
    line(sandbox, 1, script).run()
}

fn apart(sandbox: &Sandbox) {
    let look = "stat -c '%a %u:%g' file; tr '\\n' ' ' <file";
    let given = run(sandbox, ["chmod 600 file; chown 7:8 file", "echo theirs $n >>file", look]);
    assert_eq!(
        given.complains_of(&["file was changed by others; running it again (1 of 1)", "committed: 1 path"]).out(),
        "600 7:8\n1 theirs 1 theirs 2 "
    );
    let written = run(sandbox, ["echo mine >>file", "chmod 64$n file; chown $n:$n file", look]);
    assert_eq!(written.complains_of(&["running it again (1 of 1)", "committed: 1 path"]).out(), "642 2:2\n1 mine ");
    // It has the time of who has written last, and the other sees one that is long ago.
    let look = "[ $(stat -c %Y file) -gt $(($(date +%s) - 1000)) ] && echo new";
    let theirs = "echo $n >>file; [ $n = 2 ] || touch -d 2001-01-01 file";
    assert_eq!(run(sandbox, ["chmod 600 file", theirs, look]).succeeded().out(), "new\n");
    let theirs = "chmod 64$n file; [ $n = 2 ] || touch -d 2001-01-01 file";
    assert_eq!(run(sandbox, ["echo mine >>file", theirs, look]).succeeded().out(), "new\n");
}

fn together(sandbox: &Sandbox) {
    for (command, change) in [
        ("chmod 600 file", "chmod 64$n file"),
        ("echo mine >>file", "echo theirs >>file"),
        ("cat file >/dev/null; chmod 600 file", "echo theirs >>file"),
        ("chmod 600 file; cat file >/dev/null", "echo theirs >>file"),
        ("echo mine >>file; chmod 600 file", "chmod 64$n file"),
        ("chmod 600 file", "echo theirs >>file; chmod 64$n file"),
        ("chmod 600 file; touch -d 2001-01-01 file", "echo theirs >>file"),
        // Nothing but the content tells it.
        ("echo mine >>file", "echo $((n + 1)) >file; touch -r like file"),
        ("chmod 600 file", "cp file new; echo theirs >>new; mv new file"),
        // The file itself has another time by that, and nothing else.
        ("echo mine >>file", "if [ $n = 1 ]; then chmod 641 file; else mv file away; fi"),
        ("chmod 600 two", "echo theirs >>two"),
        ("chmod 600 file", "echo theirs >>file; ln file more$n"),
    ] {
        let ended = run(sandbox, [command, change, "true"]);
        let said = ended.err();
        assert!(
            ended.code() == 125 && said.contains("aborted") && said.contains("by others"),
            "{command}, {change}: {said}"
        );
    }
}

/// One file of either kind. What others have done is there whatever becomes of the commit.
fn killed(sandbox: &Sandbox) {
    let command = "chmod 600 file; chown 7:8 file; echo mine >>like";
    let change = "echo theirs $n >>file; chmod 64$n like";
    let after = "env -u PANDO_TX_CRASH_STEP \"$PANDO\" --root \"$ROOT\" tx recover >/dev/null 2>&1; stat -c '%a %u:%g' file like; cat file like";
    let theirs = "1\ntheirs 1\ntheirs 2\ntheirs 3\n1\n";
    let (mut before, mut whole) = (0, 0);
    for step in 0.. {
        let ended = line(sandbox, 2, [command, change, after]).env("PANDO_TX_CRASH_STEP", step.to_string()).run();
        match ended.out().as_str() {
            out if out == format!("644 0:0\n643 0:0\n{theirs}") => before += 1,
            out if out == format!("600 7:8\n643 0:0\n{theirs}mine\n") => whole += 1,
            out => panic!("step {step}: {out}{}", ended.err()),
        }
        if ended.code() == 0 {
            break;
        }
        ended.ended_with(137);
    }
    println!("     {before} times nothing of it was done, {whole} times all");
    assert!(before > 1 && whole > 4);
}

/// Nobody pauses for the commit, and no line is lost.
fn log(sandbox: &Sandbox) {
    let script = "echo line 0 >log; (n=0; while [ ! -e end ]; do n=$((n + 1)); echo line $n >>log; done) &
        until [ $(wc -l <log) -gt 10 ]; do sleep .01; done; inode=$(stat -c %i log)
        \"$PANDO\" --root \"$ROOT\" tx run -- sh -ec 'chmod 640 log; chown 7:8 log; sleep .3'; code=$?
        before=$(wc -l <log); until [ $(wc -l <log) -gt $before ]; do sleep .01; done; touch end; wait
        awk '$2 != NR - 1 { print \"wrong\", NR, $0 }' log; stat -c '%a %u:%g' log; [ $inode = $(stat -c %i log) ] && echo same; exit $code";
    let line = Line::new("bash").args(["-c", script]).directory(sandbox.scratch());
    let ended = line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).run();
    let ended = ended.complains_of(&["log was changed by others; running it again (1 of 3)", "1 retry"]).succeeded();
    assert_eq!(ended.out(), "640 7:8\nsame\n");
}

//! Transactions whose beginning a daemon has made ahead: they see what is live when they begin, are validated as all
//! others, and leave nothing.

use super::tx_filesystems::Small;
use crate::case::{Case, Tag};
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;

const NEEDS: &[Need] = &[Need::Root, Need::Program("unshare", "util-linux")];

const NEEDS_PYTHON: &[Need] =
    &[Need::Root, Need::Program("unshare", "util-linux"), Need::Program("python3", "python3")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::a_spare_shows_what_is_live_when_it_is_taken", shows_what_is_live).needs(NEEDS),
    Case::new("tx::a_spare_has_the_mounts_that_are_there_when_it_is_taken", has_the_mounts).needs(NEEDS),
    Case::new("tx::who_may_pass_a_directory_on_the_way_is_as_when_a_spare_is_taken", who_may_pass).needs(NEEDS),
    Case::new("tx::what_was_read_on_a_spare_is_validated", is_validated).needs(NEEDS),
    Case::new("tx::what_a_spare_was_made_of_is_neither_read_nor_changed", is_not_read).needs(NEEDS),
    Case::new("tx::what_is_written_through_memory_beside_a_spare_is_found", is_written).needs(NEEDS_PYTHON),
    Case::new("tx::a_daemon_clears_away_behind_its_spares", cleared).needs(NEEDS),
    Case::new("tx::spares_of_a_killed_daemon_leave_nothing", killed).needs(NEEDS),
    Case::new("tx::a_daemon_that_ends_takes_its_spares_along", ended).needs(NEEDS),
    Case::new("tx::a_daemon_that_is_stuck_is_not_waited_for", stuck).needs(NEEDS),
    Case::new("tx::a_spare_can_be_given_a_name", named).needs(NEEDS),
    Case::new("tx::a_spare_whose_name_is_taken_at_the_last_moment_is_removed", taken).needs(NEEDS),
    Case::new("tx::a_spare_that_was_asked_for_and_not_used_is_removed", not_used).needs(NEEDS),
    Case::new("tx::what_was_read_on_a_spare_before_memory_ran_short_is_validated", forgotten)
        .tags(&[Tag::Slow])
        .needs(NEEDS),
    Case::new("tx::what_a_removed_state_left_on_other_mounts_goes_too", state_removed).needs(NEEDS),
];

/// What the scripts have: a daemon in namespaces of their own, where nobody else mounts anything or listens on a
/// socket: either puts spares out of date. On `other` there is a file system of its own.
const PROLOGUE: &str = r#"
mount --make-rprivate /; mkdir -p way/other d; mount -t tmpfs none way/other
HOME_OF_TX=$ROOT/var/lib/pando/tx
pando() { "$PANDO" --root "$ROOT" "$@"; }
spares() { ls -A $HOME_OF_TX | grep '^\.spare-' || true; }
tries() { seq $((500 * ${PANDO_TEST_PATIENCE:-1})); }
# One whose making has not come to its end may come to none. A daemon that could not make them, for what went on beside it, tries again when it is asked again.
ready() {
    for try in $(tries); do
        [ $(ls -d $HOME_OF_TX/.spare-*/spare 2>/dev/null | wc -l) -ge 3 ] && return
        sleep .02; [ $((try % 200)) -ne 0 ] || pando tx run -q -- true
    done
    echo "no spares:" $(spares) >&2; cat daemon.log /proc/self/mounts >&2; exit 1
}
# Runs in a transaction; how many of the spares were there before and are gone.
run() { spares >before; code=0; pando tx run "$@" || code=$?; spares >after; taken=$(grep -cvxFf after before || true); }
# The same, and says it. A command that is told something, or that cannot run again.
on_spare_once() { local code taken; run "$@"; echo "taken: $taken"; return $code; }
# What others do on the machine meanwhile can put all of them out of date, or have the daemon take too long, and none is taken then, rightly: the command runs once more.
on_spare() {
    local code taken
    for again in 1 2 3 4 5 6; do run "$@" >did; [ $taken -eq 0 ] || break; sleep .2; ready; done
    cat did; echo "taken: $taken"; return $code
}
# Waits until one of those in a file is gone; how many are left.
unused() { for try in $(tries); do [ $(spares | grep -cxFf $1) -le 2 ] && break; sleep .02; done; spares | grep -cxFf $1; }
daemon() { for try in $(tries); do [ -S $ROOT/run/pando/pando.sock ] && break; sleep .02; done; }
PANDO_LOG=debug "$PANDO" --root "$ROOT" daemon >daemon.log 2>&1 </dev/null & DAEMON=$!; trap "kill -9 $DAEMON 2>/dev/null || true" EXIT; daemon
# The first that asks finds none.
pando tx run -q -- true; ready
"#;

/// What is left of the spares and their parts: names, one a line.
const LEFT: &str = r#"
left() { spares; ls -A way/other; ls -A /.pando-tx 2>/dev/null | grep -- "-$MARK" || true; find /sys/fs/cgroup -maxdepth 3 -path "*/pando-tx-$MARK*" 2>/dev/null || true; }
"#;

fn script(sandbox: &Sandbox, text: &str) -> Ended {
    let all = format!("{PROLOGUE}{text}\nkill $DAEMON 2>/dev/null && wait $DAEMON || true");
    let line = Line::new("unshare").args(["-m", "-n", "bash", "-ec", &all]).directory(sandbox.scratch());
    line.env("ROOT", sandbox.root()).env("PANDO", sandbox.program()).run().succeeded()
}

fn shows_what_is_live(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        "echo old >d/file; ready; echo new >d/file; touch d/added way/other/added; chmod 711 d
         on_spare -- sh -c 'cat d/file; ls d way/other; stat -c %a d; test $(stat -c %Y way/other) = '$(stat -c %Y way/other); stat -c %a d",
    );
    assert_eq!(ended.out(), "new\nd:\nadded\nfile\n\nway/other:\nadded\n711\ntaken: 1\n711\n");
    ended.complains_of(&["committed: 0 paths"]);
}

fn has_the_mounts(sandbox: &Sandbox) {
    // Without waiting: whether the daemon has noticed or not, what is out of date is not taken.
    let ended = script(
        sandbox,
        "mkdir new; mount -t tmpfs none new; pando tx run -- touch new/file; umount new; ls new
         pando tx run -q -- touch way/other/there; mount -t tmpfs none way/other; ls way/other; pando tx run -q -- ls way/other
         umount way/other; ls way/other; ready; on_spare -q -- ls way/other",
    );
    // The second mount hides the first; a hidden directory of Pando's own is in neither's view.
    assert_eq!(ended.out(), "there\nthere\ntaken: 1\n");
}

fn who_may_pass(sandbox: &Sandbox) {
    let pass = "setpriv --reuid 65534 --clear-groups test -e ";
    let ended = script(
        sandbox,
        &format!(
            "chmod 711 . ..; touch way/other/f; chmod 755 way way/other; ready; chmod 700 way
             pando tx run -q -- {pass} $PWD/way/other/f || echo shut; chmod 755 way; pando tx run -q -- {pass} $PWD/way/other/f && echo open"
        ),
    );
    assert_eq!(ended.out(), "shut\nopen\n");
}

fn is_validated(sandbox: &Sandbox) {
    // The command says that it has read what it reads, and goes on once that was changed.
    let read = "cat d/file; ls d way/other >/dev/null; test -e d/sub/missing; echo read; read line";
    for change in ["echo x >d/file", "touch d/new", "touch d/sub/missing", "touch way/other/new", "true"] {
        let ended = script(
            sandbox,
            &format!(
                "mkdir -p d/sub; rm -f d/sub/* d/new out; echo 1 >d/file; ready
                 {{ until grep -q read out; do sleep .05; done; {change}; echo; }} | on_spare_once --retry 0 -- sh -c '{read}' >out || true; tail -n 1 out"
            ),
        );
        let said = if change == "true" { "committed: 0 paths" } else { "by others" };
        assert!(ended.err().contains(said), "{change}: {}", ended.err());
    }
}

fn is_not_read(sandbox: &Sandbox) {
    // A name comes at the root of every mount that the spare has a part on, and the directory on the way is another by
    // its times.
    let ended = script(
        sandbox,
        "ready; touch way/new way/other/new; on_spare --retry 0 -- sh -c 'echo out; touch d/mine'; ls d; pando tx run --dry-run -q -- true",
    );
    assert_eq!(ended.out(), "out\ntaken: 1\nmine\n");
    ended.complains_of(&["committed: 1 path,"]);
}

fn is_written(sandbox: &Sandbox) {
    // By somebody who has the file in memory when the spare is made, or only when it is taken, and has written to it a
    // while before: the kernel notes no more of it then.
    let writer = "import mmap, signal, sys; file = open('d/file', 'r+b'); told = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, told)
def begin():
  global there; there = mmap.mmap(file.fileno(), 0); there[:3] = b'old'
if sys.argv[1] == 'early': begin()
while True:
  open('did', 'w').close()
  if signal.sigwait(told) == signal.SIGUSR2: there[:3] = b'now'
  elif sys.argv[1] == 'late': begin()";
    for when in ["early", "late"] {
        let ended = script(
            sandbox,
            &format!(
                "echo begun >d/file; did() {{ until [ -e did ]; do sleep .02; done; }}; tell() {{ rm did; kill -$1 $WRITER; did; }}
                 python3 -c \"{writer}\" {when} & WRITER=$!; trap \"kill -9 $DAEMON $WRITER 2>/dev/null || true\" EXIT; did
                 for old in 1 2 3; do ready; pando tx run -q -- true; done; ready; tell USR1; sleep .3; rm -f out
                 {{ until grep -q read out; do sleep .05; done; tell USR2; echo; }} |
                 on_spare_once --retry 0 -- sh -c 'cat d/file; echo read; read line' >out || true
                 head -c 3 d/file; tail -n 1 out; kill $WRITER; rm did"
            ),
        );
        assert_eq!(ended.out(), "nowtaken: 1\n", "{when}: {}", ended.err());
        ended.complains_of(&["d/file was changed by others"]);
    }
}

fn cleared(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        "empty() { for try in $(tries); do [ -z \"$(ls -A $HOME_OF_TX/.trash)\" ] && return; sleep .02; done; ls -AR $HOME_OF_TX/.trash; }
         on_spare -q -- touch d/file; empty; ready; on_spare -q -- false || true; empty; ready
         on_spare -q -- no-such-program || true; empty; ls d",
    );
    assert_eq!(ended.out(), "taken: 1\ntaken: 1\ntaken: 1\nfile\n");
}

fn killed(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        &format!(
            "{LEFT} MARK=$(ls -A way/other/.pando-tx | sed -nE 's/.*-([0-9a-f]{{16}})[.].*/\\1/p' | head -n 1)
             [ $(left | wc -l) -ge 9 ] || {{ echo few; left; }}
             kill -9 $DAEMON; wait $DAEMON 2>/dev/null || true
             pando tx run -q -- true; pando tx recover; left; grep -c pando-tx /proc/self/mounts || true"
        ),
    );
    assert_eq!(ended.out(), "0\n");
}

fn ended(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        &format!(
            "{LEFT} MARK=$(ls -A way/other/.pando-tx | sed -nE 's/.*-([0-9a-f]{{16}})[.].*/\\1/p' | head -n 1); kill $DAEMON; wait $DAEMON 2>/dev/null || true; left"
        ),
    );
    assert_eq!(ended.out(), "");
}

fn stuck(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        "spares >first; kill -STOP $DAEMON; pando tx run -- touch d/file; ls d; kill -CONT $DAEMON; unused first; ready; on_spare -q -- true",
    );
    // What it gives once nobody waits any more is removed.
    assert_eq!(ended.out(), "file\n2\ntaken: 1\n");
    ended.complains_of(&["committed: 1 path,"]);
}

fn named(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        "on_spare -q --name work -- true; ready
         pando tx begin held; pando tx run -q --name held -- true || echo refused; pando tx abort held; pando tx ls | wc -l",
    );
    assert!(ended.out().starts_with("taken: 1\n") && ended.out().ends_with("refused\n1\n"), "{}", ended.out());
}

/// A link that leads nowhere is no transaction, and nothing can be put in its place.
fn taken(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        &format!(
            "{LEFT} ln -s nowhere $HOME_OF_TX/work; spares >before; pando tx run -q --name work -- true || true; unused before; rm $HOME_OF_TX/work
             MARK=$(ls -A way/other/.pando-tx | sed -nE 's/.*-([0-9a-f]{{16}})[.].*/\\1/p' | head -n 1); kill $DAEMON; wait $DAEMON 2>/dev/null || true; left"
        ),
    );
    // It may be the daemon that removes it, a moment later.
    assert_eq!(ended.out(), "2\n");
    ended.complains_of(&["already"]);
}

/// The front asks for one before it is known whether there will be a transaction.
fn not_used(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        "mkdir -p $ROOT/etc/pando; echo '[transactions' >$ROOT/etc/pando/pando.toml; spares >before; PANDO_ROOT=$ROOT \"$PANDO\" tx run -- true || echo refused
         unused before; ready; rm $ROOT/etc/pando/pando.toml; on_spare -q -- true",
    );
    assert_eq!(ended.out(), "refused\n2\ntaken: 1\n");
    ended.complains_of(&["pando.toml"]);
}

/// All that tells of a transaction is removed right behind its end, before the daemon has cleared away: that stands
/// still then, by a signal that is sent with the commit.
fn state_removed(sandbox: &Sandbox) {
    let ended = script(
        sandbox,
        &format!(
            "{LEFT} MARK=$(ls -A way/other/.pando-tx | sed -nE 's/.*-([0-9a-f]{{16}})[.].*/\\1/p' | head -n 1)
             on_spare_once -q -- sh -c \"touch d/file way/other/file; kill -STOP $DAEMON\"; rm -rf $HOME_OF_TX; rm way/other/file
             kill -CONT $DAEMON; sleep .3; kill $DAEMON; wait $DAEMON 2>/dev/null || true
             for try in $(seq 300); do [ -z \"$(left 2>/dev/null)\" ] && break; sleep .02; done; left 2>/dev/null || true"
        ),
    );
    assert_eq!(ended.out(), "taken: 1\n");
}

/// What the daemon has looked up in the view is charged to the daemon, and stays: only what the command itself has
/// looked up first tells that what it read was forgotten.
fn forgotten(sandbox: &Sandbox) {
    let group = Small::make();
    let fills =
        "for round in 1 2 3; do dd if=/dev/zero of=large bs=1M count=160 2>/dev/null; cat large >/dev/null; done";
    let ended = script(
        sandbox,
        &format!(
            "echo old >d/file; mkdir names; for n in $(seq 300); do echo $n >names/$n; done; ready; rm -f out
             (echo $BASHPID >{}/cgroup.procs; {{ until grep -q ready out; do sleep .05; done; echo new >d/file; echo; }} |
             on_spare_once --retry 0 -- sh -c 'cat d/file names/* >/dev/null; {fills}; echo ready; read line' >out || true); tail -n 1 out; rm -f large",
            group.0.display()
        ),
    );
    assert_eq!(ended.out(), "taken: 1\n");
    let err = ended.err();
    assert!(err.contains("d/file was changed by others") || err.contains("was forgotten by the kernel"), "{err}");
}

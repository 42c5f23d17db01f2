//! Transactions in clones, in clones of those, and in guests that were restored: their root file systems stand on
//! several layers.

use crate::case::Case;
use crate::line::Line;
use crate::patience::eventually;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_in_clones::in_a_clone_and_in_a_clone_of_it", in_clones),
    Case::new("tx_in_clones::in_a_guest_that_was_restored", restored),
];

/// A guest with a directory that its frozen files alone have.
fn frozen(sandbox: &Sandbox, options: &[&str]) {
    sandbox.guest("g", &[]);
    sandbox.exec_sh("g", "mkdir -p /srv/d/e; cd /srv; echo 1 >a; echo 1 >b; echo in >d/e/f; ln a hard").ok();
    sandbox.pando(["freeze"]).args(options).args(["g", "image"]).ok();
}

fn tx(sandbox: &Sandbox, guest: &str, options: &[&str], script: &str) -> Line {
    sandbox.pando(["tx", "run", "--guest", guest]).args(options).args(["--", "sh", "-ec", script])
}

/// Changes of all that its layers and its own files have, committed and aborted, and a conflict.
fn is_transactional(sandbox: &Sandbox, guest: &str) {
    let seen = || {
        sandbox
            .exec_sh(
                guest,
                "cd /srv; find . | sort; cat a b hard; stat -c %h a; cat */f */*/f; ls -l /bin/sh | cut -c1-10",
            )
            .run()
            .out()
    };
    let before = seen();
    let script =
        "cd /srv; echo mine >>hard; mv d moved; echo x >moved/f; mkdir d; echo new >d/f; chmod 700 b; touch /bin/new";
    tx(sandbox, guest, &[], &format!("{script}; exit 3")).run().ended_with(3);
    assert_eq!(seen(), before, "{guest}: an abort leaves nothing");
    let committed = tx(sandbox, guest, &[], script).run().succeeded();
    committed.complains_of(&["committed: ", "names validated"]);
    let after = sandbox
        .exec_sh(guest, "cd /srv; find . | sort; cat a d/f moved/f moved/e/f; stat -c %h%a a b; ls /bin/new")
        .ok();
    let expected = ".\n./a\n./b\n./d\n./d/f\n./hard\n./moved\n./moved/e\n./moved/e/f\n./moved/f\n1\nmine\nnew\nx\nin\n2644\n1700\n/bin/new\n";
    assert_eq!(after, expected, "{guest}");
    // What others change meanwhile is seen.
    let started = tx(sandbox, guest, &["--retry", "1"], "b=$(cat /srv/b); echo \"$b\" >/srv/copy; read line || true")
        .start_with_open_input();
    eventually("it has read", || sandbox.changed_paths(&["--guest", guest]) == Some(1));
    sandbox.exec_sh(guest, "echo theirs >>/srv/b").ok();
    started.close_input().wait().succeeded().complains_of(&["b was changed by others; running it again", "1 retry"]);
    assert_eq!(sandbox.exec_sh(guest, "cat /srv/copy").ok(), "1\ntheirs\n");
}

fn in_clones(sandbox: &Sandbox) {
    frozen(sandbox, &[]);
    sandbox.pando(["clone", "image", "one"]).ok();
    is_transactional(sandbox, "one");
    sandbox.pando(["freeze", "one", "again"]).ok();
    sandbox.pando(["clone", "again", "two"]).ok();
    sandbox.exec_sh("two", "cd /srv; rm -r d copy; mv moved d; rm d/f /bin/new; echo 1 >b; chmod 644 b; rm a hard; echo 1 >a; ln a hard").ok();
    is_transactional(sandbox, "two");
    // It is as it was in its image all the same.
    sandbox.pando(["clone", "image", "three"]).ok();
    assert_eq!(sandbox.exec_sh("three", "cat /srv/a /srv/b /srv/d/e/f").ok(), "1\n1\nin\n");
}

fn restored(sandbox: &Sandbox) {
    frozen(sandbox, &["--stop"]);
    sandbox.pando(["restore", "image"]).ok();
    is_transactional(sandbox, "g");
    // It stands on the same when it is started anew.
    sandbox.pando(["stop", "g"]).ok();
    sandbox.pando(["start", "g"]).ok();
    tx(sandbox, "g", &[], "echo more >>/srv/moved/e/f").ok();
    assert_eq!(sandbox.exec_sh("g", "cat /srv/moved/e/f").ok(), "in\nmore\n");
}

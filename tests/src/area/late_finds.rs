//! What begins to stand in the way behind the look ahead, when the processes are being stopped: they run on as they
//! were, and it is said in the same words.

use crate::area::clones::{COUNTER, count};
use crate::case::Case;
use crate::patience::eventually;
use crate::sandbox::Sandbox;

pub(crate) const CASES: &[Case] = &[Case::new("late_finds::the_guest_runs_on_and_is_told_of", runs_on)];

/// Has a deleted file open that is larger than any that is kept, another each time: none is there for long enough to be
/// seen twice by the look ahead, which tells only of what lasts.
const COMES_AND_GOES: &str = "n=0; while [ ! -e /enough ]; do n=$((n+1)); fallocate -l 1100M /gone$n; \
                              exec 7</gone$n; rm /gone$n; sleep 0.004; exec 7<&-; sleep 0.004; done; exec sleep 100000";

/// How often it is tried, and how many finds are enough.
const TRIES: usize = 100;
const FINDS: usize = 5;

fn runs_on(sandbox: &Sandbox) {
    let script = format!("({COMES_AND_GOES}) & {COUNTER}");
    sandbox.guest("web", &["--", "sh", "-c", &script]);
    eventually("it counts", || count(sandbox, "web") > 5);
    let mut finds = 0;
    for _ in 0..TRIES {
        let seen = count(sandbox, "web");
        let ended = sandbox.pando(["freeze", "web", "warm"]).run();
        if ended.code() == 0 {
            sandbox.pando(["image", "rm", "warm"]).ok();
            continue;
        }
        ended.ended_with(125).complains_of(&["cannot be frozen: process ", ", descriptor 7: a deleted file of"]);
        assert_eq!(sandbox.pando(["images", "-q"]).ok(), "", "there is no image of it");
        // Whoever looks is one of them, and so is what looks.
        let held = "grep -l '^TracerPid:.[1-9]' /proc/[0-9]*/status; grep -lE '^State:.[tT]' /proc/[0-9]*/status; true";
        assert_eq!(sandbox.exec_sh("web", held).ok(), "", "some are held");
        eventually("it counts on", || count(sandbox, "web") > seen + 5);
        finds += 1;
        if finds == FINDS {
            break;
        }
    }
    assert!(finds > 0, "nothing was found late: it proves nothing");
    sandbox.exec_sh("web", ": >/enough").ok();
    eventually("it comes and goes no more", || sandbox.pando(["freeze", "web", "still"]).run().code() == 0);
    sandbox.pando(["clone", "still", "one"]).ok();
    let seen = count(sandbox, "one");
    eventually("a clone counts on", || count(sandbox, "one") > seen + 5);
}

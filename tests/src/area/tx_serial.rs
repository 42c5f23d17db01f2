//! What a transaction replaced, removed or wrote again as it was, and others changed meanwhile: each has to be a
//! conflict, whatever is left of it on either side.

use crate::case::{Case, Tag, skip};
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;
use crate::small_disk::SmallDisk;
use std::path::Path;

const XFS: &[Need] = &[Need::Root, Need::Program("mkfs.xfs", "xfsprogs")];
const BTRFS: &[Need] = &[Need::Root, Need::Program("mkfs.btrfs", "btrfs-progs")];

pub(crate) const CASES: &[Case] = &[
    Case::new("tx_serial::on_the_host", |sandbox| all_are_told(sandbox, &sandbox.scratch(), &FEW)),
    Case::new("tx_serial::on_the_host_all_kinds", |sandbox| all_are_told(sandbox, &sandbox.scratch(), &every()))
        .tags(&[Tag::Slow]),
    Case::new("tx_serial::on_xfs", |sandbox| on_a_disk(sandbox, &["mkfs.xfs", "-q"])).needs(XFS),
    Case::new("tx_serial::on_btrfs", |sandbox| on_a_disk(sandbox, &["mkfs.btrfs", "-q"])).needs(BTRFS),
    Case::new("tx_serial::on_tmpfs", on_tmpfs),
    Case::new("tx_serial::in_memory", in_memory),
    Case::new("tx_serial::in_a_guest", in_a_guest),
    Case::new("tx_serial::new_names_in_a_busy_directory_are_no_conflict", new_names),
    Case::new("tx_serial::a_rename_into_a_busy_directory_is_committed_in_the_end", busy),
    Case::new("tx_serial::what_is_moved_goes_on_elsewhere", moved),
    Case::new("tx_serial::mistakes_are_noticed", mistakes),
];

/// What a transaction does, and what others do, one by one.
type Meeting = (&'static str, &'static [&'static str]);

const OF_A_DIRECTORY: &[&str] =
    &["rmdir D", "touch D/y", "rmdir D; mkdir D", "mv D D9", "rmdir D; echo >D", "chmod 700 D"];
const OF_A_FULL_ONE: &[&str] = &[
    "rm -r DD",
    "touch DD/y",
    "rm DD/in",
    "echo 1 >DD/in",
    "mv DD D9",
    "rm -r DD; mkdir DD; touch DD/in",
    "chmod 600 DD/sub/deep",
];
const OF_A_FILE: &[&str] =
    &["rm f", "echo other >f", "mv f f9", "rm f; echo old >f", "rm f; mkdir f", "chmod 600 f", "ln f f2"];
const OF_A_LINK: &[&str] = &["rm l", "ln -sfn z l", "mv l l9"];
const OF_A_FIFO: &[&str] = &["rm p", "mv p p9", "chmod 600 p"];

/// Those of each kind that leave the least behind.
const FEW: [Meeting; 18] = [
    ("rmdir D; mkdir D", &["rmdir D", "mv D D9", "touch D/y"]),
    ("rmdir D; echo x >D", &["rmdir D"]),
    ("rmdir D; ln -s x D", &["mv D D9"]),
    ("mkdir T; mv -T T D", &["rmdir D"]),
    ("mv D E; mkdir D", &["mv D D9"]),
    ("rm -r DD; mkdir DD", &["rm -r DD", "echo 1 >DD/in", "chmod 600 DD/sub/deep"]),
    ("rm -r DD", &["echo 1 >DD/in"]),
    ("rm -r DD; echo >DD", &["echo 1 >DD/sub/deep"]),
    ("mv DD/sub S; rm -r DD", &["echo 1 >DD/in"]),
    ("rm f; echo new >f", &["rm f", "mv f f9"]),
    ("sed -i s/old/new/ f", &["rm f", "mv f f9"]),
    ("mv f g; echo new >f", &["mv f f9"]),
    ("mv g2 f", &["rm f"]),
    ("rm f; mkdir f", &["rm f"]),
    ("ln -f l f", &["mv f f9"]),
    ("ln -sfn c l", &["rm l"]),
    ("rm p; mkfifo p", &["rm p"]),
    // Both write the same, within one tick of the clock.
    ("cat f; echo new >f; touch -d @7 f", &["echo new >f; touch -d @7 f"]),
];

fn every() -> Vec<Meeting> {
    let kinds: [(&[&str], &'static [&'static str]); 5] = [
        (
            &[
                "rmdir D; mkdir D",
                "rmdir D; mkdir D; touch D/x",
                "rmdir D; echo x >D",
                "rmdir D; ln -s x D",
                "mkdir T; mv -T T D",
                "mv D E; mkdir D",
                "rmdir D",
            ],
            OF_A_DIRECTORY,
        ),
        (&["rm -r DD; mkdir DD", "rm -r DD; mkdir DD; touch DD/in", "rm -r DD; echo >DD", "rm -r DD"], OF_A_FULL_ONE),
        (
            &[
                "rm f; echo new >f",
                "echo new >t; mv t f",
                "mv f g; echo new >f",
                "rm f; mkdir f",
                "rm f; ln -s x f",
                "ln -f l f",
                "rm f",
                "mv f g",
                "echo more >>f",
            ],
            OF_A_FILE,
        ),
        (&["rm l; ln -s b l", "ln -sfn c l", "rm l", "rm l; mkdir l"], OF_A_LINK),
        (&["rm p; mkfifo p", "rm p; echo >p"], OF_A_FIFO),
    ];
    kinds.iter().flat_map(|(changes, others)| changes.iter().map(|change| (*change, *others))).collect()
}

/// What there is before.
const BEFORE: &str = "mkdir D DD DD/sub; echo old >f; echo other >g2; ln -s a l; touch DD/in DD/sub/deep; mkfifo p";

/// A shell that has a transaction, called `work`, do each of these things in a directory, others another, and then
/// tells which of them were committed. `begin`, `inside`, `outside`, `commit` and `abort` are how that is done; `$1` is
/// what is to be done.
fn meetings(place: &str, how: &How, meetings: &[Meeting]) -> String {
    let mut text = format!(
        "set -u; outside() {{ {}; }}; begin() {{ {}; }}; inside() {{ {}; }}; commit() {{ {}; }}; abort() {{ {}; }}; tried=0
         one() {{ outside \"rm -rf {place}/w; mkdir -p {place}/w; cd {place}/w; {BEFORE}\" || exit 9; sleep .03
         begin || exit 8; inside \"cd {place}/w; $1\" >/dev/null || exit 7; outside \"cd {place}/w; $2\" || exit 6; tried=$((tried + 1))
         if commit; then echo \"committed: $1 | $2\"; else abort; fi; }}\n",
        how.outside, how.begin, how.inside, how.commit, how.abort
    );
    for (mine, all) in meetings {
        all.iter().for_each(|theirs| text.push_str(&format!("one '{mine}' '{theirs}'\n")));
    }
    text + "echo tried $tried\n"
}

struct How {
    outside: &'static str,
    begin: &'static str,
    inside: &'static str,
    commit: &'static str,
    abort: &'static str,
}

const ON_THE_HOST: How = How {
    outside: "sh -c \"$1\"",
    begin: "$TX begin work",
    inside: "$TX enter work -- sh -c \"$1\"",
    commit: "$TX commit work 2>>said",
    abort: "$TX abort work 2>/dev/null",
};

const IN_MEMORY: How = How {
    outside: "sh -c \"$1\"",
    begin: "true",
    // It goes on once others have done what they do.
    inside: "coproc T { $TX run --in-memory --retry 0 -- sh -c \"$1 >/dev/null; echo ready; read go\" 2>>said; }; read -r -u ${T[0]} ready",
    commit: "echo go >&${T[1]}; wait $T_PID",
    abort: "true",
};

const IN_A_GUEST: How = How {
    outside: "$PANDO exec g -- sh -c \"$1\"",
    begin: "$TX begin --guest g work",
    inside: "$TX enter --guest g work -- sh -c \"$1\"",
    commit: "$TX commit --guest g work 2>>said",
    abort: "$TX abort --guest g work 2>/dev/null",
};

fn run(sandbox: &Sandbox, script: &str, plant: Option<&str>) -> Ended {
    let program = sandbox.program().display();
    let prologue = format!("PANDO=\"{program} --root {}\"; TX=\"$PANDO tx\"\n", sandbox.root().display());
    let line = Line::new("bash").args(["-c", &(prologue + script)]).directory(sandbox.scratch()).limit(300);
    match plant {
        Some(plant) => line.env("PANDO_TX_PLANT", plant).run(),
        None => line.run(),
    }
}

/// Those that were committed although others had changed the same.
fn committed(sandbox: &Sandbox, place: &Path, how: &How, all: &[Meeting], plant: Option<&str>) -> Vec<String> {
    let ended = run(sandbox, &meetings(&place.display().to_string(), how, all), plant).ended_with(0);
    let tried: usize = all.iter().map(|(_, others)| others.len()).sum();
    assert!(ended.out().contains(&format!("tried {tried}")), "{}", ended.out());
    ended.out().lines().filter(|line| line.starts_with("committed")).map(str::to_owned).collect()
}

fn all_are_told(sandbox: &Sandbox, place: &Path, all: &[Meeting]) {
    assert_eq!(committed(sandbox, place, &ON_THE_HOST, all, None), Vec::<String>::new());
}

fn on_a_disk(sandbox: &Sandbox, format: &[&str]) {
    let scratch = sandbox.scratch();
    let disk = SmallDisk::make(scratch.join("disk"), scratch.join("mounted"), 400, format, "");
    all_are_told(sandbox, &disk.at, &FEW);
}

fn on_tmpfs(sandbox: &Sandbox) {
    let at = sandbox.scratch().join("mounted");
    std::fs::create_dir(&at).expect("a directory");
    if Line::new("mount").args(["-t", "tmpfs", "tmpfs"]).args([&at]).run().code() != 0 {
        skip("no file system can be mounted here");
    }
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| all_are_told(sandbox, &at, &FEW)));
    Line::new("umount").args([&at]).ok();
    found.expect("see above");
}

fn in_memory(sandbox: &Sandbox) {
    assert_eq!(committed(sandbox, &sandbox.scratch(), &IN_MEMORY, &FEW, None), Vec::<String>::new());
}

fn in_a_guest(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    assert_eq!(committed(sandbox, Path::new("/srv"), &IN_A_GUEST, &FEW, None), Vec::<String>::new());
}

/// Others make and remove names beside those that are new.
fn new_names(sandbox: &Sandbox) {
    const MINE: [&str; 5] = [
        "echo new >n",
        "mkdir n; touch n/in",
        "ln -s x n",
        "mkfifo n",
        "echo 1 >n; chmod 600 n; echo 2 >>n; mkdir m; mv n m/n",
    ];
    let all = MINE.map(|mine| (mine, &["rm g2; touch other; mv other o2"] as &[&str]));
    let told = committed(sandbox, &sandbox.scratch(), &ON_THE_HOST, &all, None);
    assert_eq!(told.len(), MINE.len(), "these alone: {told:?}; {}", said(sandbox));
}

fn said(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.scratch().join("said")).unwrap_or_default()
}

/// Whether a new name was taken from something is not known the first time, and is the next time.
fn busy(sandbox: &Sandbox) {
    let script = "mkdir busy; cd busy; echo old >old; (while [ ! -e ../end ]; do touch a b; rm a b; sleep .02; done) &
        for mine in 'echo x >x.new; mv x.new x' 'ln old linked' 'mv old moved'; do
            $TX run -- sh -c \"$mine; sleep .3\" || echo failed: $mine
        done; touch ../end; wait; cat x moved linked";
    let ended = run(sandbox, script, None).ended_with(0);
    assert_eq!(ended.out(), "x\nold\nold\n", "{}", ended.err());
}

/// What others change in a directory that was moved is changed where that is now.
fn moved(sandbox: &Sandbox) {
    let all: [Meeting; 2] = [("mv DD E", &["echo 1 >DD/in"]), ("mv DD/sub S; rm -r DD", &["echo 1 >DD/sub/deep"])];
    for (one, (at, content)) in all.iter().zip([("E/in", "1\n"), ("S/deep", "1\n")]) {
        let told = committed(sandbox, &sandbox.scratch(), &ON_THE_HOST, std::slice::from_ref(one), None);
        assert_eq!(told.len(), 1, "{one:?} is a conflict: {}", said(sandbox));
        let found = std::fs::read_to_string(sandbox.scratch().join("w").join(at)).expect("it was moved");
        assert_eq!(found, content);
    }
}

/// Transactions that look at less.
fn mistakes(sandbox: &Sandbox) {
    for (plant, mine, theirs) in [
        ("blind-names", "sed -i s/old/new/ f", &["mv f f9"] as &[&str]),
        ("removed-unseen", "rm -r DD", &["echo 1 >DD/in"]),
        ("equal-content", FEW[17].0, FEW[17].1),
    ] {
        let told = committed(sandbox, &sandbox.scratch(), &ON_THE_HOST, &[(mine, theirs)], Some(plant));
        assert_eq!(told.len(), 1, "{plant} is not noticed");
    }
}

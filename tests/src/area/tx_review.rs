//! What a review of a transaction shows: everything that its commit will do, as lines, as a patch and as JSON; on the
//! host, in memory and in a guest.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::sandbox::Sandbox;
use serde_json::Value;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::a_review_shows_what_goes_with_a_directory_that_is_made_again", made_again),
    Case::new("tx::a_review_shows_modes_owners_capabilities_devices_and_links", attributes).needs(&[
        Need::Root,
        Need::Program("setcap", "libcap2-bin"),
        Need::Program("setfattr", "attr"),
        Need::Program("chattr", "e2fsprogs"),
    ]),
    Case::new("tx::a_review_in_json_says_what_was_and_what_comes", as_json).needs(&[
        Need::Root,
        Need::Program("setcap", "libcap2-bin"),
        Need::Program("setfattr", "attr"),
    ]),
    Case::new("tx::a_review_tells_names_that_are_no_text_apart", names),
    Case::new("tx::a_review_shows_renames_links_and_changes_by_names_that_go", renames),
    Case::new("tx::a_review_of_a_guests_transaction_shows_the_same", in_a_guest),
    Case::new("tx::a_review_of_one_in_memory_shows_the_same", in_memory),
];

/// Makes a tree with `before`, runs `script` in an open transaction there, and shows it; paths in the answer are
/// relative to the tree.
#[track_caller]
fn diff(sandbox: &Sandbox, before: &str, script: &str, option: &str) -> String {
    let script = format!(
        "rm -rf tree; mkdir tree; cd tree; {before}
         sleep .02; \"$PANDO\" --root \"$ROOT\" tx begin work >/dev/null; \"$PANDO\" --root \"$ROOT\" tx enter work -- sh -ec {}
         \"$PANDO\" --root \"$ROOT\" tx diff {option} work; \"$PANDO\" --root \"$ROOT\" tx abort work 2>/dev/null",
        quoted(script)
    );
    let line = Line::new("bash").args(["-ec", &script]).directory(sandbox.scratch());
    let shown = line.env("PANDO", sandbox.program()).env("ROOT", sandbox.root()).ok();
    shown.replace(&format!("{}/tree/", sandbox.scratch().display()), "")
}

fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', r"'\''"))
}

const DATA: &str = "mkdir -p data/deep moved; for i in 1 2 3; do echo p >data/f$i; echo p >data/deep/g$i; done";

fn made_again(sandbox: &Sandbox) {
    for (script, expected) in [
        (
            "rm -rf data; mkdir data",
            &["~ data/", "- data/deep/", "with 3 below", "- data/f1", "- data/f2", "- data/f3"][..],
        ),
        (
            "rm -rf data; mkdir data; echo new >data/n; echo x >data/f2",
            &["~ data/", "- data/deep/", "with 3 below", "- data/f1", "~ data/f2", "- data/f3", "+ data/n"],
        ),
        (
            "rm -rf data; mkdir -p data/deep; echo p >data/deep/g2",
            &[
                "~ data/",
                "~ data/deep/",
                "- data/deep/g1",
                "~ data/deep/g2",
                "- data/deep/g3",
                "- data/f1",
                "- data/f2",
                "- data/f3",
            ],
        ),
        ("rm -rf data; ln -s /etc data", &["- data/", "with 7 below", "+ data", "link to \"/etc\""]),
        ("rm -rf data; echo file >data", &["- data/", "with 7 below", "+ data"]),
        (
            "rm -rf data; mkdir data; ln -s /etc data/deep",
            &[
                "~ data/",
                "- data/deep/",
                "with 3 below",
                "+ data/deep",
                "link to \"/etc\"",
                "- data/f1",
                "- data/f2",
                "- data/f3",
            ],
        ),
        ("rm data/f1; mkdir data/f1; touch data/f1/x", &["- data/f1", "+ data/f1/", "+ data/f1/x"]),
        (
            "mv data/deep deep; rm -r data; mv deep data",
            &["- data/", "with 7 below", "+ data/", "moved from data/deep"],
        ),
    ] {
        for option in ["", "-p"] {
            let shown = diff(sandbox, DATA, script, option);
            let is_told = |line: &&str| {
                line.starts_with(['+', '-', '~']) && line.get(1..2) == Some(" ")
                    || ["    with", "    link", "    moved"].iter().any(|start| line.starts_with(start))
            };
            let lines: Vec<&str> = shown.lines().filter(is_told).map(str::trim_start).collect();
            assert_eq!(lines, expected, "{script}:\n{shown}");
        }
        let all: Value = serde_json::from_str(&diff(sandbox, DATA, script, "--json")).expect("it prints JSON");
        for line in expected.iter().filter(|line| line.starts_with(['+', '-', '~'])) {
            let (sign, path) = line.split_at(2);
            let word = match sign {
                "+ " => "added",
                "- " => "removed",
                _ => "changed",
            };
            let is_it = |one: &Value| one["change"] == word && one["path"] == path.trim_end_matches('/');
            assert!(all.as_array().is_some_and(|all| all.iter().any(is_it)), "{script}: {line} in {all:#}");
        }
    }
}

/// What is done to what was there, and the line and the detail that it comes to.
const CHANGES: &[(&str, &str)] = &[
    ("chmod u+s mode", "~ mode\n    mode 0644 → 4644\n"),
    ("chown 1:2 owner", "~ owner\n    owner 0:0 → 1:2\n"),
    ("setcap cap_net_admin+ep cap", "~ cap\n    security.capability none → cap_net_admin=ep\n"),
    ("setfattr -n user.x -v 1 attr", "~ attr\n    user.x none → \"1\"\n"),
    ("touch -d 2001-01-01T00:00:00Z time", "→ 2001-01-01T00:00:00Z\n"),
    ("echo more >>both; chmod 600 both", "~ both\n    mode 0644 → 0600\n    content 5 → 10 bytes\n"),
    ("ln -sfn b link", "~ link\n    link to \"a\" → link to \"b\"\n"),
    ("rm file; ln -s /etc/shadow file", "~ file\n    file → link to \"/etc/shadow\"\n"),
    ("rm node; mknod node b 7 3", "~ node\n    character device 1:3 → block device 7:3\n"),
    ("chmod 777 perms; touch perms/new", "~ perms/\n    mode 0755 → 0777\n+ perms/new\n"),
    ("chmod 755 perms; touch perms/new", "+ perms/new\n"),
    ("mknod made c 1 5", "+ made\n    character device 1:5\n    mode 0644\n"),
    ("mkfifo made", "+ made\n    named pipe\n    mode 0644\n"),
    ("touch made; chmod 4755 made", "+ made\n    mode 4755\n"),
    ("mkdir made; chmod 1777 made; chown 0:7 made", "+ made/\n    mode 1777\n    owner 0:7\n"),
    ("touch made; setcap cap_sys_admin+ep made", "+ made\n    security.capability cap_sys_admin=ep\n"),
    ("chattr +i both", "~ both\n    chattr none → +i\n"),
];

const THINGS: &str = "for f in mode owner cap attr time both file; do echo $f >$f; done; ln -s a link; mkdir perms; mknod node c 1 3; echo both >both";

fn attributes(sandbox: &Sandbox) {
    for (script, expected) in CHANGES {
        let script = script.replace(
            "setfattr -n user.x -v 1 attr",
            "python3 -c \"import os; os.setxattr(\\\"attr\\\",\\\"user.x\\\",b\\\"1\\\")\"",
        );
        for option in ["", "-p"] {
            let shown = diff(sandbox, THINGS, &script, option);
            assert!(shown.contains(expected), "{script} {option}:\n{shown}");
        }
    }
    // What comes to the same as before is no change.
    assert_eq!(diff(sandbox, THINGS, "chmod 600 mode; chmod 644 mode; chown 1 owner; chown 0 owner", ""), "");
}

fn as_json(sandbox: &Sandbox) {
    let script =
        "chmod u+s mode; chown 1:2 owner; setcap cap_net_admin+ep cap; ln -sfn b link; rm node; mknod node b 7 3";
    let shown = diff(sandbox, THINGS, script, "--json");
    let all: Value = serde_json::from_str(&shown).expect("it prints JSON");
    let of =
        |path: &str| all.as_array().and_then(|all| all.iter().find(|one| one["path"] == path)).expect(path).clone();
    let (mode, owner, cap, link, node) = (of("mode"), of("owner"), of("cap"), of("link"), of("node"));
    assert_eq!((&mode["old"]["mode"], &mode["new"]["mode"]), (&"0644".into(), &"4644".into()));
    assert_eq!((&owner["old"]["uid"], &owner["new"]["uid"], &owner["new"]["gid"]), (&0.into(), &1.into(), &2.into()));
    assert_eq!(cap["new"]["xattrs"][0]["name"], "security.capability");
    // The head says that it is effective; bit 12 is the capability.
    assert_eq!(cap["new"]["xattrs"][0]["value_bytes"], "AQAAAgAQAAAAAAAAAAAAAAAAAAA=");
    assert_eq!((&link["old"]["target"], &link["new"]["target"]), (&"a".into(), &"b".into()));
    assert_eq!(node["new"]["device"], serde_json::json!({ "major": 7, "minor": 3 }));
    assert_eq!((&node["old"]["kind"], &node["new"]["kind"]), (&"char".into(), &"block".into()));
}

fn names(sandbox: &Sandbox) {
    let script = r#"touch "$(printf "a\377")" "$(printf "a\376")" "$(printf "b\n- c")" "a\\377" "\"q\""; ln -s "$(printf "t\377")" l"#;
    let shown = diff(sandbox, "true", script, "");
    let lines: Vec<&str> = shown.lines().collect();
    let scratch = sandbox.scratch();
    let at = format!("{}/tree", scratch.display());
    for name in [r"a\377", r"a\376", r"b\n- c", r"a\\377", r#"\"q\""#] {
        // Only the path as a whole is between quotation marks.
        let whole = [format!("+ \"{at}/{name}\""), format!("+ \"{name}\"")];
        assert!(lines.iter().any(|line| whole.iter().any(|whole| line == whole)), "{name}: {shown}");
    }
    assert!(shown.contains("+ l\n    link to \"t\\377\"\n"), "{shown}");
    let all: Value =
        serde_json::from_str(&diff(sandbox, "true", r#"touch "$(printf "a\377")""#, "--json")).expect("JSON");
    let bytes = all[0]["path_bytes"].as_str().expect("the path as bytes");
    // The last three bytes are "/a" and 0xff, wherever they fall in the letters.
    let decoded = Line::new("sh").args(["-c", &format!("echo {bytes} | base64 -d | tail -c 3 | od -An -tx1")]).ok();
    assert_eq!(decoded.trim(), "2f 61 ff");
}

fn renames(sandbox: &Sandbox) {
    let before = "mkdir d e; echo 1 >d/f; echo 2 >d/g; echo old >a; ln a b; echo x >plain";
    for (script, expected) in [
        (
            "mv d new; echo more >>new/f; rm new/g",
            "- d/\n    moved to new\n+ new/\n    moved from d\n~ new/f\n- new/g\n",
        ),
        ("mv plain other", "+ other\n    moved from plain\n- plain\n    moved to other\n"),
        ("ln plain other", "+ other\n    another name of plain\n"),
        ("mv plain d/f", "~ d/f\n    moved from plain\n    content 2 → 2 bytes\n- plain\n    moved to d/f\n"),
        ("echo more >>a", "~ a\n    2 names have it\n    content 4 → 9 bytes\n"),
        (
            "echo more >>a; rm a",
            "- a\n~ a\n    by its other names; this one goes\n    2 names have it\n    content 4 → 9 bytes\n",
        ),
    ] {
        assert_eq!(diff(sandbox, before, script, ""), expected, "{script}");
    }
    // The old content of what was moved is that of where it was.
    let patch = diff(sandbox, before, "mv d new; echo more >>new/f", "-p");
    assert!(patch.contains("\n 1\n+more\n") && !patch.contains("+1\n"), "{patch}");
    let patch = diff(sandbox, before, "echo more >>a; rm a", "-p");
    assert!(patch.contains("\n old\n+more\n"), "{patch}");
}

fn in_a_guest(sandbox: &Sandbox) {
    sandbox.guest("g", &[]);
    let prepare = "mkdir -p /srv/data/deep; cd /srv; touch data/f data/deep/g mode owner";
    sandbox.exec_sh("g", prepare).ok();
    let script = "cd /srv; rm -rf data; mkdir data; chmod 4755 mode; chown 1:2 owner; ln -s /etc/passwd l; touch mine; chown 3:4 mine";
    let expected = [
        "~ /srv/data/",
        "- /srv/data/deep/\n    with 1 below\n- /srv/data/f\n",
        "+ /srv/l\n    link to \"/etc/passwd\"\n",
        "+ /srv/mine\n    owner 3:4\n",
        "~ /srv/mode\n    mode 0644 → 4755\n",
        "~ /srv/owner\n    owner 0:0 → 1:2\n",
    ];
    let shown = sandbox.pando(["tx", "run", "--guest", "g", "--dry-run", "--", "sh", "-ec", script]).ok();
    for part in expected {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    sandbox.pando(["tx", "begin", "--guest", "g", "work"]).ok();
    sandbox.pando(["tx", "enter", "--guest", "g", "work", "--", "sh", "-ec", script]).ok();
    for option in ["--patch", "--json"] {
        let shown = sandbox.pando(["tx", "diff", "--guest", "g", option, "work"]).ok();
        let words: &[&str] = if option == "--json" {
            &["\"/srv/data/f\"", "\"4755\"", "\"/etc/passwd\"", "\"uid\": 3"]
        } else {
            &expected
        };
        assert!(words.iter().all(|words| shown.contains(words)), "{shown}");
    }
    sandbox.pando(["tx", "abort", "--guest", "g", "work"]).ok();
}

fn in_memory(sandbox: &Sandbox) {
    let directory = sandbox.scratch().join("tree");
    let prepare = format!("mkdir {0}; cd {0}; {DATA}; touch mode owner", directory.display());
    Line::new("sh").args(["-ec", &prepare]).ok();
    let script = "rm -rf data moved; mkdir data; ln -s /etc moved; chmod 4755 mode; chown 1:2 owner";
    let line = sandbox.pando(["tx", "run", "--in-memory", "--dry-run", "--", "sh", "-ec", script]);
    let shown = line.directory(&directory).ok().replace(&format!("{}/", directory.display()), "");
    for part in [
        "~ data/",
        "- data/deep/\n    with 3 below\n- data/f1\n",
        "- moved/\n+ moved\n    link to \"/etc\"\n",
        "~ mode\n    mode 0644 → 4755\n",
        "~ owner\n    owner 0:0 → 1:2\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

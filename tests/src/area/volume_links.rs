//! Links that users of the host and guests put on the way to what an operator has named: volumes, what is exposed, the
//! tree that a guest runs on.

use crate::case::Case;
use crate::sandbox::Sandbox;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Case] = &[
    Case::new("volume_links::a_users_link_is_refused", a_users_link_is_refused),
    Case::new("volume_links::a_guests_link_is_refused", a_guests_link_is_refused),
    Case::new("volume_links::a_guests_link_in_its_own_volume_is_refused", a_guests_own_link_is_refused),
    Case::new("volume_links::a_guests_link_in_a_named_volume_is_refused", a_link_in_a_named_volume_is_refused),
    Case::new("volume_links::the_operators_are_followed", the_operators_are_followed),
    Case::new("volume_links::nothing_is_copied_by_a_guests_link", nothing_is_copied_by_a_guests_link),
    Case::new("volume_links::nothing_is_exposed_by_a_users_link", nothing_is_exposed_by_a_users_link),
    Case::new("volume_links::no_guest_runs_on_what_a_users_link_leads_to", no_guest_runs_on_what_a_link_leads_to),
];

const USER: u32 = 65_534;

/// A directory of the host's, for root alone, with words in it.
fn closed(sandbox: &Sandbox) -> PathBuf {
    let closed = sandbox.scratch().join("closed");
    std::fs::create_dir(&closed).expect("a directory");
    std::fs::write(closed.join("file"), "the host's words\n").expect("a file");
    std::fs::set_permissions(&closed, Permissions::from_mode(0o700)).expect("it is ours");
    closed
}

fn volume(path: &Path, rest: &str) -> String {
    format!("{}:{rest}", path.display())
}

fn untouched(closed: &Path) {
    let names: Vec<_> = std::fs::read_dir(closed).expect("it is there").flatten().map(|one| one.file_name()).collect();
    assert_eq!(names, ["file"], "nothing was made in what is root's alone");
}

/// A directory of a user's, with a link of his to what is root's alone.
fn of_a_user(sandbox: &Sandbox, closed: &Path) -> PathBuf {
    let home = sandbox.scratch().join("home");
    std::fs::create_dir_all(home.join("plain/below")).expect("a directory");
    std::fs::write(home.join("plain/below/file"), "the user's words\n").expect("a file");
    symlink(closed, home.join("site")).expect("a link");
    symlink("plain", home.join("roots")).expect("a link");
    for path in [home.clone(), home.join("plain")] {
        chown(path, Some(USER), None).expect("it is ours");
    }
    lchown(home.join("site"), Some(USER), None).expect("it is ours");
    home
}

const TAKES: &str = "cat /x/file; echo written >/x/written";

fn a_users_link_is_refused(sandbox: &Sandbox) {
    let closed = closed(sandbox);
    let home = of_a_user(sandbox, &closed);
    for (name, told) in [
        ("site", "site' is a link that user 65534 has put there"),
        ("site/.", "site' is a link that user 65534 has put there"),
        ("roots", "where user 65534 can put one"),
    ] {
        let option = volume(&home.join(name), "/x");
        let ended = sandbox.run_sh(&["-v", &option], TAKES).run().ended_with(125);
        ended.complains_of(&[told, "a path without links"]).says("");
        let create = ["create", "web", "--from", sandbox.busybox(), "-v", &option, "--", "true"];
        sandbox.pando(create).run().ended_with(125).complains_of(&[told]);
        assert_eq!(sandbox.state("web"), "absent", "nothing was made");
    }
    untouched(&closed);
    // What is no link is shown, whosever it is, a file as well.
    let shown = sandbox.run_sh(&["-v", &volume(&home.join("plain/below"), "/x")], "cat /x/file").run();
    shown.succeeded().says("the user's words\n");
    let file = volume(&home.join("plain/below/file"), "/x");
    sandbox.run_sh(&["-v", &file], "cat /x").run().succeeded().says("the user's words\n");
}

/// A guest has all of a directory, another one a part of it, and the first puts a link in that part's place.
fn a_guests_link_is_refused(sandbox: &Sandbox) {
    let (closed, app) = (closed(sandbox), sandbox.scratch().join("app"));
    std::fs::create_dir_all(app.join("part/below")).expect("a directory");
    sandbox.guest("all", &["-v", &volume(&app, "/app")]);
    sandbox.guest("one", &["-v", &volume(&app.join("part/below"), "/x")]);
    sandbox.exec_sh("one", "echo its own >/x/file").ok();
    sandbox.pando(["restart", "one"]).ok();
    sandbox.exec_sh("one", "cat /x/file").run().says("its own\n");
    sandbox.pando(["stop", "one"]).ok();
    for (way, leads) in [("part/below", closed.clone()), ("part", sandbox.scratch())] {
        let plant = format!("rm -r /app/{way}; ln -s {} /app/{way}", leads.display());
        sandbox.exec_sh("all", &plant).ok();
        let told = format!("{way}' is a link");
        let start = sandbox.pando(["start", "one"]).run().ended_with(125);
        start.complains_of(&[&told, "where guest 'all' can put one"]);
        assert_eq!(sandbox.state("one"), "stopped");
    }
    // Whether it runs or not.
    sandbox.pando(["stop", "all"]).ok();
    sandbox.pando(["start", "one"]).run().ended_with(125).complains_of(&["guest 'all'"]);
    let option = volume(&app.join("part/closed"), "/x");
    sandbox.run_sh(&["-v", &option], TAKES).run().ended_with(125).complains_of(&["guest 'all'"]).says("");
    untouched(&closed);
}

/// What the operator copies or exports to, and from, is where a guest has put links.
fn nothing_is_copied_by_a_guests_link(sandbox: &Sandbox) {
    let (closed, app) = (closed(sandbox), sandbox.scratch().join("app"));
    std::fs::create_dir_all(app.join("results")).expect("a directory");
    std::fs::write(app.join("file"), "shared\n").expect("a file");
    sandbox.guest("web", &["-v", &volume(&app, "/app")]);
    let plant = format!(
        "ln -s {0} /app/in; ln -s {0}/file /app/to; ln -s {0}/new /app/new; echo evil >/evil",
        closed.display()
    );
    sandbox.exec_sh("web", &plant).ok();
    sandbox.pando(["freeze", "web", "warm"]).ok();
    let at = |name: &str| app.join(name).to_string_lossy().into_owned();
    let told = ["is a link below", "where guest 'web' can put one", "a path without links"];
    for destination in ["in", "in/", "in/.", "in/new", "to", "new"] {
        sandbox.pando(["cp", "web:/evil", &at(destination)]).run().ended_with(125).complains_of(&told);
    }
    for source in ["in/file", "in/.", "in/../closed/file"] {
        sandbox.pando(["cp", &at(source), "web:/got"]).run().ended_with(125).complains_of(&told);
        assert_ne!(sandbox.exec_sh("web", "cat /got").run().out(), "the host's words\n", "{source}");
    }
    sandbox.pando(["image", "export", "warm", &at("in/x")]).run().ended_with(125).complains_of(&told);
    sandbox.pando(["image", "import", &at("to")]).run().ended_with(125).complains_of(&told);
    std::fs::write(closed.join("spec"), "hostname = \"host\"\n[env]\nA = \"of the host\"\n").expect("a file");
    for (option, file) in [("--env-file", at("in/file")), ("--spec", at("in/spec"))] {
        sandbox.pando(["create", "other", option, &file]).run().ended_with(125).complains_of(&told);
    }
    sandbox.pando(["exec", "--env-file", &at("in/file"), "web", "env"]).run().ended_with(125).complains_of(&told);
    std::fs::remove_file(closed.join("spec")).expect("it is ours");
    untouched(&closed);
    assert_eq!(std::fs::read_to_string(closed.join("file")).expect("it is there"), "the host's words\n");
    // What is no link is copied there and from there, and the operator's own links lead where they lead.
    symlink(&app, sandbox.scratch().join("mine")).expect("a link");
    let mine = |name: &str| sandbox.scratch().join("mine").join(name).to_string_lossy().into_owned();
    sandbox.pando(["cp", "web:/evil", &mine("results")]).ok();
    sandbox.pando(["cp", &mine("file"), "web:/got"]).ok();
    assert_eq!(sandbox.exec_sh("web", "cat /got /app/results/evil").ok(), "shared\nevil\n");
    sandbox.pando(["image", "export", "warm", &mine("results/warm.pando")]).ok();
    sandbox.pando(["image", "export", "warm", &mine("results/warm.pando")]).run().ended_with(125);
    sandbox.pando(["image", "import", &mine("results/warm.pando"), "again", "--allow", "all"]).ok();
    let left = std::fs::read_dir(app.join("results")).expect("it is there").count();
    assert_eq!(left, 2, "nothing lies beside what was exported");
}

fn a_guests_own_link_is_refused(sandbox: &Sandbox) {
    let (closed, app) = (closed(sandbox), sandbox.scratch().join("app"));
    std::fs::create_dir_all(app.join("part")).expect("a directory");
    let (all, part) = (volume(&app, "/app"), volume(&app.join("part"), "/x"));
    sandbox.guest("web", &["-v", &all, "-v", &part]);
    let plant = format!("rmdir /app/part; ln -s {} /app/part", closed.display());
    sandbox.exec_sh("web", &plant).ok();
    let restart = sandbox.pando(["restart", "web"]).run().ended_with(125);
    restart.complains_of(&["part' is a link", "where guest 'web' can put one"]);
    // A guest that is not there yet writes to what it is going to be shown.
    let ended = sandbox.run_sh(&["-v", &part, "-v", &all], TAKES).run().ended_with(125);
    ended.complains_of(&["part' is a link"]).says("");
    untouched(&closed);
}

/// What lies there was a guest's once, if none has it now.
fn a_link_in_a_named_volume_is_refused(sandbox: &Sandbox) {
    let closed = closed(sandbox);
    sandbox.run_sh(&["-v", "data:/data"], &format!("ln -s {} /data/part", closed.display())).run().succeeded();
    let option = volume(&sandbox.places().volumes().join("data/part"), "/x");
    let ended = sandbox.run_sh(&["-v", &option], TAKES).run().ended_with(125);
    ended.complains_of(&["part' is a link", "where a guest can put one"]).says("");
    untouched(&closed);
}

fn the_operators_are_followed(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    std::fs::create_dir_all(scratch.join("disk/data")).expect("a directory");
    std::fs::write(scratch.join("disk/data/file"), "on the disk\n").expect("a file");
    symlink("disk", scratch.join("srv")).expect("a link");
    symlink(scratch.join("srv/data/file"), scratch.join("link")).expect("a link");
    for (name, script) in [("srv/data", "cat /x/file"), ("srv/../srv/data", "cat /x/file"), ("link", "cat /x")] {
        let option = volume(&scratch.join(name), "/x");
        sandbox.run_sh(&["-v", &option], script).run().succeeded().says("on the disk\n");
    }
    // Another guest's volume beside it changes nothing about that, nor does one at the end of the link.
    sandbox.guest("web", &["-v", &volume(&scratch.join("srv/data"), "/x")]);
    sandbox.pando(["restart", "web"]).ok();
    sandbox.exec_sh("web", "cat /x/file").run().says("on the disk\n");
}

fn nothing_is_exposed_by_a_users_link(sandbox: &Sandbox) {
    let closed = closed(sandbox);
    let home = of_a_user(sandbox, &closed);
    let site = home.join("site");
    let words = ["--expose".to_owned(), site.display().to_string()];
    let told = "site' is a link that user 65534 has put there";
    let read = format!("cat {}/file", site.display());
    let run = sandbox.pando(["run"]).args(&words).args(["--", "sh", "-c", &read]).run();
    run.ended_with(125).complains_of(&["--expose", told]).says("");
    // Before the host's files are copied.
    let create = sandbox.pando(["create", "web", "--from", "host"]).args(&words).args(["--", "true"]).run();
    create.ended_with(125).complains_of(&["--expose", told]);
    assert_eq!(sandbox.state("web"), "absent", "nothing was made");
    // An operator's link is as good as what it leads to.
    let link = sandbox.scratch().join("operators");
    symlink("home/plain/below", &link).expect("a link");
    let read = format!("cat {}/file", link.display());
    let run = sandbox.pando(["run", "--expose"]).args([&link]).args(["--", "sh", "-c", &read]).run();
    run.succeeded().says("the user's words\n");
}

fn no_guest_runs_on_what_a_link_leads_to(sandbox: &Sandbox) {
    let home = of_a_user(sandbox, Path::new(sandbox.busybox()));
    let site = home.join("site").display().to_string();
    let told = "site' is a link that user 65534 has put there";
    let run = sandbox.pando(["run", "--from", &site, "--", "true"]).run();
    run.ended_with(125).complains_of(&[told]);
    let create = sandbox.pando(["create", "web", "--from", &site, "--", "true"]).run();
    create.ended_with(125).complains_of(&[told]);
    assert_eq!(sandbox.state("web"), "absent", "nothing was made");
    let link = sandbox.scratch().join("operators");
    symlink(sandbox.busybox(), &link).expect("a link");
    let link = link.display().to_string();
    sandbox.pando(["run", "--from", &link, "--", "echo", "runs"]).run().succeeded().says("runs\n");
    sandbox.pando(["create", "web", "--from", &link, "--", "true"]).ok();
}

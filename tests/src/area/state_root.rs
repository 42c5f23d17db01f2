//! A state root that a user of the host can write to, himself or by a directory on the way: root makes and opens
//! nothing there.

use crate::case::Case;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

const NEEDS: &[Need] = &[Need::Root];

pub(crate) const CASES: &[Case] = &[
    Case::new("state_root::a_log_that_a_user_has_put_there_is_not_written_to", planted_log).needs(NEEDS),
    Case::new("state_root::a_lock_that_a_user_has_put_there_is_not_made", planted_lock).needs(NEEDS),
    Case::new("state_root::what_was_left_before_it_was_closed_is_refused", left_behind).needs(NEEDS),
    Case::new("state_root::a_directory_of_a_users_on_the_way_is_refused", on_the_way).needs(NEEDS),
    Case::new("state_root::transactions_are_not_kept_there", transactions).needs(NEEDS),
    Case::new("state_root::below_a_sticky_directory_and_by_roots_link_it_works", sticky).needs(NEEDS),
];

/// Somebody who is not root.
const SOMEBODY: u32 = 12_345;

/// A state root, and a file of root's that he would like to have written to.
struct Scene<'a> {
    sandbox: &'a Sandbox,
    root: PathBuf,
    victim: PathBuf,
}

impl<'a> Scene<'a> {
    const KEPT: &'static str = "as it was";

    fn set(sandbox: &'a Sandbox) -> Self {
        let (root, victim) = (sandbox.scratch().join("root"), sandbox.scratch().join("victim"));
        std::fs::create_dir_all(root.join("run/pando")).expect("a directory");
        std::fs::write(&victim, Self::KEPT).expect("a file");
        Self { sandbox, root, victim }
    }

    fn run(&self) -> PathBuf {
        self.root.join("run/pando")
    }

    fn pando(&self, words: &[&str]) -> Line {
        self.pando_at(&self.root, words)
    }

    fn pando_at(&self, root: &Path, words: &[&str]) -> Line {
        Line::new(self.sandbox.program()).args(["--root".as_ref(), root.as_os_str()]).args(words)
    }

    /// Commands that start a daemon, and the daemon itself, refuse it, with these words.
    #[track_caller]
    fn is_refused(&self, words: &[&str]) {
        let run = ["run", "--from", self.sandbox.busybox(), "--", "true"];
        for line in [&["ls"] as &[&str], &run, &["daemon"], &["daemon", "--background"]] {
            let ended = self.pando(line).limit(20).run();
            self.is_unharmed();
            ended.ended_with(125).complains_of(words).complains_of(&["--root"]);
        }
    }

    #[track_caller]
    fn is_unharmed(&self) {
        let kept = std::fs::read_to_string(&self.victim).expect("it is there");
        assert_eq!(kept, Self::KEPT, "the victim was written to");
        assert!(!self.sandbox.scratch().join("made").exists(), "a file was made elsewhere");
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        // Where a daemon was started all the same it goes.
        for process in crate::process::all() {
            let own = self.sandbox.scratch().to_string_lossy().into_owned();
            if process.words.iter().any(|word| word.starts_with(&own))
                && process.words.iter().any(|word| word == "daemon")
            {
                crate::process::signal(process.pid, rustix::process::Signal::TERM);
                let _ = crate::patience::comes_true(|| !crate::process::is_alive(process.pid));
            }
        }
    }
}

fn somebodys(path: &Path) {
    lchown(path, Some(SOMEBODY), Some(SOMEBODY)).expect("root may");
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("root may");
}

fn planted_log(sandbox: &Sandbox) {
    for mode in [None, Some(0o777), Some(0o775)] {
        let scene = Scene::set(sandbox);
        symlink(&scene.victim, scene.run().join("daemon.log")).expect("a link");
        somebodys(&scene.run().join("daemon.log"));
        match mode {
            None => {
                [&scene.root, &scene.root.join("run"), &scene.run()].iter().for_each(|path| somebodys(path));
                scene.is_refused(&[&scene.root.to_string_lossy(), "belongs to user 12345", "chown root"]);
            }
            Some(mode) => {
                open_to_all(&scene.run(), mode);
                scene.is_refused(&[&scene.run().to_string_lossy(), "can be written to by", "chmod go-w"]);
            }
        }
        drop(scene);
        Line::new("rm").args(["-r", "--one-file-system"]).args([sandbox.scratch().join("root")]).ok();
    }
}

fn planted_lock(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    symlink(sandbox.scratch().join("made"), scene.run().join("lock")).expect("a link");
    open_to_all(&scene.root, 0o777);
    scene.is_refused(&[&scene.root.to_string_lossy(), "can be written to by everybody"]);
}

/// The directory is root's alone by now; it was not when he could write to it.
fn left_behind(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let refused = |name: &str, words: &[&str]| {
        for line in [&["ls"] as &[&str], &["daemon"]] {
            let ended: Ended = scene.pando(line).run();
            scene.is_unharmed();
            ended.ended_with(125).complains_of(words).complains_of(&["remove it"]);
        }
        std::fs::remove_file(scene.run().join(name)).expect("it is there");
        // What the command that started the daemon has written.
        let _ = std::fs::remove_file(scene.run().join("daemon.log"));
    };
    for name in ["daemon.log", "lock"] {
        symlink(&scene.victim, scene.run().join(name)).expect("a link");
        somebodys(&scene.run().join(name));
        refused(name, &[name]);
        std::fs::hard_link(&scene.victim, scene.run().join(name)).expect("a link");
        refused(name, &[name, "2 names"]);
    }
    symlink(sandbox.scratch(), scene.run().join("net")).expect("a link");
    somebodys(&scene.run().join("net"));
    refused("net", &["net", "belongs to user 12345"]);
    assert_eq!(scene.pando(&["ls", "-q"]).ok(), "");
}

fn on_the_way(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let home = sandbox.scratch().join("home");
    std::fs::create_dir_all(home.join("root")).expect("a directory");
    chown(&home, Some(SOMEBODY), Some(SOMEBODY)).expect("root may");
    let ended = scene.pando_at(&home.join("root"), &["ls"]).run().ended_with(125);
    ended.complains_of(&[&home.to_string_lossy(), "belongs to user 12345", "another --root"]);
    assert!(!home.join("root/run").exists(), "nothing is made there");
    // A link of his leads to a directory that is root's.
    symlink(&scene.root, sandbox.scratch().join("link")).expect("a link");
    somebodys(&sandbox.scratch().join("link"));
    let ended = scene.pando_at(&sandbox.scratch().join("link"), &["ls"]).run().ended_with(125);
    ended.complains_of(&["link", "belongs to user 12345"]);
}

fn transactions(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    std::fs::create_dir_all(scene.root.join("var/lib")).expect("a directory");
    let elsewhere = sandbox.scratch().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a directory");
    symlink(&elsewhere, scene.root.join("var/lib/pando")).expect("a link");
    somebodys(&scene.root.join("var/lib/pando"));
    for words in [&["tx", "run", "--", "true"] as &[&str], &["tx", "begin", "work"], &["tx", "recover"]] {
        let ended = scene.pando(words).run().ended_with(125);
        ended.complains_of(&["var/lib/pando", "belongs to user 12345"]);
        assert_eq!(std::fs::read_dir(&elsewhere).expect("it is there").count(), 0);
    }
}

fn sticky(sandbox: &Sandbox) {
    let scene = Scene::set(sandbox);
    let shared = sandbox.scratch().join("shared");
    std::fs::create_dir_all(shared.join("root")).expect("a directory");
    chown(&shared, Some(SOMEBODY), None).expect("root may");
    open_to_all(&shared, 0o1777);
    scene.pando_at(&shared.join("root"), &["ls"]).run().ended_with(125).complains_of(&["belongs to user 12345"]);
    chown(&shared, Some(0), None).expect("root may");
    assert_eq!(scene.pando_at(&shared.join("root"), &["ls", "-q"]).ok(), "");
    // The link is root's, as /var/run is.
    symlink("shared/root", sandbox.scratch().join("link")).expect("a link");
    assert_eq!(scene.pando_at(&sandbox.scratch().join("link"), &["ls", "-q"]).ok(), "");
    // Somebody has made it before root did.
    std::fs::create_dir(shared.join("his")).expect("a directory");
    somebodys(&shared.join("his"));
    scene.pando_at(&shared.join("his"), &["ls"]).run().ended_with(125).complains_of(&["his", "belongs to user 12345"]);
}

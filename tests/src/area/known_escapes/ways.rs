//! The ways in: how each verb that brings a process into a guest is used by an operator, where the guest has put out
//! its bait.

use super::table::{Bait, Wall};
use super::{Marker, NO_USERS};
use crate::area::attacks;
use crate::image_export::ImageExport;
use crate::line::Ended;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the guests are, and what there is to get hold of.
pub(super) struct Stage<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) tree: PathBuf,
    pub(super) marker: Marker,
    /// Descriptors that baits lead to.
    pub(super) descriptors: std::ops::RangeInclusive<u32>,
    pub(super) export: RefCell<Option<(&'static str, ImageExport)>>,
}

/// What a process is tempted with, and what it tries once it is inside.
pub(super) struct Attempt<'a> {
    pub(super) bait: Bait,
    pub(super) value: String,
    /// What is executed inside. What came of each attack is told as a line: its exit code, its words.
    pub(super) command: &'a [String],
}

/// What came of it.
pub(super) struct Outcome {
    /// That of what was executed inside; 125 and above where nothing was.
    pub(super) code: i32,
    pub(super) report: String,
}

impl Outcome {
    fn of(ended: &Ended) -> Self {
        Self { code: ended.code(), report: ended.out() }
    }
}

/// Why there is no such cell.
type Void = &'static str;
pub(super) type Entered = Result<Outcome, Void>;

/// A way in.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) enter: fn(&Stage<'_>, Wall, &Attempt<'_>) -> Entered,
}

pub(super) const WAYS: &[Way] = &[
    Way { name: "run", enter: run },
    Way { name: "exec", enter: exec },
    Way { name: "shell", enter: shell },
    Way { name: "stop", enter: stop },
    Way { name: "cp in", enter: copy_in },
    Way { name: "cp out", enter: copy_out },
    Way { name: "hooks", enter: hooks },
    Way { name: "clone", enter: clone },
    Way { name: "import", enter: import },
    Way { name: "restore", enter: restore },
    Way { name: "move", enter: moving },
    Way { name: "tx", enter: transaction },
];

const FROZEN: Void =
    "its directory, program and user are those of what was frozen; what somebody else says of them is an import";
const NO_TERMINAL: Void = "it makes no terminal";
const OWN_PROGRAM: Void = "nothing of the guest's is executed: Pando's own program does it, as the guest's root";
const ROOT_ALONE: Void = "it is always the guest's root, at /";

/// The guest that processes are put into, and that lasts for a wall's attempts. Where its directory is to be bait, that
/// is /app, and it is there at first.
const HERE: &str = "/app";

impl Stage<'_> {
    fn tree(&self) -> String {
        self.tree.to_string_lossy().into_owned()
    }

    /// A running guest of a kind: made where there is none.
    fn guest(&self, name: &str, wall: Wall, more: &[&str]) {
        if self.sandbox.status(name).is_none() {
            let tree = self.tree();
            self.sandbox.pando(["create", name, "--from", &tree, "-w", HERE]).args(wall.options()).args(more).ok();
        }
        if self.sandbox.state(name) != "running" {
            self.sandbox.pando(["start", name]).ok();
        }
    }

    fn lasting(&self, wall: Wall) -> String {
        let name = format!("{}-lasts", wall.name);
        self.guest(&name, wall, &["--", "/bin/busybox", "sleep", "100000"]);
        name
    }

    /// Has the guest do something, by a program that no bait is put in the place of.
    fn inside(&self, name: &str, script: &str) -> Ended {
        self.sandbox.pando(["exec", "-w", "/", name, "--", "/bin/busybox", "sh", "-c", script]).run()
    }

    /// Puts a link in a directory's place, and gives the directory back.
    fn bait_directory(&self, name: &str, leads: &str) {
        self.inside(name, &format!("rm -rf {HERE}; ln -s {leads} {HERE}")).succeeded();
    }

    /// The export of a guest that waits, made once for a wall.
    fn export(&self, wall: Wall, file: &Path) -> ImageExport {
        if let Some((known, export)) = &*self.export.borrow()
            && *known == wall.name
        {
            return export.clone();
        }
        let name = format!("{}-exported", wall.name);
        waiting(self, wall, &name);
        self.sandbox.pando(["freeze", &name, "--stop"]).ok();
        self.sandbox.pando(["image", "export", &name, &file.to_string_lossy()]).ok();
        let export = ImageExport::read(file);
        self.sandbox.pando(["rm", "-f", &name]).ok();
        self.sandbox.pando(["image", "rm", &name]).ok();
        *self.export.borrow_mut() = Some((wall.name, export.clone()));
        export
    }

    fn clear(&self, name: &str) {
        let script =
            format!("rm -rf {HERE} /report /code; mkdir {HERE}; rm -f /bin/sh /sbin/shutdown; ln -s busybox /bin/sh");
        self.inside(name, &script).succeeded();
    }

    /// What a guest wrote of what it tried, from outside.
    fn told(&self, name: &str) -> Outcome {
        let upper = self.sandbox.places().guests().join(name).join("files/upper");
        let read = |file: &str| std::fs::read_to_string(upper.join(file)).unwrap_or_default();
        Outcome { code: read("code").trim().parse().unwrap_or(125), report: read("report") }
    }
}

/// Has a script do it, with a word of what came of it in the guest's files.
fn script(command: &[String], then: &str) -> String {
    let words: Vec<String> = command.iter().map(|word| format!("'{word}'")).collect();
    format!("#!/bin/busybox sh\\n{} >/report 2>/dev/null\\necho $? >/code\\n{then}\\n", words.join(" "))
}

fn run(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    let tree = stage.tree();
    let line = stage.sandbox.pando(["run", "--from", &tree]).args(wall.options());
    let value = attempt.value.as_str();
    let (options, command): (&[&str], Vec<&str>) = match attempt.bait {
        Bait::Inside => (&[], words(attempt)),
        Bait::Directory => (&["-w", value], words(attempt)),
        Bait::User => (&["-u", value], words(attempt)),
        Bait::Program => (&[], [&[value], &words(attempt)[1..]].concat()),
        Bait::Terminal => return Err("its /dev is made with it: nothing can be arranged there before"),
    };
    Ok(Outcome::of(&line.args(options).args(["--"]).args(command).run()))
}

fn words<'a>(attempt: &'a Attempt<'_>) -> Vec<&'a str> {
    attempt.command.iter().map(String::as_str).collect()
}

fn exec(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    let name = stage.lasting(wall);
    let value = attempt.value.as_str();
    let mut command = words(attempt);
    let options: &[&str] = match attempt.bait {
        Bait::Inside => &[],
        Bait::Directory => {
            stage.bait_directory(&name, value);
            &["-w", HERE]
        }
        Bait::User => &["-u", value],
        Bait::Program => {
            stage.inside(&name, &format!("ln -sfn {value} /tool")).succeeded();
            command[0] = "/tool";
            &[]
        }
        Bait::Terminal => {
            if stage.inside(&name, &format!("rm -f /dev/ptmx && {value}")).code() != 0 {
                return Err("its /dev cannot be changed");
            }
            &["-t"]
        }
    };
    let ended = stage.sandbox.pando(["exec"]).args(options).args([name.as_str(), "--"]).args(command).limit(20).run();
    stage.inside(&name, "rm -f /dev/ptmx; ln -s pts/ptmx /dev/ptmx");
    stage.clear(&name);
    Ok(Outcome::of(&ended))
}

fn shell(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    let name = stage.lasting(wall);
    let value = attempt.value.as_str();
    let options: &[&str] = match attempt.bait {
        Bait::Inside => &["-T"],
        Bait::Directory => {
            stage.bait_directory(&name, value);
            &["-T", "-w", HERE]
        }
        Bait::User => &["-T", "-u", value],
        Bait::Program => {
            stage.inside(&name, &format!("rm -f /bin/sh; ln -s {value} /bin/sh")).succeeded();
            &["-T"]
        }
        Bait::Terminal => return Err("as with exec, which it is with a login shell"),
    };
    let input = format!("{}; exit $?\n", words(attempt).join(" "));
    let ended = stage.sandbox.pando(["shell"]).args(options).args([&name]).input(input).limit(20).run();
    stage.clear(&name);
    Ok(Outcome::of(&ended))
}

/// The command by which a guest with an init is asked to halt.
fn stop(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    match attempt.bait {
        Bait::Terminal => return Err(NO_TERMINAL),
        Bait::User => return Err("it is always the guest's root"),
        _ => {}
    }
    // The daemon's log tells of it by its name.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("{}-stops-{}", wall.name, NUMBER.fetch_add(1, Ordering::Relaxed));
    stage.guest(&name, wall, &["--init", "/bin/attack"]);
    stage.clear(&name);
    let halt = script(attempt.command, "kill -TERM 1");
    stage
        .inside(&name, &format!("printf \"{}\" >/sbin/shutdown; chmod 755 /sbin/shutdown", halt.replace('$', "\\$")))
        .succeeded();
    match attempt.bait {
        Bait::Directory => stage.bait_directory(&name, &attempt.value),
        Bait::Program => {
            stage.inside(&name, &format!("rm -f /sbin/shutdown; ln -s {} /sbin/shutdown", attempt.value)).succeeded();
        }
        _ => {}
    }
    stage.sandbox.pando(["stop", "-t", "20", &name]).ok();
    let outcome = stage.told(&name);
    stage.sandbox.pando(["rm", &name]).ok();
    let refused = |line: &str| line.contains("no command to halt") && line.contains(&name);
    match attempt.bait {
        Bait::Program if !stage.sandbox.daemon_log().lines().any(refused) => Ok(Outcome { code: 0, ..outcome }),
        _ => Ok(outcome),
    }
}

fn copy_in(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    if attempt.bait != Bait::Directory {
        return Err(OWN_PROGRAM);
    }
    let name = stage.lasting(wall);
    let place = stage.sandbox.scratch().join("copied-to");
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    stage.bait_directory(&name, &attempt.value);
    let (file, to) =
        (stage.marker.path.to_string_lossy(), format!("{name}:{HERE}/{}{}/planted", "../".repeat(16), place.display()));
    stage.sandbox.pando(["cp", &file, &to]).run();
    stage.clear(&name);
    let code = i32::from(!place.join("planted").exists());
    Ok(Outcome { code, report: String::new() })
}

fn copy_out(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    if attempt.bait != Bait::Directory {
        return Err(OWN_PROGRAM);
    }
    let name = stage.lasting(wall);
    let got = stage.sandbox.scratch().join("copied-out");
    stage.bait_directory(&name, &attempt.value);
    stage.sandbox.pando(["cp", &format!("{name}:{HERE}/{}", stage.marker.from_anywhere), &got.to_string_lossy()]).run();
    stage.clear(&name);
    let text = std::fs::read_to_string(&got).unwrap_or_default();
    let _ = std::fs::remove_file(&got);
    Ok(Outcome { code: i32::from(text != Marker::TEXT), report: String::new() })
}

fn hooks(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    match attempt.bait {
        Bait::Terminal => return Err(NO_TERMINAL),
        Bait::User | Bait::Directory => return Err(ROOT_ALONE),
        _ => {}
    }
    let name = stage.lasting(wall);
    let hook = if attempt.bait == Bait::Program {
        format!("ln -s {} /etc/pando/freeze.d/hook", attempt.value)
    } else {
        let text = script(attempt.command, "exit 0").replace('$', "\\$");
        format!("printf \"{text}\" >/etc/pando/freeze.d/hook; chmod 755 /etc/pando/freeze.d/hook")
    };
    stage.inside(&name, &format!("rm -rf /report /code /etc/pando; mkdir -p /etc/pando/freeze.d; {hook}")).succeeded();
    let frozen = stage.sandbox.pando(["freeze", "--memory", &name]).run();
    let outcome = stage.told(&name);
    stage.sandbox.pando(["image", "rm", &name]).run();
    stage.inside(&name, "rm -rf /etc/pando");
    stage.clear(&name);
    // A link to a descriptor is no hook, or ends the look for them. One that was executed would have been the runtime's
    // program, which fails on such words.
    let is_executed = frozen.err().contains("the hook '");
    let code = if is_executed { attacks::GOT_THROUGH } else { attacks::DENIED };
    Ok(if attempt.bait == Bait::Program { Outcome { code, ..outcome } } else { outcome })
}

/// What a process does that goes on after a clone, an import, a restore, a move: it waits for something to try.
const WAITS: &str = "while :; do [ -e /go ] && rm /go && /tries; /bin/busybox usleep 30000; done";

/// A guest whose command does that.
fn waiting(stage: &Stage<'_>, wall: Wall, name: &str) {
    stage.guest(name, wall, &["--", "/bin/busybox", "sh", "-c", WAITS]);
    eventually("it waits", || stage.inside(name, "tr '\\0' ' ' </proc/2/cmdline | grep -q /tries").code() == 0);
}

/// Has one that goes on try something.
fn goes_on(stage: &Stage<'_>, name: &str, command: &[String]) -> Outcome {
    let text = script(command, "").replace('$', "\\$");
    let begin = format!("rm -f /report /code; printf \"{text}\" >/tries; chmod 755 /tries; : >/go");
    stage.inside(name, &begin).succeeded();
    eventually("it has tried", || stage.inside(name, "[ -s /code ]").code() == 0);
    stage.told(name)
}

fn clone(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    if attempt.bait != Bait::Inside {
        return Err(FROZEN);
    }
    let (name, copy) = (format!("{}-waits", wall.name), format!("{}-clone", wall.name));
    waiting(stage, wall, &name);
    stage.sandbox.pando(["freeze", &name]).ok();
    stage.sandbox.pando(["clone", &name, &copy]).ok();
    let outcome = goes_on(stage, &copy, attempt.command);
    stage.sandbox.pando(["rm", "-f", &copy, &name]).ok();
    stage.sandbox.pando(["image", "rm", &name]).ok();
    Ok(outcome)
}

fn import(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    match attempt.bait {
        Bait::Terminal => return Err(NO_TERMINAL),
        Bait::User => return Err("what it says of users is tried by hostile_images::"),
        _ => {}
    }
    let file = stage.sandbox.scratch().join("export.pando");
    let mut export = stage.export(wall, &file);
    let old = if attempt.bait == Bait::Program { "/bin/busybox" } else { HERE };
    if attempt.bait != Bait::Inside {
        assert!(export.replace_path(old, &attempt.value) > 0, "the image has no {old}");
    }
    export.write(&file);
    let evil = format!("{}-evil", wall.name);
    let allow = ["--allow", "userns,profile"];
    stage.sandbox.pando(["image", "import", &file.to_string_lossy(), &evil]).args(allow).ok();
    std::fs::remove_file(&file).expect("it was read");
    let cloned = stage.sandbox.pando(["clone", &evil, &evil]).run();
    let outcome = if cloned.code() == 0 {
        goes_on(stage, &evil, attempt.command)
    } else {
        Outcome { code: 125, report: cloned.err() }
    };
    stage.sandbox.pando(["rm", "-f", &evil]).run();
    stage.sandbox.pando(["image", "rm", &evil]).ok();
    Ok(outcome)
}

fn restore(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    if attempt.bait != Bait::Inside {
        return Err(FROZEN);
    }
    let name = format!("{}-waits", wall.name);
    waiting(stage, wall, &name);
    stage.sandbox.pando(["freeze", &name, "--stop"]).ok();
    stage.sandbox.pando(["restore", &name]).ok();
    let outcome = goes_on(stage, &name, attempt.command);
    stage.sandbox.pando(["rm", "-f", &name]).ok();
    stage.sandbox.pando(["image", "rm", &name]).ok();
    Ok(outcome)
}

fn moving(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    if attempt.bait != Bait::Inside {
        return Err(FROZEN);
    }
    let (from, into) = (format!("{}-from", wall.name), format!("{}-into", wall.name));
    let sleeps = ["--", "/bin/busybox", "sleep", "100000"];
    for name in [&from, &into] {
        stage.guest(name, wall, &sleeps);
    }
    let begin = format!("cd /; echo '{WAITS}' >/waits; setsid /bin/busybox sh /waits </dev/null >/dev/null 2>&1 &");
    stage.inside(&from, &begin).succeeded();
    let mut found = None;
    eventually("it waits", || {
        let listed: serde_json::Value =
            serde_json::from_str(&stage.sandbox.pando(["ps", "--json", &from]).ok()).expect("a list");
        let ours = |one: &&serde_json::Value| one["command"].as_str().is_some_and(|words| words.ends_with("sh /waits"));
        found = listed.as_array().expect("an array").iter().find(ours).and_then(|one| one["host_pid"].as_i64());
        found.is_some()
    });
    stage.sandbox.pando(["move", &found.expect("it was found").to_string(), "--to", &into]).ok();
    let outcome = goes_on(stage, &into, attempt.command);
    stage.sandbox.pando(["rm", "-f", &from, &into]).ok();
    Ok(outcome)
}

fn transaction(stage: &Stage<'_>, wall: Wall, attempt: &Attempt<'_>) -> Entered {
    match attempt.bait {
        Bait::Terminal => return Err(NO_TERMINAL),
        Bait::User => return Err("it is whoever the guest's commands are, as with exec"),
        _ => {}
    }
    let name = stage.lasting(wall);
    let mut command = words(attempt);
    match attempt.bait {
        Bait::Directory => stage.bait_directory(&name, &attempt.value),
        Bait::Program => {
            stage.inside(&name, &format!("ln -sfn {} /tool", attempt.value)).succeeded();
            command[0] = "/tool";
        }
        _ => {}
    }
    let line =
        stage.sandbox.pando(["tx", "run", "--quiet", "--unsupported", "warn", "--retry", "0", "--guest", &name, "--"]);
    let ended = line.args(command).run();
    stage.clear(&name);
    Ok(Outcome::of(&ended))
}

/// What each kind of bait is made of.
pub(super) fn values(stage: &Stage<'_>, bait: Bait) -> Vec<String> {
    let all = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    match bait {
        Bait::Inside => all(&[""]),
        Bait::Directory => stage.descriptors.clone().map(|number| format!("/proc/self/fd/{number}")).collect(),
        Bait::Program => all(&["/proc/self/exe", "/proc/1/exe", "/proc/self/fd/3", "/proc/thread-self/exe"]),
        Bait::Terminal => all(&["ln -s /proc/self/fd/4 /dev/ptmx", "ln -s /dev/null /dev/ptmx", "echo >/dev/ptmx"]),
        Bait::User => all(&NO_USERS),
    }
}

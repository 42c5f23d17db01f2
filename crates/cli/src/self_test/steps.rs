//! What is tried, one after another. Each step looks at what came of it, not at an exit code alone.

use super::place::{GUEST, Place};
use anyhow::ensure;

/// Something that is tried.
pub(super) struct Step {
    /// Its name, for programs and for the steps that build on it.
    pub(super) name: &'static str,
    /// What it shows, for people.
    pub(super) what: &'static str,
    /// The steps without which it cannot be tried.
    pub(super) after: &'static [&'static str],
    /// Does it.
    pub(super) act: fn(&Place) -> anyhow::Result<()>,
}

const IMAGE: &str = "trial-image";
const CLONE: &str = "trial-clone";

pub(super) const STEPS: &[Step] = &[
    Step { name: "daemon", what: "the daemon starts", after: &[], act: daemon },
    Step { name: "run", what: "a command runs in a fresh guest over the host's files", after: &["daemon"], act: run },
    Step { name: "create", what: "a guest that lasts is made of a directory", after: &["daemon"], act: create },
    Step { name: "start", what: "it starts", after: &["create"], act: start },
    Step { name: "exec", what: "a command is executed in it", after: &["start"], act: exec },
    Step { name: "freeze", what: "it is frozen while it runs", after: &["start"], act: freeze },
    Step { name: "clone", what: "a clone of it runs", after: &["freeze"], act: clone },
    Step { name: "commit", what: "a transaction commits", after: &[], act: commit },
    Step { name: "abort", what: "a transaction that fails leaves no trace", after: &[], act: abort },
    Step { name: "remove", what: "the guests and the image are removed", after: &["create"], act: remove },
];

fn daemon(place: &Place) -> anyhow::Result<()> {
    place.pando(&["ls"]).map(drop)
}

fn run(place: &Place) -> anyhow::Result<()> {
    // What it writes is its own: the host must not see it.
    let file = place.file("written-by-run");
    let script = format!("echo x >{file} 2>/dev/null; echo \"$$ in a guest\"");
    let said = place.pando(&["run", "--", "sh", "-c", &script])?;
    ensure!(said.ends_with(" in a guest\n"), "the command printed {said:?}");
    ensure!(!place.has(&file), "what it wrote is in the host's files");
    Ok(())
}

fn create(place: &Place) -> anyhow::Result<()> {
    let tree = place.tree()?;
    place.pando(&["create", GUEST, "--from", &tree, "--net", "none", "--", "/pando", "doctor", "--wait-for-signal"])?;
    Ok(())
}

fn start(place: &Place) -> anyhow::Result<()> {
    place.pando(&["start", GUEST]).map(drop)
}

/// Wants this program to run in a guest.
fn executes(place: &Place, guest: &str) -> anyhow::Result<()> {
    let said = place.pando(&["exec", guest, "--", "/pando", "--version"])?;
    ensure!(said.starts_with("pando "), "the command printed {said:?}");
    Ok(())
}

fn exec(place: &Place) -> anyhow::Result<()> {
    executes(place, GUEST)
}

fn freeze(place: &Place) -> anyhow::Result<()> {
    place.pando(&["freeze", "--wait", GUEST, IMAGE]).map(drop)
}

fn clone(place: &Place) -> anyhow::Result<()> {
    place.pando(&["clone", IMAGE, CLONE])?;
    executes(place, CLONE)
}

fn commit(place: &Place) -> anyhow::Result<()> {
    let file = place.file("committed");
    place.pando(&["tx", "run", "--", "sh", "-c", &format!("echo x >{file}")])?;
    ensure!(place.has(&file), "it was committed, and the file that it wrote is not there");
    Ok(())
}

fn abort(place: &Place) -> anyhow::Result<()> {
    const CODE: i32 = 3;
    let file = place.file("aborted");
    place.pando_ends_with(CODE, &["tx", "run", "--", "sh", "-c", &format!("echo x >{file} && exit {CODE}")])?;
    ensure!(!place.has(&file), "it was aborted, and the file that it wrote is there");
    Ok(())
}

fn remove(place: &Place) -> anyhow::Result<()> {
    let names = place.pando(&["ls", "-q"])?;
    let guests: Vec<&str> = names.lines().collect();
    place.pando(&[&["rm", "--force"], guests.as_slice()].concat())?;
    if !place.pando(&["images", "-q"])?.is_empty() {
        place.pando(&["image", "rm", IMAGE])?;
    }
    Ok(())
}

//! What cannot be frozen is named before anything is stopped: each kind by somebody who does it. Nothing has changed
//! then, and when it is gone the rest is frozen.
//!
//! ```text
//!   of_*.rs: does, says, clears ──▶ fixtures/refused.py: who stands by, and who does it
//!                                     ├─ survey: it is named, and nobody was stopped
//!                                     ├─ freeze: refused in the same words; all is as it was, and runs
//!                                     └─ it is gone: frozen
//! ```

mod kinds;
mod of_files;
mod of_guests;
mod of_memory;
mod of_namespaces;
mod of_processes;
mod of_sockets;
mod outside;
pub(super) mod state;

use crate::case::{Case, skip};
use crate::need::Need;
use crate::patience::{comes_true, eventually};
use crate::sandbox::Sandbox;
use crate::spaces::Space;
use kinds::Kind;
use outside::Outside;
use pando_freeze::{FreezeError, Refusal, Subject, TaskIterator, freeze, survey};
use state::State;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::LazyLock;

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("python3", "python3"),
    Need::Program("unshare", "util-linux"),
    Need::Program("nsenter", "util-linux"),
    Need::Program("ip", "iproute2"),
];

const fn case(name: &'static str, show: fn(&Sandbox)) -> Case {
    Case::new(name, show).needs(NEEDS)
}

pub(crate) const CASES: &[Case] = &[
    Case::new("freeze_refusals::nothing_changes", of_guests::nothing_changes),
    Case::new("freeze_refusals::visitors_are_named", of_guests::visitors_are_named),
    case("freeze_refusals::of_memory", |sandbox| all(sandbox, "", of_memory::MEMORY)),
    case("freeze_refusals::of_files", |sandbox| all(sandbox, "", of_files::FILES)),
    case("freeze_refusals::of_sockets", |sandbox| all(sandbox, "", of_sockets::SOCKETS)),
    case("freeze_refusals::of_processes", |sandbox| all(sandbox, "", of_processes::PROCESSES)),
    case("freeze_refusals::of_namespaces", |sandbox| all(sandbox, "", of_namespaces::NAMESPACES)),
    case("freeze_refusals::of_mounts", |sandbox| all(sandbox, of_namespaces::WITH_MOUNTS, of_namespaces::MOUNTS)),
];

/// A program of 32 bits, which stays when it is told to.
const NARROW: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/program32"));

/// What tells of threads, where this machine can have it.
static ONLOOKER: LazyLock<Option<TaskIterator>> = LazyLock::new(|| TaskIterator::load().ok());

/// Tries every kind, and tells of all that went wrong at once, and of how many this machine has none.
fn all(sandbox: &Sandbox, before: &str, kinds: &[Kind]) {
    let (mut wrong, mut lacking) = (Vec::new(), Vec::new());
    for (number, kind) in kinds.iter().enumerate() {
        match catch_unwind(AssertUnwindSafe(|| try_one(sandbox, before, kind, number))) {
            Ok(Ok(())) => {}
            Ok(Err(Lacking(why))) => lacking.push(format!("{:?}: {why}", kind.says)),
            Err(panic) => {
                let words = panic.downcast_ref::<String>().cloned();
                let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
                wrong.push(format!("{}\n  {}", kind.does, words.unwrap_or_default()));
            }
        }
    }
    if !lacking.is_empty() {
        println!("     {} of {} kinds skipped: {}", lacking.len(), kinds.len(), lacking.join("; "));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    if lacking.len() == kinds.len() {
        skip("this machine has none of these kinds");
    }
}

/// Why a kind cannot be tried here.
struct Lacking(String);

fn try_one(sandbox: &Sandbox, before: &str, kind: &Kind, number: usize) -> Result<(), Lacking> {
    if kind.told && ONLOOKER.is_none() {
        return Err(Lacking("this kernel does not tell of it".into()));
    }
    let stage = stage(sandbox, number);
    let outside = Outside::at(&stage);
    let space = Space::new();
    let script = include_str!("../../../fixtures/refused.py");
    let _actor = space
        .play(&format!("DOES, CLEARS = {:?}, {:?}\n{script}", format!("{before}{}", kind.does), kind.clears), &stage);
    let said = std::fs::read_to_string(stage.join("offends")).expect("it was ready by then");
    if let Some(why) = said.strip_prefix("lacks ") {
        return Err(Lacking(why.to_owned()));
    }
    assert!(said.is_empty(), "{said}");
    outside.connect_where_wanted();
    refuses(&space, kind);
    std::fs::write(stage.join("enough"), "").expect("a file");
    eventually("it is gone", || stage.join("clear").exists());
    drop(outside);
    let frozen = comes_true(|| frozen(&space).is_ok());
    assert!(frozen, "without it: {}", frozen_words(&space));
    Ok(())
}

/// A directory that everybody may write to.
fn stage(sandbox: &Sandbox, number: usize) -> std::path::PathBuf {
    let stage = sandbox.scratch().join(number.to_string());
    for path in [sandbox.root(), &sandbox.scratch(), &stage] {
        std::fs::create_dir_all(path).expect("a directory");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("its mode");
    }
    let narrow = stage.join("narrow");
    std::fs::write(&narrow, NARROW).expect("a file");
    std::fs::set_permissions(&narrow, PermissionsExt::from_mode(0o755)).expect("its mode");
    stage
}

fn subject(space: &Space) -> Subject<'static> {
    Subject { init: space.init(), task_iterator: ONLOOKER.as_ref(), ..Subject::default() }
}

fn frozen(space: &Space) -> Result<(), FreezeError> {
    let root = File::open(format!("/proc/{}/root", space.init())).expect("the root of a space");
    freeze(&subject(space), || Ok(root.into())).map(drop)
}

fn frozen_words(space: &Space) -> String {
    frozen(space).err().map_or_else(|| "it can be frozen".to_owned(), |error| error.to_string())
}

/// Wants a refusal in these words, which is to be had without stopping anybody, and everything as it was.
fn refuses(space: &Space, kind: &Kind) {
    let before = State::of(space);
    let foreseen = survey(&subject(space)).expect("a look");
    let foreseen: Vec<_> = foreseen.iter().map(ToString::to_string).collect();
    let has_all = |text: &str| kind.says.iter().all(|word| text.contains(word));
    if !kind.late {
        assert!(foreseen.iter().any(|text| has_all(text)), "before anybody is stopped: {foreseen:?}");
    }
    match frozen(space) {
        Err(FreezeError::Refused(refusals)) => {
            let text = FreezeError::Refused(refusals.clone()).to_string();
            assert!(
                text.starts_with("cannot be frozen: process ") && refusals.iter().any(|one| has_all(&one.to_string())),
                "{text}"
            );
            refusals.iter().for_each(|one| is_whole(space, kind, one));
        }
        Err(error) => panic!("{error}"),
        Ok(()) => panic!("it was frozen"),
    }
    before.is_unchanged(space);
    state::runs_on(space);
}

/// A refusal names a process that is there, and says what to do.
fn is_whole(space: &Space, kind: &Kind, refusal: &Refusal) {
    let names: Vec<String> =
        state::processes(space).into_iter().map(|(_, inner, name)| format!("{inner} {name}")).collect();
    let named = format!("{} {}", refusal.pid, refusal.name);
    assert!(names.contains(&named), "{named} is none of {names:?}");
    assert!([kind.program, "python3"].contains(&refusal.name.as_str()), "{named}");
    assert!(!refusal.kind.is_empty() && !refusal.advice.is_empty(), "{refusal}");
    if let Some(descriptor) = refusal.descriptor {
        let has = state::processes(space).iter().any(|(outer, inner, _)| {
            *inner == refusal.pid && Path::new(&format!("/proc/{outer}/fd/{descriptor}")).symlink_metadata().is_ok()
        });
        assert!(has, "{named} has no descriptor {descriptor}");
    }
}

//! Black-box tests: they drive the built command on state roots of their own, many at a time, and look at what it does
//! from outside.
//!
//! ```text
//!   area/*.rs     the tests, by what they are about: a list of Cases each
//!      │
//!    case ── need          what the machine must have; a case without it is skipped, with the reason
//!      │
//!   Sandbox ── Line        a state root, and command lines in it, none of which can hang
//!      │   └── World       what is there: files, groups, mounts, processes
//!   teardown               everything stopped; what is left over is a failure
//! ```
//!
//! A new test is a function that takes a [`sandbox::Sandbox`], and a line in its file's list. A new file is a line in
//! `area/mod.rs`.
//!
//! `PANDO_TEST_COMMAND` names the command to test (default: `pando` beside this program), `PANDO_TEST_PATIENCE`
//! multiplies every time limit for slow machines. `--slow` runs the long tests alone, `--vm` those that say more on
//! another kernel, `--rebooted` the second halves of cases whose first were among those, in an earlier boot
//! (`PANDO_TEST_LASTING` names what both find), `--selection` the few that run on each kernel, `--unshown FILE` these
//! and those that another machine could not show, which a run there wrote to the file that `PANDO_TEST_UNSHOWN` names;
//! every other option is libtest's.

mod abstract_caller;
mod area;
mod bundle;
mod busybox_root;
mod case;
mod choice;
mod debian_image;
mod dice;
mod disk_server;
mod disorder;
mod durations;
mod file_calls;
mod file_watcher;
mod frozen_kinds;
mod history;
mod image_export;
mod line;
mod need;
mod observed_states;
mod own_init;
mod page;
mod patience;
mod power_loss;
mod process;
mod race;
mod recording_disk;
mod registry_image;
mod registry_server;
mod sandbox;
mod second_try;
mod selection;
mod serial_order;
mod small_disk;
mod spaces;
mod store_worker;
mod swap_file;
mod tables_of_tests;
mod teardown;
mod terminal;
mod tree_state;
mod undo_scene;
mod unshown;
mod world;

use choice::Choice;
use std::process::ExitCode;

/// Something that this program does for its own tests, as another process.
type Part = fn(&[String]) -> std::io::Result<()>;

/// By the word that asks for it.
const PARTS: [(&str, Part); 10] = [
    (abstract_caller::WORD, abstract_caller::obey),
    (disorder::WORD, disorder::obey),
    (disorder::PROTECTIVE, disorder::obey_protectively),
    (history::WORD, history::obey),
    (observed_states::WORD, observed_states::obey),
    (serial_order::WORD, serial_order::obey),
    (file_calls::WORD, file_calls::obey),
    (race::WORD, race::obey),
    (power_loss::WORD, power_loss::obey),
    (disk_server::WORD, disk_server::obey),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((word, rest)) = words.split_first()
        && let Some((_, part)) = PARTS.iter().find(|(name, _)| word == name)
    {
        return part(rest).map_or_else(
            |error| {
                eprintln!("{error}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        );
    }
    if let Some((word, rest)) = words.split_first()
        && word == store_worker::WORD
    {
        return store_worker::work(rest);
    }
    if let Some((word, rest)) = words.split_first()
        && word == file_watcher::WORD
    {
        return file_watcher::watch(rest);
    }
    // What whoever runs the tests has open is no guest's, and a process that holds an end of somebody else's pipe
    // cannot be frozen.
    if let Err(error) = pando_kernel::process::inheritance::close_range_on_exec(3) {
        eprintln!("pando-tests: keeping descriptors to ourselves failed: {error}");
    }
    let (choice, arguments) = match Choice::read(std::env::args()) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("pando-tests: {error}");
            return ExitCode::FAILURE;
        }
    };
    let root = match busybox_root::BusyboxRoot::make() {
        Ok(root) => root,
        Err(error) => {
            eprintln!("pando-tests: making the guests' root file system failed: {error}; is busybox-static installed?");
            return ExitCode::FAILURE;
        }
    };
    let trials = area::all().filter(|case| choice.takes(case)).map(|case| case.trial(root.path())).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(root);
    durations::show_longest();
    if let Some(file) = std::env::var_os("PANDO_TEST_UNSHOWN")
        && let Err(error) = unshown::write(file.as_ref())
    {
        eprintln!("pando-tests: writing down what was skipped failed: {error}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

//! Completions: a shell calls this command to learn what could stand where the cursor is.
//!
//! The shell's script, which `pando completions` prints, puts its name into the environment and the words of the line
//! behind `--`. Verbs and options come from the definition of the command line, names from the daemon that runs. None
//! is started for that, and without leave to ask it there are no names.

use crate::client::Client;
use crate::replies::{Guests, Images, Networks, Volumes};
use crate::state_root::StateRoot;
use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use pando_api::Method;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// By this in the environment a shell asks; its value is the shell's name.
const VARIABLE: &str = "PANDO_COMPLETE";

/// Whether one asks, once it is known: while it is answered the variable is not there.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether a shell asks.
pub(crate) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Answers a shell, and ends this program; does nothing where none asks.
pub(crate) fn complete_if_asked() {
    if std::env::var_os(VARIABLE).is_some() {
        ASKED.store(true, Ordering::Relaxed);
        CompleteEnv::with_factory(crate::command_line::public_definition).var(VARIABLE).bin("pando").complete();
    }
}

/// The script by which a shell asks.
pub(crate) fn script(shell: &str) -> anyhow::Result<Vec<u8>> {
    let shells = Shells::builtins();
    let Some(known) = shells.completer(shell) else {
        anyhow::bail!("there are no completions for {shell}");
    };
    let mut text = Vec::new();
    known.write_registration(VARIABLE, "pando", "pando", "pando", &mut text)?;
    Ok(text)
}

/// What a word can be the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Guest,
    Image,
    Volume,
    Network,
    /// A kind of network, or the name of one.
    Net,
    Transaction,
    /// A file, or one of a guest's.
    Place,
}

/// What an argument of a verb is the name of. The verb is given with those above it.
fn kind(verb: &str, argument: &str) -> Option<Kind> {
    match (verb, argument) {
        (_, "net") => Some(Kind::Net),
        ("volume inspect" | "volume rm", "names") => Some(Kind::Volume),
        ("network inspect" | "network rm", "names") => Some(Kind::Network),
        ("cp", "source" | "destination") => Some(Kind::Place),
        ("tx enter" | "tx diff" | "tx commit" | "tx abort", "name") => Some(Kind::Transaction),
        ("clone" | "restore", "image")
        | ("image inspect" | "image export", "name")
        | ("image rm" | "image release", "names") => Some(Kind::Image),
        ("image import" | "clone" | "create" | "run", _) => None,
        _ if verb.starts_with("image ") || verb.starts_with("volume ") || verb.starts_with("network ") => None,
        (_, "guest") => Some(Kind::Guest),
        (_, "name" | "names") if !verb.starts_with("tx ") => Some(Kind::Guest),
        _ => None,
    }
}

/// Has the arguments of a verb, and of those below it, be completed by names.
pub(crate) fn know_names(command: Command, verb: &str) -> Command {
    let own = command.mut_args(|argument| match kind(verb, argument.get_id().as_str()) {
        Some(kind) => argument.add(ArgValueCompleter::new(kind)),
        None => argument,
    });
    own.mut_subcommands(|below| {
        let path = format!("{verb} {}", below.get_name());
        know_names(below, &path)
    })
}

impl ValueCompleter for Kind {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let begun = current.to_string_lossy();
        let end = if *self == Self::Place { ":" } else { "" };
        let names = names(*self).into_iter().filter(|name| name.starts_with(&*begun));
        let mut all: Vec<_> = names.map(|name| CompletionCandidate::new(format!("{name}{end}"))).collect();
        if *self == Self::Place {
            all.extend(PathCompleter::any().complete(current));
        }
        all
    }
}

fn names(kind: Kind) -> Vec<String> {
    let Some(root) = root() else { return Vec::new() };
    if kind == Kind::Transaction {
        return crate::verb::open_transactions(&root);
    }
    let Ok(mut client) = Client::connect(&root.socket()) else { return Vec::new() };
    match kind {
        Kind::Guest | Kind::Place => client
            .call::<Guests>(Method::List {})
            .map(|reply| reply.guests.into_iter().map(|guest| guest.name).collect()),
        Kind::Image => client
            .call::<Images>(Method::Images {})
            .map(|reply| reply.images.into_iter().map(|image| image.name).collect()),
        Kind::Volume => client
            .call::<Volumes>(Method::Volumes {})
            .map(|reply| reply.volumes.into_iter().map(|volume| volume.name).collect()),
        Kind::Network | Kind::Net => client.call::<Networks>(Method::Networks {}).map(|reply| {
            let kinds = if kind == Kind::Net { &["none", "shared", "private", "host"][..] } else { &[] };
            let named = reply.networks.into_iter().map(|network| network.name);
            kinds.iter().map(|kind| (*kind).to_owned()).chain(named).collect()
        }),
        Kind::Transaction => Ok(Vec::new()),
    }
    .unwrap_or_default()
}

/// The state that the line names, or the environment.
fn root() -> Option<StateRoot> {
    let words: Vec<String> = std::env::args().collect();
    let named = words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix("--root") {
        Some("") => words.get(at + 1).cloned(),
        Some(rest) => rest.strip_prefix('=').map(str::to_owned),
        None => None,
    });
    let root = named.or_else(|| std::env::var("PANDO_ROOT").ok()).unwrap_or_else(|| "/".to_owned());
    StateRoot::at(&root).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    /// Every argument that is said to be a name is one that there is.
    #[test]
    fn names_stand_where_they_are_expected() {
        for (verb, argument, expected) in [
            ("start", "names", Some(Kind::Guest)),
            ("exec", "name", Some(Kind::Guest)),
            ("tx run", "guest", Some(Kind::Guest)),
            ("clone", "image", Some(Kind::Image)),
            ("image rm", "names", Some(Kind::Image)),
            ("volume rm", "names", Some(Kind::Volume)),
            ("network inspect", "names", Some(Kind::Network)),
            ("tx commit", "name", Some(Kind::Transaction)),
            ("run", "net", Some(Kind::Net)),
            ("cp", "source", Some(Kind::Place)),
            // A name that is to be new.
            ("create", "name", None),
            ("clone", "name", None),
            ("volume create", "name", None),
        ] {
            assert_eq!(kind(verb, argument), expected, "{verb} {argument}");
            let mut definition = crate::command_line::public_definition();
            definition.build();
            let mut command = &definition;
            for word in verb.split(' ') {
                command = command.find_subcommand(word).unwrap_or_else(|| panic!("there is no {verb}"));
            }
            let is = |known: &Arg| known.get_id() == argument;
            assert!(command.get_arguments().any(is), "{verb} has no argument {argument}");
        }
    }
}

//! What the command can do, one file a verb (or a few that are alike).

mod address;
mod attach;
mod carry_output;
mod clone;
mod completions;
mod cp;
mod create;
mod daemon_command;
mod doctor_command;
mod each;
mod events;
mod exec;
mod freeze;
mod hold_terminal;
mod host_mode;
mod images;
mod inspect;
mod lifecycle;
mod logs;
mod ls;
mod man;
mod move_command;
mod named;
mod network;
mod port;
mod prune;
mod ps;
mod pull;
mod push;
mod reclaim;
mod restore;
mod run;
mod set;
pub(crate) mod stats;
mod store;
mod top;
mod tx;
mod unify;
mod version;
mod volume;
mod wait;
mod watchdog;

pub(crate) use carry_output::{carry_on, carry_while_here, to_be_waited_for, wait_for_carriers};
pub(crate) use clone::Clone;
pub(crate) use exec::Exec;
pub(crate) use hold_terminal::hold;
pub(crate) use run::Run;
pub(crate) use tx::{Tx, open_transactions};

use crate::state_root::StateRoot;
use clap::{ArgMatches, Command};

/// A verb: its options, and what it does.
pub(crate) trait Verb: clap::Args {
    const NAME: &'static str;
    /// One line for `pando --help`.
    const ABOUT: &'static str;
    const EXAMPLES: &'static str;
    /// Whether only root may use it.
    const NEEDS_ROOT: bool = true;
    /// Whether it is part of the machinery, and not shown.
    const HIDDEN: bool = false;

    /// Does it; the answer is the exit code.
    fn run(self, root: &StateRoot) -> anyhow::Result<u8>;
}

/// A verb as a row of [`ENTRIES`].
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    examples: &'static str,
    pub(crate) needs_root: bool,
    hidden: bool,
    define: fn(Command) -> Command,
    pub(crate) run: fn(&ArgMatches, &StateRoot) -> anyhow::Result<u8>,
}

impl Entry {
    const fn of<V: Verb>() -> Self {
        Self {
            name: V::NAME,
            about: V::ABOUT,
            examples: V::EXAMPLES,
            needs_root: V::NEEDS_ROOT,
            hidden: V::HIDDEN,
            define: define::<V>,
            run: |matches, root| V::from_arg_matches(matches).map_err(crate::complaint::Usage::from)?.run(root),
        }
    }

    /// Its clap definition; the options follow when the verb is used.
    pub(crate) fn command(&self) -> Command {
        Command::new(self.name).about(self.about).after_help(self.examples).hide(self.hidden).defer(self.define)
    }
}

/// The options of a verb. Its one line comes last: clap takes the words about a group of options for words about the
/// command.
fn define<V: Verb>(command: Command) -> Command {
    let command = V::augment_args(command).about(V::ABOUT).long_about(None);
    if crate::completion::is_asked() { crate::completion::know_names(command, V::NAME) } else { command }
}

/// Every verb, in the order of the help.
pub(crate) const ENTRIES: &[Entry] = &[
    Entry::of::<run::Run>(),
    Entry::of::<create::Create>(),
    Entry::of::<lifecycle::Start>(),
    Entry::of::<lifecycle::Stop>(),
    Entry::of::<lifecycle::Restart>(),
    Entry::of::<lifecycle::Kill>(),
    Entry::of::<wait::Wait>(),
    Entry::of::<attach::Attach>(),
    Entry::of::<lifecycle::Pause>(),
    Entry::of::<lifecycle::Unpause>(),
    Entry::of::<lifecycle::Rename>(),
    Entry::of::<prune::Prune>(),
    Entry::of::<lifecycle::Rm>(),
    Entry::of::<lifecycle::Repair>(),
    Entry::of::<freeze::Freeze>(),
    Entry::of::<clone::Clone>(),
    Entry::of::<restore::Restore>(),
    Entry::of::<move_command::Move>(),
    Entry::of::<images::Images>(),
    Entry::of::<images::Image>(),
    Entry::of::<volume::Volume>(),
    Entry::of::<network::Network>(),
    Entry::of::<pull::Pull>(),
    Entry::of::<push::Push>(),
    Entry::of::<push::Commit>(),
    Entry::of::<exec::Exec>(),
    Entry::of::<exec::Shell>(),
    Entry::of::<cp::Cp>(),
    Entry::of::<cp::Pack>(),
    Entry::of::<cp::Unpack>(),
    Entry::of::<ls::Ls>(),
    Entry::of::<ps::Ps>(),
    Entry::of::<inspect::Inspect>(),
    Entry::of::<logs::Logs>(),
    Entry::of::<port::Port>(),
    Entry::of::<events::Events>(),
    Entry::of::<set::Set>(),
    Entry::of::<tx::Tx>(),
    Entry::of::<address::Address>(),
    Entry::of::<host_mode::HostMode>(),
    Entry::of::<stats::Stats>(),
    Entry::of::<top::Top>(),
    Entry::of::<watchdog::Watchdog>(),
    Entry::of::<reclaim::Reclaim>(),
    Entry::of::<unify::Unify>(),
    Entry::of::<store::Store>(),
    Entry::of::<doctor_command::Doctor>(),
    Entry::of::<daemon_command::Daemon>(),
    Entry::of::<daemon_command::Spawner>(),
    Entry::of::<hold_terminal::HoldTerminal>(),
    Entry::of::<carry_output::CarryOutput>(),
    Entry::of::<completions::Completions>(),
    Entry::of::<man::Man>(),
    Entry::of::<version::Version>(),
];

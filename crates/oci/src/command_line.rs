//! The words of the command, as engines write them for runc.

use crate::copy_up;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Where the state of containers is kept unless `--root` says otherwise.
pub(crate) const DEFAULT_ROOT: &str = "/run/pando-oci";

/// An OCI runtime without a daemon.
#[derive(Debug, Parser)]
// What is given twice counts as it was given last, as runc has it: shims and wrappers add options of their own.
#[command(name = "pando-oci", version = version(), disable_help_subcommand = true, args_override_self = true)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), "\nspec: 1.3.0")
}

/// What holds for every command.
#[derive(Args, Debug)]
pub(crate) struct Global {
    /// Where the state of containers is kept
    #[arg(long, value_name = "DIR", default_value = DEFAULT_ROOT)]
    pub(crate) root: PathBuf,
    /// Where errors are written besides standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// The form of what is written there
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Say more
    #[arg(long)]
    pub(crate) debug: bool,
    /// Have systemd make control groups
    #[arg(long)]
    pub(crate) systemd_cgroup: bool,
    /// Run without root's rights: true, false or auto
    #[arg(long, value_name = "BOOL", default_value = "auto")]
    pub(crate) rootless: String,
    /// Taken for runc's sake
    #[arg(long, hide = true)]
    pub(crate) criu: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// How listings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

/// Where a container comes from, and how its process begins.
#[derive(Args, Debug)]
pub(crate) struct Creation {
    /// The bundle's directory
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    pub(crate) bundle: PathBuf,
    /// A socket that receives the terminal's master
    #[arg(long, value_name = "SOCKET")]
    pub(crate) console_socket: Option<PathBuf>,
    /// Where the process's pid is written
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Enter the root by chroot instead of pivot_root
    #[arg(long)]
    pub(crate) no_pivot: bool,
    /// Keep the session keyring
    #[arg(long)]
    pub(crate) no_new_keyring: bool,
    /// How many descriptors after the standard ones the process inherits
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) preserve_fds: u8,
    /// The container's name
    pub(crate) id: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Make a container whose process waits to be started
    Create(Creation),
    /// Start what was created
    Start {
        /// The container's name
        id: String,
    },
    /// Say how a container is
    State {
        /// The container's name
        id: String,
    },
    /// Send a signal to a container's process
    Kill {
        /// To all processes of the container
        #[arg(short, long)]
        all: bool,
        /// The container's name
        id: String,
        /// The signal
        #[arg(default_value = "SIGTERM")]
        signal: String,
    },
    /// Remove a container that has stopped
    Delete {
        /// Kill it first; one that is not there is fine
        #[arg(short, long)]
        force: bool,
        /// The container's name
        id: String,
    },
    /// Create and start a container
    Run {
        #[command(flatten)]
        creation: Creation,
        /// Do not wait for its end
        #[arg(short, long)]
        detach: bool,
        /// Keep it when it has ended
        #[arg(long)]
        keep: bool,
        /// Taken for runc's sake: a container's orphans are its own
        #[arg(long, hide = true)]
        no_subreaper: bool,
    },
    /// Run a further process in a container
    Exec(Box<Exec>),
    /// List a container's processes
    Ps {
        /// The form of the listing
        #[arg(short, long, default_value = "table")]
        format: Format,
        /// The container's name
        id: String,
        /// Options for ps(1)
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// List containers
    #[command(alias = "ls")]
    List {
        /// The form of the listing
        #[arg(short, long, default_value = "table")]
        format: Format,
        /// Names alone
        #[arg(short, long)]
        quiet: bool,
    },
    /// Have all processes of a container stand still
    Pause {
        /// The container's name
        id: String,
    },
    /// Have them go on
    Resume {
        /// The container's name
        id: String,
    },
    /// Change a container's limits
    Update(Box<Update>),
    /// Say what a container uses
    Events {
        /// Once
        #[arg(long)]
        stats: bool,
        /// How often, such as 5s
        #[arg(long, default_value = "5s")]
        interval: String,
        /// The container's name
        id: String,
    },
    /// Say what this runtime can do
    Features,
    /// Write a configuration to begin with
    Spec {
        /// The bundle's directory
        #[arg(short, long, value_name = "DIR", default_value = ".")]
        bundle: PathBuf,
        /// For a user without root's rights
        #[arg(long)]
        rootless: bool,
    },
    /// Copies its standard input into its standard output, both of which are directories, within control groups
    #[command(name = copy_up::VERB, hide = true)]
    CopyUp {
        /// Files by which a process walks into them
        groups: Vec<PathBuf>,
    },
    /// Not supported yet
    Checkpoint {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        rest: Vec<String>,
    },
    /// Not supported yet
    Restore {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        rest: Vec<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Exec {
    /// A socket that receives the terminal's master
    #[arg(long, value_name = "SOCKET")]
    pub(crate) console_socket: Option<PathBuf>,
    /// The working directory
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,
    /// A variable, NAME=VALUE
    #[arg(short, long, value_name = "VARIABLE")]
    pub(crate) env: Vec<String>,
    /// With a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The user: UID or UID:GID
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// A further group
    #[arg(short = 'g', long, value_name = "GID")]
    pub(crate) additional_gids: Vec<u32>,
    /// The process, as config.json has it
    #[arg(short, long, value_name = "FILE")]
    pub(crate) process: Option<PathBuf>,
    /// Do not wait for its end
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Where the process's pid is written
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Taken for runc's sake
    #[arg(long, hide = true)]
    pub(crate) process_label: Option<String>,
    /// Taken for runc's sake
    #[arg(long, hide = true)]
    pub(crate) apparmor: Option<String>,
    /// No new privileges
    #[arg(long)]
    pub(crate) no_new_privs: bool,
    /// A capability to add
    #[arg(short, long, value_name = "CAPABILITY")]
    pub(crate) cap: Vec<String>,
    /// How many descriptors after the standard ones the process inherits
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) preserve_fds: u8,
    /// A group below the container's, [CONTROLLERS:]PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Vec<String>,
    /// Also in a container that is paused
    #[arg(long)]
    pub(crate) ignore_paused: bool,
    /// The container's name
    pub(crate) id: String,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

/// Limits; what is not named stays.
#[derive(Args, Debug)]
pub(crate) struct Update {
    /// All of them, as config.json has 'resources'; '-' is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) resources: Option<PathBuf>,
    #[arg(long)]
    pub(crate) blkio_weight: Option<u16>,
    #[arg(long)]
    pub(crate) cpu_period: Option<u64>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) cpu_quota: Option<i64>,
    #[arg(long)]
    pub(crate) cpu_burst: Option<u64>,
    #[arg(long)]
    pub(crate) cpu_share: Option<u64>,
    #[arg(long)]
    pub(crate) cpu_rt_period: Option<u64>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) cpu_rt_runtime: Option<i64>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) cpu_idle: Option<i64>,
    #[arg(long)]
    pub(crate) cpuset_cpus: Option<String>,
    #[arg(long)]
    pub(crate) cpuset_mems: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) memory: Option<i64>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) memory_reservation: Option<i64>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) memory_swap: Option<i64>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) pids_limit: Option<i64>,
    /// The container's name
    pub(crate) id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_twice_counts_as_it_was_given_last() {
        let words = ["pando-oci", "--root", "/a", "--root", "/b", "create", "--bundle", "x", "--bundle", "y", "c"];
        let line = CommandLine::try_parse_from(words).unwrap();
        let Verb::Create(creation) = &line.verb else { panic!("{:?}", line.verb) };
        assert_eq!((line.global.root.to_str(), creation.bundle.to_str()), (Some("/b"), Some("y")));
        let line =
            CommandLine::try_parse_from(["pando-oci", "exec", "-e", "A=1", "-e", "B=2", "c", "env", "-i"]).unwrap();
        let Verb::Exec(exec) = &line.verb else { panic!("{:?}", line.verb) };
        assert_eq!((exec.env.len(), exec.command.len()), (2, 2));
    }
}

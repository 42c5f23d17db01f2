//! `pando exec` and `pando shell`: a process in a guest that runs.

use super::Verb;
use crate::env_file;
use crate::guest_options::environment;
use crate::session::{TerminalOptions, attach, start_detached};
use crate::state_root::StateRoot;
use pando_api::{Method, Process};
use std::path::PathBuf;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Exec {
    /// Leave it running; what it prints goes nowhere. With -t it keeps a terminal that nobody looks at
    #[arg(short, long)]
    detach: bool,
    #[command(flatten)]
    process: ProcessOptions,
    #[command(flatten)]
    terminal: TerminalOptions,
    /// The guest
    name: String,
    /// What to run, and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Shell {
    #[command(flatten)]
    process: ProcessOptions,
    #[command(flatten)]
    terminal: TerminalOptions,
    /// The guest
    name: String,
}

/// Who runs a process, where, and with what environment.
#[derive(Debug, Default, clap::Args)]
struct ProcessOptions {
    /// Set an environment variable; without a value, take the caller's
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = environment)]
    env: Vec<Option<(String, String)>>,
    /// Set the variables that stand in a file, NAME=VALUE a line; those of --env win
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Run as this user of the guest: NAME, UID, NAME:GROUP or UID:GID [default: the guest's]
    #[arg(short, long)]
    user: Option<String>,
    /// Start in this directory of the guest [default: the guest's]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
}

impl ProcessOptions {
    fn into_process(self, root: &StateRoot, command: Vec<String>) -> anyhow::Result<Process> {
        let of_files = env_file::read_all(root, &self.env_file)?;
        let env = of_files.into_iter().chain(self.env.into_iter().flatten()).collect();
        Ok(Process { command, env, user: self.user, workdir: self.workdir, ..Process::default() })
    }
}

impl Exec {
    /// What the line `pando exec NAME -- COMMAND` means.
    pub(crate) fn plain(name: String, command: Vec<String>) -> Self {
        Self { name, command, ..Self::default() }
    }

    /// The terminal that it is to have, the call, and the process.
    pub(crate) fn into_order(
        self,
        root: &StateRoot,
    ) -> anyhow::Result<(TerminalOptions, impl FnOnce(Process) -> Method, Process)> {
        let (name, process) = (self.name, self.process.into_process(root, self.command)?);
        Ok((self.terminal, |process| Method::Exec { name, process }, process))
    }
}

impl Verb for Exec {
    const NAME: &'static str = "exec";
    const ABOUT: &'static str = "Run a command in a running guest";
    const EXAMPLES: &'static str = "\
Examples:
  pando exec web -- apt-get install -y nginx
  pando exec -u www-data -w /srv web ls -l
  echo 'select 1' | pando exec db psql
  pando exec -d web -- sh -c './warm-up >/var/log/warm-up 2>&1'

The exit code is the command's own; 125 is Pando's failure, 126 and 127 say that the command cannot be run or found.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let detach = self.detach;
        let (terminal, method, process) = self.into_order(root)?;
        if detach {
            return start_detached(root, terminal.demanded(), process, method).map(|_| 0);
        }
        attach(root, terminal, process, method)
    }
}

impl Verb for Shell {
    const NAME: &'static str = "shell";
    const ABOUT: &'static str = "Open a login shell in a running guest";
    const EXAMPLES: &'static str = "\
Examples:
  pando shell web                the shell of root, as the guest's /etc/passwd names it
  pando shell -u www-data web
  pando shell web < setup.sh     without a terminal

ctrl-p ctrl-q leaves the shell running.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let name = self.name;
        let process = self.process.into_process(root, login_shell())?;
        attach(root, self.terminal, process, |process| Method::Exec { name, process })
    }
}

/// A command that becomes the login shell of whoever runs it. The guest alone knows that shell, and may have none of
/// getent, awk or bash: the shell's own `read` does, over the guest's own file.
pub(super) fn login_shell() -> Vec<String> {
    ["/bin/sh", "-c", LOGIN_SHELL].map(str::to_owned).into()
}

const LOGIN_SHELL: &str = "\
u=$(id -u 2>/dev/null || echo 0); s=; h=
if [ -r /etc/passwd ]; then
  while IFS=: read -r _ _ i _ _ h s; do [ \"$i\" = \"$u\" ] && break; s=; h=; done </etc/passwd
fi
case $s in */nologin|*/false|*/sync) s= ;; esac
[ -d \"$h\" ] && { HOME=$h; export HOME; cd \"$h\" 2>/dev/null; }
for s in \"$s\" /bin/bash /usr/bin/bash /bin/sh; do
  [ -x \"$s\" ] && { SHELL=$s; export SHELL; exec \"$s\" -l; }
done
exec sh";

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_line_becomes_a_shell_and_keeps_input() {
        let mut line = login_shell();
        let program = line.remove(0);
        let mut shell = Command::new(program);
        shell.args(line).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"echo shell=$SHELL; exit 7\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(7));
        assert!(String::from_utf8_lossy(&output.stdout).contains("shell=/"), "{output:?}");
    }
}

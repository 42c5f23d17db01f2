//! An OCI runtime: engines call it where they would call runc, and it needs no daemon.
//!
//! ```text
//!   config.json ──bundle──▶ Spec ──plan──▶ Plan: batches of steps + wants ──launch──▶ shim ──▶ the process
//!                              └──groups::settings──▶ files of control groups
//! ```
//!
//! The process that becomes the container's is the [shim](pando_shim), which guests grow from, out of sealed memory:
//! this program's own file is never within a container's reach. It is this command's child, so that whoever called the
//! command and reaps orphans learns of its end.

mod agent;
mod bundle;
mod command_line;
mod container;
mod copy_up;
mod dialect;
mod first_process;
mod groups;
mod hook;
mod joined_namespaces;
mod launch;
mod log;
mod plan;
mod scheduling;
mod session;
mod verb;

use clap::Parser;
use command_line::CommandLine;
use std::process::ExitCode;

fn main() -> ExitCode {
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 1 } else { 0 });
        }
    };
    let log = log::Log::new(&line.global);
    match verb::run(&line, &log) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            log.error(&format!("{error:#}"));
            ExitCode::from(verb::failure(&line))
        }
    }
}

//! `pando`: the command.
//!
//! A thin client. It reads the command line, says one method of `org.pando.Guests` to the daemon, shows the answer:
//!
//! ```text
//!   argv ─▶ command_line ─▶ verb/NAME ──Method──▶ client ─▶ wire ─▶ daemon (started by daemon_start)
//!                              │  ▲                 │
//!                              │  └── Reply/Fault ──┘
//!                              ├─▶ session   run, exec, shell: carries a process's input, output and signals
//!                              ├─▶ copy      cp: tar streams, hostile ones too
//!                              ├─▶ self_test doctor --try: what Pando is for, done once on a state of its own
//!                              └─▶ table     listings          any error ─▶ complaint ─▶ a sentence, an exit code
//! ```
//!
//! `pando run -- true` is measured from start to exit, so this program has no runtime and no threads: one poll(2) loop,
//! and a command line definition of which only the part in use is built.

mod callers_traits;
mod client;
mod command_line;
#[cfg(test)]
mod command_reference;
mod complaint;
mod completion;
mod confirmation;
mod copy;
mod counted;
mod daemon_start;
mod env_file;
mod errno_words;
mod foreign_words;
mod guest_filter;
mod guest_options;
mod health_options;
mod host_path;
mod inside_transaction;
mod log_view;
mod mount_option;
mod plain_line;
mod printable;
mod progress_line;
mod publish_option;
mod pulling;
mod registry_credentials;
mod replies;
mod resource_options;
mod self_test;
mod session;
mod signal_name;
mod size;
mod source;
mod spec_file;
mod spec_keys;
mod state_root;
mod table;
mod tamed_text;
mod template;
mod time_span;
mod top;
mod verb;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    pando_reader::become_reader_if_asked(std::env::args_os(), &pando_daemon::PARSERS);
    completion::complete_if_asked();
    let code = match command_line::obey(std::env::args_os()) {
        Ok(code) => code,
        Err(error) => complaint::complain(&error),
    };
    verb::wait_for_carriers();
    ExitCode::from(code)
}

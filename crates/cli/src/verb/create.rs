//! `pando create`: a guest that lasts.

use super::Verb;
use crate::guest_options::GuestOptions;
use crate::progress_line::ProgressLine;
use crate::replies::Progressed;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Start it at once
    #[arg(long)]
    start: bool,
    /// Give its command an input that stays open, for `pando attach`
    #[arg(short, long)]
    interactive: bool,
    #[command(flatten)]
    guest: GuestOptions,
    /// The guest's name
    name: String,
    /// What it runs, and the arguments [default: nothing; it is ready for `exec`]
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Verb for Create {
    const NAME: &'static str = "create";
    const ABOUT: &'static str = "Make a guest that lasts";
    const EXAMPLES: &'static str = "\
Examples:
  pando create web --from debian:bookworm --start
  pando create www --from nginx:1.27 --start -p 8080:80
  pando create db --from ./rootfs.tar.zst --spec db.toml
  pando create api --from oci:./api --start --restart unless-stopped -p 8080:80
  pando create db --from oci:./db -v data:/var/lib/db --health-cmd 'pg_isready' --health-interval 10s
  pando create job --from guest:web -e MODE=batch -- /usr/bin/job --once";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let source = self.guest.from.clone();
        let mut spec = self.guest.into_spec(root, self.command)?;
        spec.stdin_open |= self.interactive;
        crate::resource_options::warn(&spec);
        let (name, start) = (self.name, self.start);
        if source.is_none() {
            say_what_is_copied(&name);
        }
        let what = || format!("cannot create guest '{name}'");
        crate::pulling::have(root, source.as_deref()).with_context(what)?;
        let mut client = crate::daemon_start::connected(root)?;
        client.send(Method::Create { name: name.clone(), source, spec, start }, true, Vec::new())?;
        let line = ProgressLine::new();
        let made = loop {
            match client.receive::<Progressed>() {
                Ok(answer) => {
                    if let Some(progress) = &answer.reply.progress {
                        line.show(progress);
                    }
                    if !answer.continues {
                        break Ok(answer.reply.warnings.unwrap_or_default());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        // The line goes away before anything is said about how it ended.
        drop(line);
        for warning in made.with_context(what)? {
            eprintln!("pando: warning: {name}: {}", crate::printable::printable(&warning));
        }
        crate::table::print(&format!("{name}\n"))?;
        Ok(0)
    }
}

/// Without a source it is this machine's own files that are copied, which nobody expects who thinks of `run`.
fn say_what_is_copied(name: &str) {
    let used = rustix::fs::statvfs("/").map(|about| (about.f_blocks - about.f_bfree) * about.f_frsize);
    let size =
        used.map_or_else(|_| String::new(), |bytes| format!(", up to {},", pando_limit::quantity::show_size(bytes)));
    eprintln!(
        "pando: without --from the files of this machine{size} are copied for '{name}'. --from debian:bookworm makes a small system, --from DIR takes one that is there, and `pando run` copies nothing."
    );
}

//! `pando set`: changes a guest's spec.

use super::Verb;
use crate::replies::Applied;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::Method;

#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    /// The guest
    name: String,
    /// What to change: keys of the spec; an empty value takes it back
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = assignment)]
    assignments: Vec<String>,
}

impl Verb for Set {
    const NAME: &'static str = "set";
    const ABOUT: &'static str = "Change a guest's spec";
    const EXAMPLES: &'static str = "\
Examples:
  pando set web hostname=front
  pando set web env.LANG=C.UTF-8 stop_grace=30

It says what holds at once and what from the next start on.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Set { name: self.name.clone(), assignments: self.assignments };
        let applied = client.call::<Applied>(method).with_context(|| format!("cannot change guest '{}'", self.name))?;
        crate::table::print(&text(&applied))?;
        Ok(0)
    }
}

fn text(applied: &Applied) -> String {
    let now = applied.applied.iter().map(|change| (change, "now"));
    let later = applied.at_next_start.iter().map(|change| (change, "from the next start on"));
    now.chain(later).map(|(change, when)| format!("{}: {when}\n", crate::printable::printable(change))).collect()
}

fn assignment(word: &str) -> Result<String, String> {
    match word.split_once('=') {
        Some((key, _)) if !key.is_empty() => Ok(word.to_owned()),
        _ => Err(format!("'{word}' is not KEY=VALUE; for example hostname=front")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_when_is_told() {
        let applied = Applied { applied: vec!["stop_grace=3".into()], at_next_start: vec!["hostname=x".into()] };
        assert_eq!(text(&applied), "stop_grace=3: now\nhostname=x: from the next start on\n");
    }

    #[test]
    fn an_assignment_has_a_key() {
        assert!(assignment("a=").is_ok() && assignment("a=b=c").is_ok());
        assert!(assignment("a").is_err() && assignment("=a").is_err());
    }
}

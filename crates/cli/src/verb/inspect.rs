//! `pando inspect`: all that is known of a guest, or what it is kept from.

use super::Verb;
use crate::printable::printable;
use crate::replies::{Inspected, Secured};
use crate::state_root::StateRoot;
use crate::template::Template;
use anyhow::Context;
use pando_api::{Method, Security};
use std::fmt::Write;

#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// The guest
    name: String,
    /// What the running guest is kept from, as the kernel tells: for people, or with --json
    #[arg(long)]
    security: bool,
    /// As JSON, which without --security it always is
    #[arg(long)]
    json: bool,
    /// A line in these words, such as '{{.status.pid}}' or '{{json .spec}}'
    #[arg(short, long, value_name = "TEMPLATE", conflicts_with_all = ["security", "json"])]
    format: Option<Template>,
}

impl Verb for Inspect {
    const NAME: &'static str = "inspect";
    const ABOUT: &'static str = "Show all that is known of a guest, as JSON, or what it is kept from";
    const EXAMPLES: &'static str = "\
Examples:
  pando inspect web
  pando inspect web | jq -r .status.pid
  pando inspect -f '{{.status.pid}}' web
  pando inspect --security web";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let doing = || format!("cannot inspect guest '{}'", self.name);
        if !self.security {
            let guest = client.call::<Inspected>(Method::Inspect { name: self.name.clone() }).with_context(doing)?;
            match &self.format {
                Some(format) => crate::table::print(&format.fill(&serde_json::to_value(&guest.guest)?)?)?,
                None => crate::table::print_json(&guest.guest)?,
            }
            return Ok(0);
        }
        let security =
            client.call::<Secured>(Method::Security { name: self.name.clone() }).with_context(doing)?.security;
        if self.json {
            crate::table::print_json(&security)?;
        } else {
            crate::table::print(&text(&security))?;
        }
        Ok(0)
    }
}

/// A line for each kind of protection; what is missing comes last, marked.
fn text(security: &Security) -> String {
    let list = |items: &[String], none: &str| if items.is_empty() { none.to_owned() } else { items.join(", ") };
    let limits: Vec<String> = security.limits.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let ids = security.first_id.map_or("the host's: root inside is root outside".to_owned(), |first| {
        format!("{first} to {} on the host", first + 65_535)
    });
    let filters = match security.system_call_filters {
        0 => "none is refused".to_owned(),
        count => format!("filtered ({count})"),
    };
    let profile = format!("{:?}", security.profile).to_lowercase();
    let lines = [
        ("profile", profile),
        ("user ids", ids),
        ("own namespaces", list(&security.own_namespaces, "none")),
        ("the host's", list(&security.host_namespaces, "none")),
        ("capabilities", list(&security.capabilities, "none")),
        ("system calls", filters),
        ("new privileges", if security.no_new_privileges { "never" } else { "by executing a file" }.to_owned()),
        ("kept inside", list(&security.landlock, "nothing beyond what namespaces keep")),
        ("hidden", list(&security.masked, "nothing")),
        ("read-only", list(&security.read_only, "nothing")),
        ("devices", list(&security.devices, "every one that it has a node of")),
        ("limits", list(&limits, "none of its own")),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<15} {}", printable(&value));
    }
    for missing in &security.missing {
        let _ = writeln!(text, "{:<15} {}", "NOT IN FORCE", printable(missing));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_stands_out() {
        let security = Security { missing: vec!["no list of devices is in force".to_owned()], ..Security::default() };
        let text = text(&security);
        assert!(text.contains("user ids        the host's: root inside is root outside\n"), "{text}");
        assert!(text.ends_with("NOT IN FORCE    no list of devices is in force\n"), "{text}");
    }
}

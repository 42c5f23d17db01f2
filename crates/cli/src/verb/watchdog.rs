//! `pando watchdog`: what looks after memory that was promised twice.

use super::Verb;
use crate::printable::printable;
use crate::replies::Watched;
use crate::state_root::StateRoot;
use crate::table::{print, print_json};
use anyhow::Context;
use pando_api::{Method, WatchdogState};
use std::fmt::Write;

#[derive(Debug, clap::Args)]
pub(crate) struct Watchdog {
    /// What would be done if memory were wanting now; nothing is done
    #[arg(long)]
    dry_run: bool,
    /// By which policy: graduated, pl_mom or off [default: the one in pando.toml]
    #[arg(long, value_name = "POLICY", requires = "dry_run")]
    policy: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl Verb for Watchdog {
    const NAME: &'static str = "watchdog";
    const ABOUT: &'static str = "Show what the watchdog sees, did, and would do when memory is wanting";
    const EXAMPLES: &'static str = "\
Examples:
  pando watchdog
  pando watchdog --dry-run
  pando watchdog --dry-run --policy pl_mom

Its rules stand in the table [watchdog] of pando.toml.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        let method = Method::Watchdog { policy: self.policy };
        let seen = client.call::<Watched>(method).context("cannot ask the watchdog")?.watchdog;
        if self.json {
            print_json(&seen)?;
        } else if self.dry_run {
            print(&would(&seen))?;
        } else {
            print(&state(&seen))?;
        }
        Ok(0)
    }
}

fn would(seen: &WatchdogState) -> String {
    match &seen.would {
        Some(step) => {
            format!(
                "by {}: {} guest '{}', since {}\n",
                seen.policy,
                step.step,
                printable(&step.guest),
                printable(&step.why)
            )
        }
        None => format!("by {}: nothing; there is nobody to take memory from\n", seen.policy),
    }
}

fn state(seen: &WatchdogState) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // A string takes whatever is written to it.
        let _ = writeln!(text, "{name:<12} {value}");
    };
    let dry = if seen.dry_run { ", only told" } else { "" };
    line("policy", format!("{}{dry}", seen.policy));
    let rules: Vec<_> = seen.rules.iter().map(|(key, value)| format!("{key} {value}")).collect();
    line("rules", rules.join(", "));
    let of = seen.guest.as_ref().map(|guest| format!(": {}", printable(guest)));
    line("stage", format!("{}{}", seen.stage, of.unwrap_or_default()));
    line("pressure", seen.pressure.map_or("not told by this kernel".to_owned(), |pressure| format!("{pressure:.1}%")));
    line("memory free", format!("{:.1}%", seen.memory_free));
    line("swap used", seen.swap_used.map_or("no swap".to_owned(), |used| format!("{used:.1}%")));
    for step in &seen.taken {
        let time = jiff::Timestamp::from_millisecond(step.time_ms).map(|time| time.to_string()).unwrap_or_default();
        line("taken", format!("{time} {} {}: {}", step.step, printable(&step.guest), printable(&step.why)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::WatchdogStep;

    #[test]
    fn what_it_sees_and_would_do_is_told() {
        let step = WatchdogStep {
            time_ms: 0,
            guest: "web".into(),
            step: "restart".into(),
            why: "it holds the most memory".into(),
        };
        let seen = WatchdogState {
            policy: "pl_mom".into(),
            stage: "frozen".into(),
            guest: Some("web".into()),
            would: Some(step.clone()),
            taken: vec![step],
            ..WatchdogState::default()
        };
        assert_eq!(would(&seen), "by pl_mom: restart guest 'web', since it holds the most memory\n");
        let text = state(&seen);
        assert!(text.contains("stage        frozen: web\n") && text.contains("no swap"), "{text}");
        assert!(text.contains("1970-01-01T00:00:00Z restart web"), "{text}");
        assert!(would(&WatchdogState::default()).contains("nothing"));
    }
}

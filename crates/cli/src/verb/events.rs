//! `pando events`: what happens to guests, as it happens.

use super::Verb;
use crate::printable::{printable, printable_json};
use crate::replies::Happened;
use crate::state_root::StateRoot;
use crate::table::print;
use anyhow::Context;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pando_api::{Event, Method};

#[derive(Debug, clap::Args)]
pub(crate) struct Events {
    /// As JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl Verb for Events {
    const NAME: &'static str = "events";
    const ABOUT: &'static str = "Show what happens to guests, as it happens";
    const EXAMPLES: &'static str = "\
Examples:
  pando events
  pando events --json | jq -r 'select(.what == \"exit\") | .guest'

It goes on until it is interrupted.";

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let mut client = crate::daemon_start::connected(root)?;
        client.send(Method::Events {}, true, Vec::new())?;
        let zone = TimeZone::system();
        loop {
            let answer = client.receive::<Happened>().context("cannot follow the events")?;
            let event = answer.reply.event;
            print(&if self.json {
                printable_json(&serde_json::to_string(&event)?) + "\n"
            } else {
                line(&event, &zone)
            })?;
            if !answer.continues {
                return Ok(0);
            }
        }
    }
}

fn line(event: &Event, zone: &TimeZone) -> String {
    let time = Timestamp::from_millisecond(event.time_ms).unwrap_or_default().to_zoned(zone.clone());
    let detail = event.detail.as_deref().map(|detail| format!("  {detail}")).unwrap_or_default();
    let text = format!("{}  {}  {}{detail}", time.strftime("%Y-%m-%d %H:%M:%S%.3f"), event.guest, event.what);
    printable(&text) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = Event {
            time_ms: 1_700_000_000_123,
            guest: "web".into(),
            what: "exit".into(),
            detail: Some("code 3".into()),
        };
        assert_eq!(line(&event, &TimeZone::UTC), "2023-11-14 22:13:20.123  web  exit  code 3\n");
    }
}

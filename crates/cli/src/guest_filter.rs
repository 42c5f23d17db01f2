//! `--filter KEY=VALUE`: which guests are meant.

use pando_api::GuestStatus;
use std::str::FromStr;

/// What a guest has to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Its name has this in it.
    Name(String),
    /// Its state is this.
    State(String),
    /// Its source begins with this.
    Source(String),
    /// It is at rest, and its last run ended with this exit code.
    Exited(i32),
    /// Its health checks say so; `none`: it has none, or does not run.
    Health(String),
    /// It has a label of this name, and of this value if one is given.
    Label(String, Option<String>),
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is none of name=PART, status=STATE, source=SOURCE, exited=CODE, health=STATE and label=NAME[=VALUE]; for example --filter status=running"
            )
        };
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let value = value.to_owned();
        Ok(match key {
            "name" | "id" => Self::Name(value),
            // What docker calls it.
            "status" | "state" if value == "exited" => Self::State("stopped".to_owned()),
            "status" | "state" => Self::State(value),
            "source" | "ancestor" => Self::Source(value),
            "exited" => Self::Exited(value.parse().map_err(|_| wrong())?),
            "health" => Self::Health(value),
            "label" => match value.split_once('=') {
                Some((name, value)) => Self::Label(name.to_owned(), Some(value.to_owned())),
                None => Self::Label(value, None),
            },
            _ => return Err(wrong()),
        })
    }
}

impl Filter {
    fn fits(&self, guest: &GuestStatus) -> bool {
        match self {
            Self::Name(part) => guest.name.contains(part.as_str()),
            Self::State(state) if state == "paused" => guest.paused,
            Self::State(state) => guest.state.to_string() == *state,
            Self::Source(source) => guest.source.starts_with(source.as_str()),
            Self::Exited(code) => guest.pid.is_none() && guest.exit_code == Some(*code),
            Self::Health(word) => {
                guest.health.as_ref().map_or("none".to_owned(), |health| health.status.to_string()) == *word
            }
            Self::Label(name, None) => guest.labels.contains_key(name),
            Self::Label(name, Some(value)) => guest.labels.get(name) == Some(value),
        }
    }

    /// Whether another filter asks for the same thing, so that one of them is enough. A guest has many labels.
    fn is_like(&self, other: &Self) -> bool {
        !matches!(self, Self::Label(..)) && std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Whether a guest is meant: for each kind of filter one has to fit, and every label.
pub(crate) fn fits(filters: &[Filter], guest: &GuestStatus) -> bool {
    let met =
        |filter: &Filter| filter.fits(guest) || filters.iter().any(|other| filter.is_like(other) && other.fits(guest));
    filters.iter().all(met)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_api::GuestState;

    fn meant(words: &[&str]) -> bool {
        let filters: Vec<Filter> = words.iter().map(|word| word.parse().unwrap()).collect();
        let guest = GuestStatus {
            name: "web-1".into(),
            state: GuestState::Stopped,
            paused: false,
            pid: None,
            source: "debian:bookworm".into(),
            ephemeral: false,
            created: 0,
            started: None,
            exit_code: Some(3),
            oom_kills: None,
            health: None,
            restarts: None,
            next_start: None,
            labels: [("tier".to_owned(), "front".to_owned())].into(),
            command: Vec::new(),
            trouble: None,
        };
        fits(&filters, &guest)
    }

    #[test]
    fn each_kind_has_to_be_met_and_every_label() {
        assert!(meant(&[]) && meant(&["name=web"]) && meant(&["status=stopped", "exited=3"]));
        assert!(meant(&["status=running", "status=exited"]), "one of a kind is enough");
        assert!(!meant(&["status=running", "name=web"]) && !meant(&["exited=0"]));
        assert!(meant(&["label=tier"]) && meant(&["label=tier=front"]) && !meant(&["label=tier", "label=own"]));
        assert!(meant(&["ancestor=debian"]) && !meant(&["source=bookworm"]));
    }

    #[test]
    fn a_wrong_one_names_the_right_ones() {
        for wrong in ["running", "colour=red", "exited=x"] {
            assert!(wrong.parse::<Filter>().unwrap_err().contains("label=NAME"), "{wrong}");
        }
    }
}

//! Which guests a new daemon starts, and in which order.

use pando_api::{Boot, Restart};

/// A guest at rest, as a new daemon finds it.
#[derive(Clone, Debug)]
pub(crate) struct AtRest {
    pub(crate) name: String,
    pub(crate) restart: Restart,
    pub(crate) boot: Boot,
    /// Whether its policy was to have it run when the daemon before ended.
    pub(crate) up: bool,
    /// Whether it has ever run to an end.
    pub(crate) was_run: bool,
}

impl AtRest {
    /// Whether it is started: as the machine boots, or by a daemon that takes another's place.
    fn is_wanted(&self, machine_boots: bool) -> bool {
        match self.restart {
            _ if machine_boots && self.boot.autostart => true,
            Restart::No => false,
            Restart::OnFailure { .. } => self.up && !machine_boots,
            Restart::UnlessStopped => self.up,
            Restart::Always => self.up || machine_boots && self.was_run,
        }
    }
}

/// Those that are started, in order, and those that are not.
pub(crate) fn order(guests: Vec<AtRest>, machine_boots: bool) -> (Vec<AtRest>, Vec<AtRest>) {
    let (mut wanted, others): (Vec<_>, Vec<_>) = guests.into_iter().partition(|guest| guest.is_wanted(machine_boots));
    wanted.sort_by(|one, other| other.boot.priority.cmp(&one.boot.priority).then_with(|| one.name.cmp(&other.name)));
    (behind_those_that_they_name(wanted), others)
}

/// The same order, but each after those that it is to come after. Of a ring the first in the order goes first.
fn behind_those_that_they_name(mut waiting: Vec<AtRest>) -> Vec<AtRest> {
    let mut placed = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let is_awaited = |guest: &AtRest| {
            guest.boot.after.iter().any(|name| *name != guest.name && waiting.iter().any(|other| other.name == *name))
        };
        let next = waiting.iter().position(|guest| !is_awaited(guest)).unwrap_or(0);
        placed.push(waiting.remove(next));
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(name: &str, restart: Restart, up: bool) -> AtRest {
        AtRest { name: name.to_owned(), restart, boot: Boot::default(), up, was_run: true }
    }

    fn names(guests: Vec<AtRest>, machine_boots: bool) -> Vec<String> {
        order(guests, machine_boots).0.into_iter().map(|guest| guest.name).collect()
    }

    #[test]
    fn what_was_stopped_stays_so_unless_it_is_always_wanted() {
        let all = vec![
            guest("always", Restart::Always, false),
            guest("failure", Restart::OnFailure { most: 0 }, true),
            guest("no", Restart::No, true),
            guest("stopped", Restart::UnlessStopped, false),
            guest("up", Restart::UnlessStopped, true),
        ];
        assert_eq!(names(all.clone(), false), ["failure", "up"]);
        assert_eq!(names(all, true), ["always", "up"]);
        let never_run = AtRest { was_run: false, ..guest("new", Restart::Always, false) };
        assert!(names(vec![never_run], true).is_empty());
    }

    #[test]
    fn the_order_is_by_priority_and_then_by_name() {
        let at = |name, priority| AtRest {
            boot: Boot { autostart: true, priority, ..Boot::default() },
            ..guest(name, Restart::No, false)
        };
        let all = vec![at("a", 0), at("b", 5), at("c", -1), at("d", 5)];
        assert_eq!(names(all.clone(), true), ["b", "d", "a", "c"]);
        assert!(names(all, false).is_empty());
    }

    #[test]
    fn one_comes_after_those_that_it_names() {
        let after = |name, names: &[&str]| AtRest {
            boot: Boot {
                autostart: true,
                after: names.iter().map(|name| (*name).to_owned()).collect(),
                ..Boot::default()
            },
            ..guest(name, Restart::No, false)
        };
        let all = vec![after("a", &["c", "nobody"]), after("b", &[]), after("c", &["d"]), after("d", &[])];
        assert_eq!(names(all, true), ["b", "d", "c", "a"]);
        // A ring is no reason not to start them.
        assert_eq!(names(vec![after("a", &["b"]), after("b", &["a"]), after("c", &["c"])], true), ["c", "a", "b"]);
    }
}

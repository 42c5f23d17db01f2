//! What is shown: a row a guest, with rates from two looks, in an order, through a filter.

use pando_api::{GuestUse, MachineUse, Sample};
use std::collections::HashMap;

/// What rows are ordered by, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Order {
    #[default]
    Cpu,
    Memory,
    Io,
    Net,
    Name,
}

/// A guest's row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// Where it stands among all by name.
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) cpu: f64,
    /// The reserved and the greatest part of the machine, in percent.
    pub(crate) reserve: Option<f64>,
    pub(crate) limit: Option<f64>,
    pub(crate) memory: i64,
    pub(crate) memory_limit: Option<i64>,
    pub(crate) memory_reserve: Option<i64>,
    pub(crate) swap: i64,
    pub(crate) pids: i64,
    pub(crate) pids_limit: Option<i64>,
    /// Bytes a second.
    pub(crate) read: f64,
    pub(crate) written: f64,
    pub(crate) received: f64,
    pub(crate) sent: f64,
    pub(crate) live: bool,
    pub(crate) oom_kills: i64,
}

/// All that is shown, and how.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) machine: MachineUse,
    pub(crate) rows: Vec<Row>,
    pub(crate) order: Order,
    pub(crate) filter: String,
    /// The row that keys act on.
    pub(crate) chosen: usize,
    before: HashMap<String, Sample>,
}

impl View {
    pub(crate) fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Takes in a look at everybody.
    pub(crate) fn take(&mut self, machine: MachineUse, guests: &[GuestUse]) {
        let kept = self.chosen_name();
        self.machine = machine;
        self.rows = guests.iter().enumerate().map(|(place, guest)| self.row(place, guest)).collect();
        self.before = guests.iter().map(|guest| (guest.name.clone(), guest.now)).collect();
        self.sort();
        let place = kept.and_then(|name| self.shown().iter().position(|row| row.name == name));
        self.chosen = place.unwrap_or(self.chosen).min(self.shown().len().saturating_sub(1));
    }

    fn row(&self, place: usize, guest: &GuestUse) -> Row {
        let (now, before) = (&guest.now, self.before.get(&guest.name));
        let rate = |read: fn(&Sample) -> i64| match before {
            Some(before) if now.time_ms > before.time_ms => {
                (read(now) - read(before)).max(0) as f64 * 1000.0 / (now.time_ms - before.time_ms) as f64
            }
            _ => 0.0,
        };
        let processors = self.machine.processors.max(1) as f64;
        Row {
            place,
            name: guest.name.clone(),
            cpu: now.cpu_percent,
            reserve: guest.cpu_reserve,
            limit: guest.cpu_limit.map(|limit| limit / processors * 100.0),
            memory: now.memory,
            memory_limit: guest.memory_limit,
            memory_reserve: guest.memory_reserve,
            swap: now.swap,
            pids: now.pids,
            pids_limit: guest.pids_limit,
            read: rate(|sample| sample.read),
            written: rate(|sample| sample.written),
            received: rate(|sample| sample.received),
            sent: rate(|sample| sample.sent),
            live: guest.live,
            oom_kills: now.oom_kills,
        }
    }

    /// Puts the rows into another order.
    pub(crate) fn order_by(&mut self, order: Order) {
        self.order = order;
        self.sort();
    }

    fn sort(&mut self) {
        let weight = |row: &Row| match self.order {
            Order::Cpu => row.cpu,
            Order::Memory => row.memory as f64,
            Order::Io => row.read + row.written,
            Order::Net => row.received + row.sent,
            Order::Name => 0.0,
        };
        self.rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then(a.place.cmp(&b.place)));
    }

    /// The rows that the filter lets through.
    pub(crate) fn shown(&self) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.name.contains(&self.filter)).collect()
    }

    /// Moves the choice by so many rows.
    pub(crate) fn choose(&mut self, by: isize) {
        self.chosen = self.chosen.saturating_add_signed(by).min(self.shown().len().saturating_sub(1));
    }

    /// The guest that is chosen.
    pub(crate) fn chosen_name(&self) -> Option<String> {
        self.shown().get(self.chosen).map(|row| row.name.clone())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn guest(name: &str, cpu_percent: f64, memory: i64, time_ms: i64, read: i64) -> GuestUse {
        let now = Sample { cpu_percent, memory, time_ms, read, ..Sample::default() };
        GuestUse { name: name.into(), now, ..GuestUse::default() }
    }

    fn names(view: &View) -> Vec<&str> {
        view.shown().iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn rows_are_ordered_and_filtered() {
        let mut view = View::new(Order::Cpu);
        view.take(
            MachineUse::default(),
            &[guest("db", 1.0, 9, 0, 0), guest("web", 5.0, 2, 0, 0), guest("web2", 5.0, 4, 0, 0)],
        );
        assert_eq!(names(&view), ["web", "web2", "db"]);
        view.order_by(Order::Memory);
        assert_eq!(names(&view), ["db", "web2", "web"]);
        view.filter = "web".into();
        assert_eq!(names(&view), ["web2", "web"]);
    }

    #[test]
    fn rates_are_between_two_looks() {
        let mut view = View::new(Order::Io);
        view.take(MachineUse::default(), &[guest("a", 0.0, 0, 1000, 100)]);
        assert_eq!(view.rows[0].read, 0.0);
        view.take(MachineUse::default(), &[guest("a", 0.0, 0, 3000, 4100)]);
        assert_eq!(view.rows[0].read, 2000.0);
    }

    #[test]
    fn the_choice_stays_with_its_guest() {
        let mut view = View::new(Order::Cpu);
        view.take(MachineUse::default(), &[guest("a", 2.0, 0, 0, 0), guest("b", 1.0, 0, 0, 0)]);
        view.choose(1);
        assert_eq!(view.chosen_name().as_deref(), Some("b"));
        view.take(MachineUse::default(), &[guest("a", 2.0, 0, 0, 0), guest("b", 3.0, 0, 0, 0)]);
        assert_eq!((view.chosen_name().as_deref(), view.chosen), (Some("b"), 0));
        view.take(MachineUse::default(), &[]);
        view.choose(5);
        assert_eq!(view.chosen_name(), None);
    }
}

//! When the watchdog acts and how: the table `[watchdog]` of pando.toml.

use serde::Deserialize;

/// The way in which the watchdog acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// It acts by steps, each only when the one before did not help.
    #[default]
    Graduated,
    /// As PlanetLab's daemon of that name did.
    PlMom,
    /// It does not act at all.
    Off,
}

/// The watchdog's last step against a guest that goes on taking memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastResort {
    /// The guest is started anew.
    #[default]
    Restart,
    /// The guest stays stopped.
    Stop,
}

/// Whose memory the watchdog takes first, of those that are above their reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// Whoever is furthest above its reservation.
    #[default]
    Excess,
    /// Whoever holds the most.
    Largest,
    /// Whoever was started last.
    Newest,
    /// Whoever is furthest above its reservation for each of its processor shares.
    Share,
}

/// When to act: the table `[watchdog]` of pando.toml.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// The way in which it acts.
    pub policy: Policy,
    /// Percent of ten seconds in which nobody got on for want of memory (`full avg10` of /proc/pressure/memory).
    pub pressure: f64,
    /// Percent of memory that has to be had without swapping. Only where the kernel does not tell of pressure.
    pub free: f64,
    /// Percent of memory that is to be had without swapping, from which on pressure does not count as want: a guest
    /// that thrashes within its own limit makes as much of it.
    pub plenty: f64,
    /// Percent of swap that may be in use; beside `free`, and alone for `pl_mom`.
    pub swap: f64,
    /// Seconds from one look to the next, and at the least from one step to the next.
    pub every: u64,
    /// Seconds without want before a frozen tenant is thawed.
    pub relief: u64,
    /// The last step, if others did not help.
    pub last: LastResort,
    /// Whose memory is taken first.
    pub victim: Victim,
    /// Seconds from telling that a guest is going to be frozen, restarted or stopped to doing it.
    pub notice: u64,
    /// Only to tell what would be done.
    pub dry_run: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            pressure: 10.0,
            free: 3.0,
            plenty: 20.0,
            swap: 90.0,
            every: 5,
            relief: 30,
            last: LastResort::default(),
            victim: Victim::default(),
            notice: 0,
            dry_run: false,
        }
    }
}

impl Policy {
    /// The policy's name, as pando.toml has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Graduated => "graduated",
            Self::PlMom => "pl_mom",
            Self::Off => "off",
        }
    }

    /// The policy of a name.
    pub fn named(word: &str) -> Option<Self> {
        [Self::Graduated, Self::PlMom, Self::Off].into_iter().find(|policy| policy.word() == word)
    }
}

impl Victim {
    /// The name of this choice, as pando.toml has it.
    fn word(self) -> &'static str {
        match self {
            Self::Excess => "excess",
            Self::Largest => "largest",
            Self::Newest => "newest",
            Self::Share => "share",
        }
    }

    /// Why a guest is chosen, in words.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Excess => "it is furthest above its reservation",
            Self::Largest => "it holds the most memory",
            Self::Newest => "it was started last",
            Self::Share => "it is furthest above its reservation for its processor shares",
        }
    }
}

impl Rules {
    /// Everything but the policy, by the names of pando.toml.
    pub fn shown(&self) -> Vec<(&'static str, String)> {
        let last = if self.last == LastResort::Stop { "stop" } else { "restart" };
        vec![
            ("pressure", self.pressure.to_string()),
            ("free", self.free.to_string()),
            ("plenty", self.plenty.to_string()),
            ("swap", self.swap.to_string()),
            ("every", self.every.to_string()),
            ("relief", self.relief.to_string()),
            ("last", last.to_owned()),
            ("victim", self.victim.word().to_owned()),
            ("notice", self.notice.to_string()),
        ]
    }
}

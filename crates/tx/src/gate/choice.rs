//! Which gate a commit on the host has: what is asked for, what there is, and which one it was.

use super::{host_freeze, programs};
use pando_kernel::file::access_gate::AccessGate;
use serde::Deserialize;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

/// How long a gate of the host has others wait at most, if nothing is said.
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// How long they wait for what a transaction has touched.
const LONGEST_HELD: Duration = Duration::from_secs(5);
/// How long it has all of them stand still.
const LONGEST_FROZEN: Duration = Duration::from_millis(50);

/// A way to keep others out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateKind {
    /// None.
    #[default]
    None,
    /// Whoever touches what a commit changes, or a name in it, is suspended.
    Bpf,
    /// The same, and whoever would change what the transaction has touched, from that touch on.
    Hold,
    /// Whoever opens, reads, lists or executes what a commit changes waits.
    Fanotify,
    /// All others stand still.
    Freeze,
}

impl fmt::Display for GateKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "none",
            Self::Bpf => "bpf",
            Self::Hold => "hold",
            Self::Fanotify => "fanotify",
            Self::Freeze => "freeze",
        })
    }
}

/// The gate that is asked for on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum GateChoice {
    /// The best that there is.
    #[default]
    Auto,
    /// This one, or no transaction.
    Only(GateKind),
}

impl GateChoice {
    /// The words for all of them.
    pub const WORDS: [&'static str; 6] = ["auto", "bpf", "hold", "fanotify", "freeze", "none"];
}

impl FromStr for GateChoice {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "bpf" => Ok(Self::Only(GateKind::Bpf)),
            "hold" => Ok(Self::Only(GateKind::Hold)),
            "fanotify" => Ok(Self::Only(GateKind::Fanotify)),
            "freeze" => Ok(Self::Only(GateKind::Freeze)),
            "none" => Ok(Self::Only(GateKind::None)),
            _ => Err(format!("'{word}' is no gate; there are {}", Self::WORDS.join(", "))),
        }
    }
}

impl TryFrom<String> for GateChoice {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        word.parse()
    }
}

/// What is asked for of the host's gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateRequest {
    /// Which one is asked for, by name or not.
    pub choice: GateChoice,
    /// How long it may be closed; if nothing is said a second, and 50 ms where all others stand still.
    pub longest: Option<Duration>,
    /// Whether there is to be no commit without one.
    pub strict: bool,
}

/// Why there is no gate as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// This kernel does not suspend others.
    #[error("there is no gate 'bpf' here: {0}; `pando doctor` says what there is")]
    Bpf(String),
    /// Nor for that long.
    #[error(
        "there is no gate 'hold' here, which takes what the gate 'bpf' takes: {0}. Nothing else holds those who would \
         change what a transaction has touched; choose another gate, and they doom it"
    )]
    Hold(String),
    /// This kernel does not grant it.
    #[error(
        "there is no gate 'fanotify' here: the kernel refuses permission events ({0}); `pando doctor` says what there is"
    )]
    Fanotify(io::Error),
    /// The host's processes cannot stand still.
    #[error("there is no gate 'freeze' here: {0}; `pando doctor` says what there is")]
    Freeze(String),
    /// None was asked for, and one too.
    #[error("--strict refuses to run where others could see a commit half done, and with the gate 'none' they could")]
    NoneAndStrict,
    /// There is none.
    #[error(
        "there is no gate here: the kernel refuses permission events ({0}). Others could see a commit half done, which --strict refuses. \
         Leave it out to run all the same"
    )]
    NoneThere(io::Error),
}

/// The gate of a commit on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostGate {
    pub(super) kind: GateKind,
    /// How long it may be closed.
    pub(super) longest: Duration,
    /// How long others wait at most before it is closed, where it holds.
    pub(super) held_for: Duration,
    /// Whether it keeps others out from the first touch on.
    pub(super) holds: bool,
    /// Whether it was asked for by its name, so that no other will do.
    pub(super) named: bool,
    /// Whether there is to be no commit where it cannot be had.
    pub(super) must: bool,
    /// Whether there is to be none where it does not stay closed.
    pub(super) strict: bool,
}

impl HostGate {
    /// The gate that keeps nobody out.
    pub const NONE: Self = Self {
        kind: GateKind::None,
        longest: LONGEST,
        held_for: LONGEST_HELD,
        holds: false,
        named: false,
        must: false,
        strict: false,
    };

    /// What there is of what was asked for.
    ///
    /// # Errors
    ///
    /// Where it was asked for by name, or must be one, and there is none.
    pub fn choose(request: GateRequest) -> Result<Self, GateError> {
        let GateRequest { choice, longest, strict } = request;
        let there = || AccessGate::new().map(drop);
        let kind = match choice {
            GateChoice::Only(GateKind::None) if strict => return Err(GateError::NoneAndStrict),
            GateChoice::Auto if programs::obstacle().is_none() => {
                programs::load_ahead();
                GateKind::Bpf
            }
            GateChoice::Auto => match there() {
                Ok(()) => GateKind::Fanotify,
                Err(_) if host_freeze::obstacle().is_none() => GateKind::Freeze,
                Err(error) if strict => return Err(GateError::NoneThere(error)),
                Err(_) => GateKind::None,
            },
            GateChoice::Only(GateKind::Bpf) => match programs::trial() {
                Some(why) => return Err(GateError::Bpf(why)),
                None => GateKind::Bpf,
            },
            GateChoice::Only(GateKind::Hold) => match programs::trial() {
                Some(why) => return Err(GateError::Hold(why)),
                None => GateKind::Bpf,
            },
            GateChoice::Only(GateKind::Fanotify) => {
                there().map_err(GateError::Fanotify)?;
                GateKind::Fanotify
            }
            GateChoice::Only(GateKind::Freeze) => match host_freeze::obstacle() {
                Some(why) => return Err(GateError::Freeze(why)),
                None => GateKind::Freeze,
            },
            GateChoice::Only(GateKind::None) => GateKind::None,
        };
        let usual = if kind == GateKind::Freeze { LONGEST_FROZEN } else { LONGEST };
        let named = choice != GateChoice::Auto;
        let (holds, held_for) = (choice == GateChoice::Only(GateKind::Hold), longest.unwrap_or(LONGEST_HELD));
        let longest = longest.unwrap_or(usual);
        Ok(Self { kind, longest, held_for, holds, named, must: strict || named, strict })
    }

    /// How long others wait at most for what a transaction has touched.
    pub(crate) fn held_for(self) -> Duration {
        self.held_for
    }

    /// Whether it keeps others out from the first touch on.
    pub fn holds(self) -> bool {
        self.holds
    }

    /// The same from the first touch on, where that is to be had.
    pub fn holding(self) -> Option<Self> {
        (self.kind == GateKind::Bpf).then_some(Self { holds: true, ..self })
    }

    /// The same for a commit alone.
    pub fn for_commit(self) -> Self {
        Self { holds: false, ..self }
    }
}

/// The gate that a commit had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateUsed {
    /// Which one it was, or none.
    pub kind: GateKind,
    /// Whether it opened before everything was in place.
    pub lapsed: bool,
    /// Whether somebody went through it who could not be kept out.
    pub passed: bool,
}

impl fmt::Display for GateUsed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self {
            Self { lapsed: true, .. } => " (open before the end: it took too long)",
            Self { passed: true, .. } => " (passed by a call that could not be held, as those of io_uring)",
            _ => "",
        };
        write!(out, "{}{how}", self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_chosen_by_its_name_and_none_is_not_strict() {
        assert_eq!("auto".parse(), Ok(GateChoice::Auto));
        for word in &GateChoice::WORDS[1..] {
            let Ok(GateChoice::Only(kind)) = word.parse() else { panic!("{word}") };
            assert_eq!(kind.to_string(), *word);
        }
        assert!("door".parse::<GateChoice>().unwrap_err().contains("auto, bpf, hold, fanotify, freeze, none"));
        let none = GateRequest { choice: GateChoice::Only(GateKind::None), ..GateRequest::default() };
        assert_eq!(HostGate::choose(none).unwrap().kind, GateKind::None);
        assert!(HostGate::choose(GateRequest { strict: true, ..none }).is_err());
    }
}

//! Why a reader could not read.

use serde::{Deserialize, Serialize};

/// The longest reason that is believed.
const LONGEST: usize = 4096;

/// What is wrong with the input, in the reader's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// The input cannot be read: the number of the kernel's error, if it has one, and its words.
    Input(Option<i32>, String),
    /// It is packed in a way that is known and not handled.
    Format(String),
    /// The input is no tar archive at all.
    NotAnArchive,
    /// The archive is damaged, or cut short.
    Damaged {
        /// The place in the input.
        place: Place,
        /// The byte of the plain content.
        offset: u64,
        /// What is wrong at that place.
        reason: String,
    },
    /// A document cannot be understood.
    Document(String),
    /// It is no stream of `pando cp`, or is refused: a sentence.
    Stream(String),
    /// It is no record that its parser understands: a sentence.
    Record(String),
    /// It is not what `pando image export` wrote.
    NotAnExport,
    /// It was, and is damaged.
    DamagedExport(String),
}

/// Which part of an archive is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// What follows the last entry that was told of.
    NextEntry,
    /// The content of that entry.
    Content,
    /// What follows after all entries.
    End,
}

impl Failure {
    /// The same with words that are short and have no control characters: they are shown to people.
    pub(crate) fn printable(self) -> Self {
        match self {
            Self::Input(number, words) => Self::Input(number, printable(&words)),
            Self::Format(words) => Self::Format(printable(&words)),
            Self::Damaged { place, offset, reason } => Self::Damaged { place, offset, reason: printable(&reason) },
            Self::Document(words) => Self::Document(printable(&words)),
            Self::Stream(words) => Self::Stream(printable(&words)),
            Self::Record(words) => Self::Record(printable(&words)),
            Self::DamagedExport(words) => Self::DamagedExport(printable(&words)),
            Self::NotAnArchive => Self::NotAnArchive,
            Self::NotAnExport => Self::NotAnExport,
        }
    }
}

fn printable(words: &str) -> String {
    words.chars().take(LONGEST).map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

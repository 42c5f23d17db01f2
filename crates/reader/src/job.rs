//! What a reader is asked to do.

use crate::digest::Sum;
use serde::{Deserialize, Serialize};

/// One input, and what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Job {
    /// A tar archive, plain or compressed: its entries in order, each followed by its content.
    Archive {
        /// The digest that its plain content should have.
        plain: Option<Sum>,
        /// Whether an archive without a mark at its end was cut short.
        end_is_marked: bool,
        /// Whether content is wanted, or entries alone.
        content: bool,
    },
    /// Compressed data: what it expands to.
    Expand,
    /// A document of an OCI image.
    Document(Shape),
    /// What `pando cp` brings out of a guest: entries, each followed by its content.
    Copy,
    /// What `pando image export` wrote: its parts in order.
    Export,
    /// A record of an image, which one of the [`Parser`]s of this program understands: the same as that puts it.
    Record {
        /// What the parser is called.
        parser: String,
        /// How long the record is.
        length: u64,
    },
}

/// Understands a record, and puts it anew: what comes of it is no longer as its maker put it. An error is a sentence.
pub type Parser = fn(&[u8]) -> Result<Vec<u8>, String>;

/// Those that a program has, by their names.
pub type Parsers<'a> = &'a [(&'a str, Parser)];

/// What a document should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// `index.json` of a layout.
    Index,
    /// An index or a manifest: told by what it has, since media types are often missing or wrong.
    IndexOrManifest,
    /// The configuration of an image.
    Configuration,
    /// `manifest.json` of `docker save`.
    Saved,
}

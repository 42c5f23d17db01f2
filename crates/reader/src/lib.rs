//! Foreign data, read by a process without powers.
//!
//! Archives, images and exports are made by others. What understands them, decompressors, tar, JSON, is large, partly
//! C, and was wrong before. So none of it runs where root's powers are: a *reader* is a process of this program that
//! gives up everything but the descriptors it began with, reads one input, and says what is in it. Its caller gets
//! plain data of few types ([`Message`]), checks that again, and does with it what powers are needed for.
//!
//! ```text
//!   the caller                                      the reader: no user's id, no capabilities, no files, no sockets,
//!   ──────────                                      ──────────  bounded memory and time
//!   Reader::start(Job, input) ── execve ──────────▶ confinement ▶ serve ─┬─ archive    compression ▷ tar ▷ digest
//!                                                                        ├─ expansion  compression
//!   input (a file, a pipe) ───────────────────────▶ descriptor 0         ├─ document   JSON of an OCI image
//!   Reader::next, Reader as Read ◀── wire: frames ─ descriptor 1         ├─ export     the parts of an exported image
//!   Reader::next, Reader as Read ◀── wire: frames ─ descriptor 1         └─ record     for another crate's parser
//! ```
//!
//! Signatures of exports are checked by `ssh-keygen`, which is started in the same way by the [`signature`] module: it
//! has the signature, the statement that was signed and the list of signers, and nothing else that it could change or
//! speak to (`verifier`). What was signed is digested by the reader's caller, and not by the reader: one that was taken
//! over cannot pass other content off as what was signed.
//!
//! Registries are spoken with by `skopeo`, started in the same way by [`registry_client`]: it has the network, one
//! directory, and nothing else that it could change.
//!
//! A reader that is taken over by what it reads can say anything, or nothing at all: it can lie about what is in an
//! archive, which its maker could as well have put there. Content that it has not told of is not heard, and one that
//! stands still while it has something to read is ended.

mod attended;
mod child;
mod compression;
mod confinement;
mod copy_stream;
mod digest;
mod document;
mod entry;
mod export;
mod failure;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod job;
mod lies;
mod process;
pub mod registry_client;
mod serve;
pub mod signature;
mod statement;
mod tar_reader;
mod verifier;
mod wire;

#[cfg(test)]
mod tests;

pub use child::become_reader_if_asked;
pub use compression::Compression;
pub use copy_stream::{ATTRIBUTE, CopyEntry, CopyKind, LARGEST_EXTENSION, StreamError, for_each};
pub use digest::{ContentDigest, Digester, Sum, sha256};
pub use document::{Configuration, Descriptor, Document, ImageHealth, SavedImage};
pub use entry::{ATTRIBUTE_EACH, Entry, Kind};
pub use export::{EXPORT_GREETING, LONGEST_PORTION, SIGNATURE_PART, signature_frame, write_part};
pub use failure::{Failure, Place};
pub use job::{Job, Parser, Parsers, Shape};
pub use process::{Died, Reader, ReaderError};
pub use serve::End;
pub use statement::{STATED_PARTS, Statement};
pub use wire::Message;

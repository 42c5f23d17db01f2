//! A long look through guests' files, kept now and then: one that is killed goes on where it was, and does not read
//! again what it has read.

use crate::known::{Extras, Fingerprint, Known};
use crate::{Store, crash};
use composefs::fsverity::Sha256HashValue;
use std::sync::{Mutex, PoisonError};

/// How much may be read again, in bytes.
const EACH: u64 = 64 << 20;

/// And how many times the length of the table must have been read before it is written again.
const TIMES: u64 = 8;

/// The table as it will be, while it grows.
pub(crate) struct Checkpoint<'a> {
    store: &'a Store,
    table: &'static str,
    /// From the last time: until all has been looked at, nothing of it is forgotten.
    known: &'a Known,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    read: Vec<(Fingerprint, Sha256HashValue)>,
    unsaved: u64,
}

impl<'a> Checkpoint<'a> {
    /// Begins with what is known from the last time.
    pub(crate) fn new(store: &'a Store, table: &'static str, known: &'a Known) -> Self {
        Self { store, table, known, state: Mutex::default() }
    }

    /// A file was read.
    pub(crate) fn add(&self, file: Fingerprint, digest: Sha256HashValue, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read.push((file, digest));
        state.unsaved += bytes;
        if state.unsaved < EACH.max(TIMES * self.known.bytes()) {
            return;
        }
        state.unsaved = 0;
        let mut grown = self.known.clone();
        for (file, digest) in &state.read {
            grown.add(*file, digest, Extras::Perhaps);
        }
        // It is a cache: what cannot be kept is read again.
        let _ = grown.save(self.store, self.table);
        crash::point("survey.checkpoint");
    }
}

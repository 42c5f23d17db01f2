//! Digests: computed while bytes pass, compared at the end.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::rc::Rc;

/// A digest that something should have: of which algorithm, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sum {
    /// 256 bits of SHA-2.
    Sha256(String),
    /// 512 bits of SHA-2.
    Sha512(String),
}

enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// A digest in the making.
pub struct Digester {
    state: State,
    wanted: String,
}

impl Digester {
    /// Begins a digest that will be compared with `wanted`.
    pub fn new(wanted: &Sum) -> Self {
        let (state, wanted) = match wanted {
            Sum::Sha256(wanted) => (State::Sha256(Sha256::new()), wanted),
            Sum::Sha512(wanted) => (State::Sha512(Sha512::new()), wanted),
        };
        Self { state, wanted: wanted.clone() }
    }

    /// Takes the next bytes of the data.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Sha256(sum) => sum.update(bytes),
            State::Sha512(sum) => sum.update(bytes),
        }
    }

    /// Whether what passed is what was wanted.
    pub fn agrees(&self) -> bool {
        let found = match &self.state {
            State::Sha256(sum) => hex(&sum.clone().finalize()),
            State::Sha512(sum) => hex(&sum.clone().finalize()),
        };
        found == self.wanted
    }
}

/// The SHA-256 digest of some content, as OCI writes it: `sha256:` and hexadecimal digits.
pub fn sha256(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

/// The SHA-256 digest of what is written, piece by piece.
#[derive(Clone, Default)]
pub struct ContentDigest(Sha256);

impl ContentDigest {
    /// Takes the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far, as OCI writes it.
    pub fn text(&self) -> String {
        format!("sha256:{}", hex(&self.0.clone().finalize()))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A reader of which several hold a part: what passes through any of them is digested once.
pub(crate) struct Digesting<R> {
    shared: Rc<RefCell<(R, Option<Digester>)>>,
}

impl<R: Read> Digesting<R> {
    pub(crate) fn new(reader: R, digester: Option<Digester>) -> Self {
        Self { shared: Rc::new(RefCell::new((reader, digester))) }
    }

    pub(crate) fn share(&self) -> Self {
        Self { shared: Rc::clone(&self.shared) }
    }

    /// Whether what passed is what was wanted; true if nothing was.
    pub(crate) fn agrees(&self) -> bool {
        self.shared.borrow().1.as_ref().is_none_or(Digester::agrees)
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (reader, digester) = &mut *self.shared.borrow_mut();
        let count = reader.read(into)?;
        if let Some(digester) = digester {
            digester.update(&into[..count]);
        }
        Ok(count)
    }
}

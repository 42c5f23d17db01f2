//! Digests: computed while bytes pass, compared at the end.

use oci_spec::image::{Digest, DigestAlgorithm};
use sha2::{Digest as _, Sha256, Sha512};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::rc::Rc;

enum Sum {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// A digest in the making.
pub(super) struct Digester {
    sum: Sum,
    wanted: String,
}

impl Digester {
    /// For comparing with `wanted`. Nothing: its algorithm is not known here.
    pub(super) fn new(wanted: &Digest) -> Option<Self> {
        let sum = match wanted.algorithm() {
            DigestAlgorithm::Sha256 => Sum::Sha256(Sha256::new()),
            DigestAlgorithm::Sha512 => Sum::Sha512(Sha512::new()),
            _ => return None,
        };
        Some(Self { sum, wanted: wanted.digest().to_owned() })
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match &mut self.sum {
            Sum::Sha256(sum) => sum.update(bytes),
            Sum::Sha512(sum) => sum.update(bytes),
        }
    }

    /// Whether what passed is what was wanted.
    pub(super) fn agrees(&self) -> bool {
        let found = match &self.sum {
            Sum::Sha256(sum) => hex(&sum.clone().finalize()),
            Sum::Sha512(sum) => hex(&sum.clone().finalize()),
        };
        found == self.wanted
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A reader of which several hold a part: what passes through any of them is digested once.
pub(super) struct Digesting<R> {
    shared: Rc<RefCell<(R, Digester)>>,
}

impl<R: Read> Digesting<R> {
    pub(super) fn new(reader: R, digester: Digester) -> Self {
        Self { shared: Rc::new(RefCell::new((reader, digester))) }
    }

    pub(super) fn share(&self) -> Self {
        Self { shared: Rc::clone(&self.shared) }
    }

    pub(super) fn agrees(&self) -> bool {
        self.shared.borrow().1.agrees()
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (reader, digester) = &mut *self.shared.borrow_mut();
        let count = reader.read(into)?;
        digester.update(&into[..count]);
        Ok(count)
    }
}

//! Files that get privileges: set-user-id and set-group-id programs, and those with capabilities.
//!
//! From the last look at it until it has its new owner, others may write to a file that was theirs. A write by them
//! after that would take the privileges away again, as the kernel does it; so what they wrote before has none either.

use crate::change::{Op, OpTarget, Source, Steps};
use crate::state::overlay_part::OverlayPart;
use crate::tree::attributes::{Attributes, Which};
use crate::tree::confined::{CallPath, Tree};
use crate::tree::content::{Digest, MOST_DIGESTED, digest};
use crate::tree::xattr;
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;

/// A file that gets privileges with its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Privileged {
    /// The number of its part.
    pub part: u32,
    /// The number of the operation that gives the attributes, of the last ones of its part.
    pub op: u32,
    /// What its content is then. With any other, which is others', it gets no privileges; nor where this is nothing,
    /// since there is too much of it.
    pub content: Option<Digest>,
}

/// Those among what a commit changes on a part, with the content that they are to have. It was validated that others
/// have not written to them, or it will be.
pub(super) fn among(number: u32, part: &OverlayPart, steps: &Steps) -> io::Result<Vec<Privileged>> {
    // In a target nobody else runs.
    if part.target.is_some() {
        return Ok(Vec::new());
    }
    let (mut found, mut budget, upper) = (Vec::new(), MOST_DIGESTED, Tree::open(&part.upper())?);
    let updated = steps.updated();
    for (op, one) in (0..).zip(&steps.finish) {
        let Op::Attributes { source, target, which: Which::All | Which::ButTime, .. } = one else { continue };
        let index;
        let (tree, path) = match source {
            Source::Upper(path) => (&upper, path),
            Source::Index(path) => {
                index = Tree::open(&part.index())?;
                (&index, path)
            }
        };
        let stat = tree.stat(path)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !Attributes::new(&stat, xattr::read(&tree.call_path(path)?)?.own).are_privileges() {
            continue;
        }
        let file = if updated.contains(target) {
            Some(tree.object(path)?)
        } else {
            live_file(&part.live_tree()?, target, steps)?
        };
        if let Some(file) = file {
            found.push(Privileged { part: number, op, content: digest(&CallPath::of(file)?, &mut budget)? });
        }
    }
    Ok(found)
}

/// A file that is there already, before anything was put aside. What is only brought is the transaction's own.
fn live_file(live: &Tree, target: &OpTarget, steps: &Steps) -> io::Result<Option<OwnedFd>> {
    let staged = |number: u32| {
        steps.stage.iter().find_map(|op| match op {
            Op::StageLink { origin, slot } if *slot == number => Some(&origin.identity),
            _ => None,
        })
    };
    let identity = match target {
        OpTarget::Known { identity, .. } => Some(identity),
        OpTarget::Staged(slot) => staged(*slot),
        OpTarget::Root | OpTarget::Brought { .. } => None,
    };
    identity.map(|identity| identity.open(live)).transpose()
}

//! How many names a file can have: a commit gives those that it changes by several names, or by new ones, further ones.

use crate::change::{Op, Steps};
use crate::journal::commit_error::CommitError;
use crate::state::overlay_part::OverlayPart;
use crate::tree::identity::is_gone;
use std::collections::HashMap;
use std::io;

/// What ext4 takes (EXT4_LINK_MAX). Any other file system on which a part lies takes more than there are.
const MOST: u64 = 65_000;

/// Fails where a file could not be given the names that the commit takes.
pub(super) fn are_left(part: &OverlayPart, steps: &Steps) -> Result<(), CommitError> {
    if part.target.is_some() || !steps.stage.iter().any(|op| matches!(op, Op::StageLink { .. })) {
        return Ok(());
    }
    let failed = |source| CommitError::Prepare { what: format!("counting names on {}", part.live.display()), source };
    let live = part.live_tree().map_err(failed)?;
    let on = rustix::fs::fstatfs(live.root()).map_err(|errno| failed(errno.into()))?;
    if on.f_type != libc::EXT4_SUPER_MAGIC {
        return Ok(());
    }
    let mut places: HashMap<u32, (u64, String)> = HashMap::new();
    for op in &steps.change {
        if let Op::Place { slot, at, directory: false, .. } = op {
            places.entry(*slot).or_insert_with(|| (0, live.shown(at))).0 += 1;
        }
    }
    for op in &steps.stage {
        let Op::StageLink { origin, slot } = op else { continue };
        let names = match origin.identity.open(&live).and_then(|file| Ok(rustix::fs::fstat(file)?.st_nlink)) {
            // Others have removed it, which is found by the last look.
            Err(error) if is_gone(&error) => continue,
            names => names.map_err(failed)?,
        };
        let (more, at) = places.remove(slot).unwrap_or_else(|| (0, format!("a file on {}", part.live.display())));
        // One aside, until it has its places.
        if names + more >= MOST {
            let source = io::Error::from(rustix::io::Errno::MLINK);
            return Err(CommitError::Prepare { what: format!("giving {at} another name besides {names}"), source });
        }
    }
    Ok(())
}

//! Programs that give whoever executes them more rights than he has, when they lose their last name.
//!
//! Whoever has such a program open executes it after that. So those who remove one take its rights away first, as
//! package managers do. Of that nothing is in the upper directory, which has no more than that the name is gone.

use super::Apply;
use crate::tree::attributes::{CAPABILITIES, SET_IDS};
use crate::tree::confined::CallPath;
use crate::tree::path::TreePath;
use crate::tree::xattr;
use rustix::fs::{FileType, Mode, Stat};
use std::io;

/// A program with rights of its own, whose last name goes.
pub(super) struct Armed {
    program: CallPath,
    /// How many names it has once that one is gone.
    names: u64,
}

impl Apply {
    /// What is at a path, if it is such a program. `names` is how many it will have: one more, where it is thrown away
    /// later. Nothing where what goes is kept: an undo brings it back as it was.
    pub(super) fn armed(&self, at: &TreePath, names: u64) -> io::Result<Option<Armed>> {
        if self.target.is_some() || self.replaced.is_some() {
            return Ok(None);
        }
        let may_be = |stat: &Stat| {
            let executable = SET_IDS | (Mode::XUSR | Mode::XGRP | Mode::XOTH).bits();
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_mode & executable != 0
                && stat.st_nlink == 1
        };
        if !self.live.look(at)?.is_some_and(|stat| may_be(&stat)) {
            return Ok(None);
        }
        let program = CallPath::of(self.live.object(at)?)?;
        let stat = rustix::fs::fstat(program.held())?;
        let is_armed = may_be(&stat) && (stat.st_mode & SET_IDS != 0 || xattr::has(&program, CAPABILITIES)?);
        Ok(is_armed.then_some(Armed { program, names }))
    }
}

impl Armed {
    /// Takes its rights away, unless others have given it another name meanwhile. The commit does not depend on it.
    pub(super) fn disarm(self) {
        let _ = self.try_to_disarm();
    }

    fn try_to_disarm(&self) -> io::Result<()> {
        let stat = rustix::fs::fstat(self.program.held())?;
        if stat.st_nlink > self.names {
            return Ok(());
        }
        if stat.st_mode & SET_IDS != 0 {
            rustix::fs::chmod(self.program.text.as_c_str(), Mode::from_raw_mode(stat.st_mode & !SET_IDS))?;
        }
        xattr::take(&self.program, CAPABILITIES)
    }
}

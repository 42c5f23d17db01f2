//! A command's output, held until its transaction commits.

use anyhow::Context;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use std::fs::File;
use std::io::Write;

/// Standard output and standard error of a command, in memory.
#[derive(Debug)]
pub(super) struct HeldOutput {
    out: File,
    err: File,
}

impl HeldOutput {
    pub(super) fn new() -> anyhow::Result<Self> {
        let make = |name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from).context("cannot hold the output");
        Ok(Self { out: make("pando-output")?, err: make("pando-errors")? })
    }

    /// For the command to write to.
    pub(super) fn descriptors(&self) -> anyhow::Result<[Option<File>; 3]> {
        Ok([None, Some(self.out.try_clone()?), Some(self.err.try_clone()?)])
    }

    /// Lets it out. A reader that has gone is no failure of the transaction.
    pub(super) fn release(mut self) -> anyhow::Result<()> {
        for file in [&self.out, &self.err] {
            seek(file, SeekFrom::Start(0)).context("cannot read the held output")?;
        }
        let _ = std::io::copy(&mut self.out, &mut std::io::stdout());
        let _ = std::io::stdout().flush();
        let _ = std::io::copy(&mut self.err, &mut std::io::stderr());
        Ok(())
    }
}

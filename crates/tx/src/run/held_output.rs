//! A command's output, held until its transaction commits.

use pando_kernel::{CallError, Context};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use std::fs::File;
use std::io::Write;

/// Standard output and standard error of a command, in memory.
#[derive(Debug)]
pub struct HeldOutput {
    out: File,
    err: File,
}

impl HeldOutput {
    /// Makes two files in memory, of no other process.
    ///
    /// # Errors
    ///
    /// What making them says.
    pub fn new() -> Result<Self, CallError> {
        let make =
            |name| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from).context(|| "holding the output".into());
        Ok(Self { out: make("pando-output")?, err: make("pando-errors")? })
    }

    /// The standard descriptors of the command: nothing in place of its input, and what it writes to.
    ///
    /// # Errors
    ///
    /// What duplicating a descriptor says.
    pub fn descriptors(&self) -> Result<[Option<File>; 3], CallError> {
        let share = |file: &File| file.try_clone().map(Some).context(|| "holding the output".into());
        Ok([None, share(&self.out)?, share(&self.err)?])
    }

    /// Writes what is held to the standard descriptors of this process. A reader that has gone is no failure of the
    /// transaction.
    ///
    /// # Errors
    ///
    /// What going back in the files says.
    pub fn release(mut self) -> Result<(), CallError> {
        for file in [&self.out, &self.err] {
            seek(file, SeekFrom::Start(0)).context(|| "reading the held output".into())?;
        }
        let _ = std::io::copy(&mut self.out, &mut std::io::stdout());
        let _ = std::io::stdout().flush();
        let _ = std::io::copy(&mut self.err, &mut std::io::stderr());
        Ok(())
    }
}

//! A swap file of the benchmark's own, in use for as long as this lives.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) struct SwapFile(PathBuf);

impl SwapFile {
    /// Makes one of so many megabytes.
    pub(super) fn make(path: &Path, megabytes: u64) -> anyhow::Result<Self> {
        let file = Self(path.to_owned());
        let count = format!("count={megabytes}");
        // It may have no holes.
        run(Command::new("dd").args(["if=/dev/zero", "bs=1M", &count]).arg(format!("of={}", path.display())))?;
        run(Command::new("chmod").arg("600").arg(path))?;
        run(Command::new("mkswap").arg(path))?;
        run(Command::new("swapon").arg(path))?;
        Ok(file)
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        // It fails for a file that never was in use.
        let _ = Command::new("swapoff").arg(&self.0).output();
        let _ = std::fs::remove_file(&self.0);
    }
}

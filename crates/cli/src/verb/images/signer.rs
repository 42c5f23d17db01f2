//! Signs exports: `ssh-keygen` does it, which knows keys in files, agents and tokens, and asks for what they want.

use anyhow::{Context, bail, ensure};
use pando_reader::signature::NAMESPACE;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A key that is to sign.
#[derive(Debug)]
pub(super) struct Signer {
    key: PathBuf,
}

impl Signer {
    /// With the key in a file. Whether that can sign shows when it does, and whether there is anything to sign with
    /// before anything is written.
    pub(super) fn new(key: &Path) -> anyhow::Result<Self> {
        std::fs::metadata(key).with_context(|| format!("cannot sign with '{}'", key.display()))?;
        Ok(Self { key: key.to_owned() })
    }

    /// A signature of a statement.
    pub(super) fn sign(&self, statement: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut child = Command::new("ssh-keygen")
            .args(["-q", "-Y", "sign", "-n", NAMESPACE, "-f"])
            .arg(&self.key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the program ssh-keygen, which signs, cannot be run; install it (openssh-client has it)")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(mut input), Some(mut output)) = (input, output) else { bail!("ssh-keygen has no pipes") };
        // Short, so that it fits into the pipe; one that has gone says why itself.
        let _ = input.write_all(statement);
        drop(input);
        let mut signature = Vec::new();
        output.read_to_end(&mut signature)?;
        let status = child.wait()?;
        ensure!(status.success(), "ssh-keygen did not sign with '{}' ({status})", self.key.display());
        Ok(signature)
    }
}

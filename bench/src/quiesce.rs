//! A machine with other work on it is made quiet for a measurement, by a command of the user's: it makes it quiet and
//! then does what it is told at its end, `sh -c SCRIPT`, whose output says that the quiet has begun and which lasts
//! until its input ends.

use anyhow::Context;
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// Says that the quiet has begun, and keeps it until nobody wants it any more.
const KEEP: &str = "echo quiet; read end";

/// The machine is quiet for as long as this lives.
#[derive(Debug)]
pub(crate) struct Quiesce(Option<Child>);

impl Quiesce {
    /// Waits until it is quiet. Without a command it is taken as it is.
    pub(crate) fn begin(command: Option<&str>) -> anyhow::Result<Self> {
        let Some(command) = command else { return Ok(Self(None)) };
        let mut child = Command::new(command)
            .args(["sh", "-c", KEEP])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command}"))?;
        let mut said = [0; 5];
        let begun = child.stdout.as_mut().context("its output is a pipe")?.read_exact(&mut said);
        let quiesce = Self(Some(child));
        begun.with_context(|| format!("{command} did not make it quiet"))?;
        Ok(quiesce)
    }
}

impl Drop for Quiesce {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_quiet_until_it_is_dropped() {
        drop(Quiesce::begin(None).unwrap());
        let quiesce = Quiesce::begin(Some("env")).unwrap();
        assert!(quiesce.0.is_some());
        drop(quiesce);
        assert!(Quiesce::begin(Some("false")).is_err());
    }
}

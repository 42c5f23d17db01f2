//! What is booted: by Pando, or natively.

use super::{silent, until};
use crate::own_pando::OwnPando;
use anyhow::Context;
use pando_api::{Method, Spec};
use std::path::Path;
use std::process::{Command, Stdio};

/// A system that is booted again and again.
pub(super) trait System {
    /// What the rows call it.
    fn name(&self) -> &'static str;
    /// Starts its init.
    fn boot(&mut self) -> anyhow::Result<()>;
    /// A shell's script, to be run inside.
    fn enter(&self, script: &str) -> anyhow::Result<Command>;
    /// Tells it from inside to reboot, and returns when its next life has begun.
    fn reboot(&mut self) -> anyhow::Result<()>;
    /// Ends it.
    fn stop(&mut self) -> anyhow::Result<()>;
}

pub(super) const NAME: &str = "guest";

/// A guest, which goes with its Pando.
pub(super) struct Guest<'a>(&'a OwnPando);

impl<'a> Guest<'a> {
    pub(super) fn new(pando: &'a OwnPando, tree: &Path) -> anyhow::Result<Self> {
        let spec = Spec { init: Some("/sbin/init".into()), ..Spec::default() };
        let source = Some(tree.to_string_lossy().into_owned());
        pando.connect()?.call(&Method::Create { name: NAME.into(), source, spec, start: false })?;
        Ok(Self(pando))
    }

    /// The pid of its first process, on the host.
    fn pid(&self) -> anyhow::Result<Option<i64>> {
        let listing = self.0.connect()?.call(&Method::List {})?;
        let guests = listing["guests"].as_array().context("the daemon lists no guests")?;
        Ok(guests.iter().find(|guest| guest["name"] == NAME).and_then(|guest| guest["pid"].as_i64()))
    }
}

impl System for Guest<'_> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn boot(&mut self) -> anyhow::Result<()> {
        self.0.connect()?.call(&Method::Start { name: NAME.into() }).map(drop)
    }

    fn enter(&self, script: &str) -> anyhow::Result<Command> {
        let mut command = silent(self.0.command());
        command.args(["exec", NAME, "--", "sh", "-c", script]);
        Ok(command)
    }

    fn reboot(&mut self) -> anyhow::Result<()> {
        let before = self.pid()?;
        self.enter("reboot")?.status()?;
        until(NAME, || Ok(self.pid()?.is_some_and(|pid| Some(pid) != before)))
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let status = self.0.command().args(["stop", "--timeout", "60", NAME]).stdout(Stdio::null()).status()?;
        anyhow::ensure!(status.success(), "the guest does not stop");
        Ok(())
    }
}

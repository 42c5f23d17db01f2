//! Guests that exist for the whole of a measurement, started and stopped in several ways. Every way is timed: seconds.

use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::varlink::Client;
use anyhow::{Context, bail};
use pando_api::{Method, Network, Spec};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Guests with names of their own, all of the same spec.
#[derive(Debug)]
pub(crate) struct Crowd<'a> {
    pando: &'a OwnPando,
    names: Vec<String>,
    connections: usize,
}

impl<'a> Crowd<'a> {
    /// Makes them. What they run is nothing: they idle.
    pub(crate) fn create(pando: &'a OwnPando, source: &str, guests: usize, connections: usize) -> anyhow::Result<Self> {
        let names: Vec<_> = (0..guests).map(|number| format!("bench-{number}")).collect();
        let mut client = pando.connect()?;
        for name in &names {
            interrupt::check()?;
            let (name, source) = (name.clone(), Some(source.to_owned()));
            client.call(&Method::Create { name, source, spec: Spec::default(), start: false })?;
        }
        Ok(Self { pando, names, connections })
    }

    /// Gives them all another network, from their next start on.
    pub(crate) fn set_network(&mut self, network: Network) -> anyhow::Result<()> {
        let word = if network == Network::Host { "host" } else { "none" };
        let assignments = vec![format!("network={word}")];
        let mut client = self.pando.connect()?;
        for name in &self.names {
            client.call(&Method::Set { name: name.clone(), assignments: assignments.clone() })?;
        }
        Ok(())
    }

    /// Starts them one after another over one connection.
    pub(crate) fn start_one_by_one(&mut self) -> anyhow::Result<f64> {
        let mut client = self.pando.connect()?;
        let since = Instant::now();
        for name in &self.names {
            interrupt::check()?;
            client.call(&Method::Start { name: name.clone() })?;
        }
        Ok(since.elapsed().as_secs_f64())
    }

    /// Starts them over many connections at once.
    pub(crate) fn start_together(&mut self) -> anyhow::Result<f64> {
        self.together(|client, name| client.call(&Method::Start { name: name.to_owned() }).map(drop))
    }

    /// Starts them by one call of the command that names them all.
    pub(crate) fn start_by_command(&mut self, pando: &OwnPando) -> anyhow::Result<f64> {
        let mut command = pando.command();
        command.arg("start").args(&self.names).stdin(Stdio::null()).stdout(Stdio::null());
        let since = Instant::now();
        let status = command.status().context("cannot run pando start")?;
        if !status.success() {
            bail!("pando start ended with {status}");
        }
        Ok(since.elapsed().as_secs_f64())
    }

    /// Stops them over many connections at once.
    pub(crate) fn stop(&mut self) -> anyhow::Result<f64> {
        self.together(stop)
    }

    /// Stops and removes them over many connections at once.
    pub(crate) fn stop_and_remove(self) -> anyhow::Result<f64> {
        self.together(|client, name| {
            stop(client, name)?;
            client.call(&Method::Remove { name: name.to_owned(), force: false }).map(drop)
        })
    }

    fn together(&self, act: impl Fn(&mut Client, &str) -> anyhow::Result<()> + Sync) -> anyhow::Result<f64> {
        let clients: anyhow::Result<Vec<_>> = (0..self.connections).map(|_| self.pando.connect()).collect();
        let next = AtomicUsize::new(0);
        let take = || self.names.get(next.fetch_add(1, Ordering::Relaxed));
        let work = |mut client: Client| -> anyhow::Result<()> {
            while let Some(name) = take() {
                interrupt::check()?;
                act(&mut client, name)?;
            }
            Ok(())
        };
        let clients = clients?;
        let since = Instant::now();
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(move || work(client))).collect();
            // A thread that panicked has said so itself.
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a client broke down")))
        })?;
        Ok(since.elapsed().as_secs_f64())
    }
}

fn stop(client: &mut Client, name: &str) -> anyhow::Result<()> {
    client.call(&Method::Stop { name: name.to_owned(), signal: None, grace: None }).map(drop)
}

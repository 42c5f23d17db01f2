//! The guest that is to be left alone: PostgreSQL, and pgbench beside it in the same guest.
//!
//! Its programs are the host's own, shown read-only; its data are its own files.

use crate::own_pando::OwnPando;
use crate::varlink::Client;
use anyhow::{Context, bail};
use pando_api::{Amount, CpuRequest, MemoryRequest, Method, Spec};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Its name.
pub(super) const NAME: &str = "database";

/// A database of 40 MB: pgbench counts in 15 MB.
const SCALE: &str = "3";

/// Where PostgreSQL's programs may lie.
const PROGRAMS: &str = "/usr/lib/postgresql";

/// A database that runs.
pub(super) struct Database<'a> {
    pando: &'a OwnPando,
}

fn programs() -> anyhow::Result<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(PROGRAMS).into_iter().flatten().flatten().map(|entry| entry.path().join("bin")).collect();
    found.retain(|path| path.join("initdb").is_file());
    found.sort();
    found.pop().context("PostgreSQL is missing; install the package postgresql")
}

/// A tree whose programs are the host's.
fn tree(root: &Path) -> anyhow::Result<()> {
    for directory in ["usr", "etc", "dev", "proc", "sys", "tmp", "data"] {
        std::fs::create_dir_all(root.join(directory))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.join(name))?;
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\npostgres:x:100:100::/data:/bin/sh\n")?;
    std::fs::write(root.join("etc/group"), "root:x:0:\npostgres:x:100:\n")?;
    for path in ["tmp", "data"] {
        std::fs::set_permissions(root.join(path), std::fs::Permissions::from_mode(0o777))?;
    }
    Ok(std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?)
}

impl<'a> Database<'a> {
    /// Makes the guest, fills the database, and leaves it running. `durable`: whether every transaction waits for the
    /// disk.
    pub(super) fn start(pando: &'a OwnPando, durable: bool) -> anyhow::Result<Self> {
        let programs = programs()?;
        let root = pando.directory().join("database-root");
        tree(&root).context("cannot make the database's root")?;
        let amount = |text: &str| Some(Amount::from(text));
        let volume = "/usr:/usr:ro".parse::<pando_api::Volume>().map_err(|error| anyhow::anyhow!("{error}"))?;
        let path = format!("{}:/usr/bin:/bin", programs.display());
        let spec = Spec {
            cpu: CpuRequest { reserve: amount("90%"), share: amount("100"), ..CpuRequest::default() },
            memory: MemoryRequest { limit: amount("512M"), reserve: amount("256M"), ..MemoryRequest::default() },
            volumes: vec![volume],
            env: [("PATH".to_owned(), path), ("LC_ALL".to_owned(), "C".to_owned())].into(),
            user: Some("postgres".into()),
            ..Spec::default()
        };
        let source = Some(root.to_string_lossy().into_owned());
        let mut client = pando.connect()?;
        client.call(&Method::Create { name: NAME.into(), source, spec, start: true })?;
        let database = Self { pando };
        let quick = if durable { "" } else { " -c fsync=off -c synchronous_commit=off -c full_page_writes=off" };
        database.shell("initdb -A trust -D /data/db >/data/log 2>&1")?;
        database.shell(&format!(
            "pg_ctl -w -D /data/db -l /data/server -o \"-k /tmp -c listen_addresses= -c shared_buffers=128MB{quick}\" start >/data/log 2>&1"
        ))?;
        database.shell(&format!("pgbench -h /tmp -i -q -s {SCALE} postgres >/data/log 2>&1"))?;
        Ok(database)
    }

    fn shell(&self, script: &str) -> anyhow::Result<String> {
        let output = self.pando.command().args(["exec", NAME, "--", "sh", "-c", script]).output()?;
        if !output.status.success() {
            let said =
                self.pando.command().args(["exec", NAME, "--", "sh", "-c", "cat /data/log /data/server"]).output()?;
            bail!(
                "'{script}' failed in the database's guest: {} {}",
                String::from_utf8_lossy(&output.stderr).trim(),
                String::from_utf8_lossy(&said.stdout).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Works for so many seconds, and tells what it did in each when that is over, in transactions a second.
    pub(super) fn each_second(
        &self,
        seconds: usize,
        told: &mut dyn FnMut(f64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let script = format!("exec pgbench -h /tmp -n -c 4 -j 2 -P 1 -T {seconds} postgres 2>&1");
        let mut command = self.pando.command();
        command.args(["exec", NAME, "--", "sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut clients = Clients(command.spawn().context("cannot start pgbench")?);
        let mut said = Vec::new();
        for line in BufReader::new(clients.0.stdout.take().context("it has an output")?).lines() {
            let line = line.context("pgbench tells nothing any more")?;
            match progress(&line) {
                Some(throughput) => told(throughput)?,
                None => said.push(line),
            }
        }
        let status = clients.0.wait()?;
        anyhow::ensure!(status.success(), "pgbench failed: {}", said.join("; "));
        Ok(())
    }

    /// Ends it, and removes its guest.
    pub(super) fn stop(self, client: &mut Client) -> anyhow::Result<()> {
        client.call(&Method::Remove { name: NAME.into(), force: true }).map(drop)
    }
}

/// Transactions a second of a line as `progress: 1.0 s, 7000.1 tps, lat 0.5 ms stddev 0.2, 0 failed`.
fn progress(line: &str) -> Option<f64> {
    let (_, rest) = line.strip_prefix("progress: ")?.split_once(" s, ")?;
    rest.split_once(" tps")?.0.parse().ok()
}

/// Gone when this goes.
struct Clients(Child);

impl Drop for Clients {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_of_progress_tells_a_throughput() {
        let line = "progress: 12.0 s, 7012.5 tps, lat 0.570 ms stddev 0.312, 0 failed";
        assert_eq!(super::progress(line), Some(7012.5));
        assert_eq!(super::progress("tps = 7012.5 (without initial connection time)"), None);
    }
}

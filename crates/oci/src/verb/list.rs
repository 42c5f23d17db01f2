//! `list`: all containers.

use crate::command_line::{DEFAULT_ROOT, Format};
use crate::container::{self, Record, SPECIFICATION, Status};
use crate::log::Log;
use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

pub(crate) fn run(root: &Path, format: Format, quiet: bool, log: &Log) -> Result<()> {
    // Where the states are kept by default there may have been none yet.
    if !root.exists() && root != Path::new(DEFAULT_ROOT) {
        bail!("the directory of states {} does not exist", root.display());
    }
    let mut found: Vec<(Record, Status)> = Vec::new();
    for name in container::names(root)? {
        match container::look(root, &name) {
            Ok((home, record)) => {
                let status = home.status(&record);
                found.push((record, status));
            }
            // It may just have gone.
            Err(error) => log.warning(&format!("{name}: {error:#}")),
        }
    }
    if quiet {
        found.iter().for_each(|(record, _)| println!("{}", record.id));
        return Ok(());
    }
    if format == Format::Json {
        let listed: Vec<_> = found.iter().map(|(record, status)| entry(record, *status)).collect();
        println!("{}", serde_json::to_string(&listed)?);
        return Ok(());
    }
    println!("{:<20} {:<8} {:<10} {:<40} {:<30} OWNER", "ID", "PID", "STATUS", "BUNDLE", "CREATED");
    for (record, status) in &found {
        let pid = if *status == Status::Stopped { 0 } else { record.pid };
        let bundle = record.bundle.display().to_string();
        println!("{:<20} {pid:<8} {:<10} {bundle:<40} {:<30} root", record.id, status.word(), record.created);
    }
    Ok(())
}

/// A container as it is listed, in the order that others print it in.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    oci_version: &'a str,
    id: &'a str,
    pid: i32,
    status: &'a str,
    bundle: &'a Path,
    rootfs: &'a Path,
    created: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a Value>,
    owner: &'a str,
}

fn entry(record: &Record, status: Status) -> Entry<'_> {
    Entry {
        oci_version: SPECIFICATION,
        id: &record.id,
        pid: if status == Status::Stopped { 0 } else { record.pid },
        status: status.word(),
        bundle: &record.bundle,
        rootfs: &record.rootfs,
        created: &record.created,
        annotations: record.config.get("annotations").filter(|annotations| !annotations.is_null()),
        owner: "root",
    }
}

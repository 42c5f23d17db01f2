//! `list`: all containers.

use crate::command_line::Format;
use crate::container::{self, Record, Status};
use crate::log::Log;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;

pub(crate) fn run(root: &Path, format: Format, quiet: bool, log: &Log) -> Result<()> {
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
        let listed: Vec<Value> = found.iter().map(|(record, status)| entry(record, *status)).collect();
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

fn entry(record: &Record, status: Status) -> Value {
    let mut state = record.state(status);
    if let Some(state) = state.as_object_mut() {
        state.insert("rootfs".into(), json!(record.rootfs));
        state.insert("created".into(), json!(record.created));
        state.insert("owner".into(), json!("root"));
    }
    state
}

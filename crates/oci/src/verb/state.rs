//! `state`: how a container is.

use crate::container;
use anyhow::Result;
use serde_json::json;
use std::path::Path;

pub(crate) fn run(root: &Path, id: &str) -> Result<()> {
    let (home, record) = container::look(root, id)?;
    let status = home.status(&record);
    let mut state = record.state(status);
    if let Some(state) = state.as_object_mut() {
        state.insert("rootfs".into(), json!(record.rootfs));
        state.insert("created".into(), json!(record.created));
        state.insert("owner".into(), json!(""));
    }
    println!("{}", serde_json::to_string_pretty(&state)?);
    Ok(())
}

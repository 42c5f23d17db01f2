//! The interface that every varlink service has: what it is, and what it can be asked.

use crate::dispatch::{Client, Gone};
use pando_api::MethodCall;

/// The methods of the interface.
const DESCRIBED: [&str; 61] = [
    "Version",
    "Quit",
    "Reload",
    "Run",
    "Exec",
    "Signal",
    "Create",
    "Start",
    "Stop",
    "Restart",
    "Pause",
    "Unpause",
    "Reclaim",
    "Rename",
    "Wait",
    "Kill",
    "Remove",
    "Repair",
    "List",
    "Inspect",
    "Security",
    "Processes",
    "Set",
    "Address",
    "Stats",
    "Watchdog",
    "Events",
    "Log",
    "Input",
    "TakeSpare",
    "BeginTransaction",
    "CommitTransaction",
    "AbortTransaction",
    "Copy",
    "Freeze",
    "Clone",
    "Restore",
    "Move",
    "Images",
    "RemoveImage",
    "ReleaseImage",
    "InspectImage",
    "PullImage",
    "PushImage",
    "Commit",
    "TagImage",
    "PulledImages",
    "PrunePulledImages",
    "ExportImage",
    "ImportImage",
    "Usage",
    "Verify",
    "Collect",
    "CreateVolume",
    "Volumes",
    "RemoveVolume",
    "CreateNetwork",
    "Networks",
    "RemoveNetwork",
    "WrittenDirectories",
    "Unify",
];

/// Whether a method, by its full name, is one of the interface's.
pub(super) fn describes(method: &str) -> bool {
    let name = method.strip_prefix(pando_api::INTERFACE).and_then(|rest| rest.strip_prefix('.'));
    name.is_some_and(|name| DESCRIBED.contains(&name))
}

impl Client {
    /// Answers a call of it.
    pub(super) async fn describe(&mut self, call: &MethodCall) -> Result<(), Gone> {
        let parameters = match call.method.rsplit('.').next() {
            Some("GetInfo") => serde_json::json!({
                "vendor": "Pando", "product": "Pando", "version": env!("CARGO_PKG_VERSION"), "url": "https://github.com/pando/pando",
                "interfaces": ["org.varlink.service", pando_api::INTERFACE],
            }),
            Some("GetInterfaceDescription") => {
                match call.parameters.get("interface").and_then(serde_json::Value::as_str) {
                    Some(pando_api::INTERFACE) => serde_json::json!({ "description": pando_api::DESCRIPTION }),
                    other => {
                        return self
                            .varlink_error("InterfaceNotFound", &serde_json::json!({ "interface": other }))
                            .await;
                    }
                }
            }
            _ => return self.varlink_error("MethodNotFound", &serde_json::json!({ "method": call.method })).await,
        };
        Ok(self.connection.send_reply(&zlink::Reply::new(Some(parameters)), vec![]).await?)
    }
}

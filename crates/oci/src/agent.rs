//! The agent of a container's seccomp profile: whoever listens at `listenerPath` answers the system calls that the
//! profile says `SCMP_ACT_NOTIFY` of.
//!
//! ```text
//!   process: filter ──number──▶ this command: pidfd_getfd ──descriptor + states──▶ agent
//!            ◀──────taken──────
//! ```

use crate::container::SPECIFICATION;
use crate::plan::seccomp::notifies;
use anyhow::{Context, Result, bail};
use oci_spec::runtime::LinuxSeccomp;
use pando_kernel::trace::foreign_memory;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde_json::{Value, json};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Who answers, and what it is told.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    path: PathBuf,
    metadata: String,
    /// The container's state.
    state: Value,
}

impl Agent {
    /// The agent of a profile; `None` where no call waits for answers.
    pub(crate) fn of(profile: Option<&LinuxSeccomp>, state: Value) -> Result<Option<Self>> {
        let Some(profile) = profile.filter(|profile| notifies(profile)) else { return Ok(None) };
        let Some(path) = profile.listener_path().clone().filter(|path| !path.as_os_str().is_empty()) else {
            bail!("seccomp action SCMP_ACT_NOTIFY needs a listenerPath, and there is none");
        };
        if !path.is_absolute() {
            bail!("the seccomp listenerPath {} has to be an absolute path", path.display());
        }
        Ok(Some(Self { path, metadata: profile.listener_metadata().clone().unwrap_or_default(), state }))
    }

    /// Gives it the descriptor of a process at which calls arrive (`ContainerProcessState` of the runtime
    /// specification).
    pub(crate) fn take(&self, pid: i32, process: &OwnedFd, number: i32) -> Result<()> {
        let listener = foreign_memory::descriptor(process, number).context("taking the seccomp listener")?;
        let message = json!({
            "ociVersion": SPECIFICATION,
            "fds": ["seccompFd"],
            "pid": pid,
            "metadata": self.metadata,
            "state": self.state,
        });
        let words = || format!("failed to connect with seccomp agent at {}", self.path.display());
        let socket = UnixStream::connect(&self.path).with_context(words)?;
        let fds = [listener.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let text = message.to_string();
        let sent = rustix::net::sendmsg(&socket, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL);
        if sent.context("speaking to the seccomp agent")? < text.len() {
            bail!("the seccomp agent at {} did not take the whole message", self.path.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_has_to_be_named_where_somebody_has_to() {
        let of = |text: &str| Agent::of(Some(&serde_json::from_str(text).unwrap()), json!(null));
        let rule = r#""syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_NOTIFY"}]"#;
        let plain = r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/x"}"#;
        assert!(of(plain).unwrap().is_none());
        for path in ["", r#","listenerPath":"""#, r#","listenerPath":"x""#] {
            let refused = of(&format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW",{rule}{path}}}"#)).unwrap_err();
            assert!(refused.to_string().contains("listenerPath"), "{refused}");
        }
        assert!(of(&format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW",{rule},"listenerPath":"/x"}}"#)).unwrap().is_some());
    }
}

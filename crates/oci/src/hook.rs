//! Hooks that run on the host: programs that an engine wants to have a part in a container's life.

use anyhow::{Context, Result, bail};
use oci_spec::runtime::Hook;
use pando_kernel::process::pidfd;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs hooks one after another, each with the container's state on its standard input. The first that fails ends it.
pub(crate) fn run(kind: &str, hooks: &[Hook], state: &Value) -> Result<()> {
    for (number, hook) in hooks.iter().enumerate() {
        one(hook, state).with_context(|| format!("error running {kind} hook #{number}: {}", hook.path().display()))?;
    }
    Ok(())
}

fn one(hook: &Hook, state: &Value) -> Result<()> {
    let mut command = Command::new(hook.path());
    let mut arguments = hook.args().iter().flatten();
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).env_clear();
    command.envs(hook.env().iter().flatten().filter_map(|pair| pair.split_once('=')));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting it")?;
    let process = pidfd::open(child.id().cast_signed()).context("watching it")?;
    let (input, errors) = (child.stdin.take(), child.stderr.take());
    let text = state.to_string();
    // One that does not read it, or writes more than a pipe holds, holds up nobody.
    let writer = std::thread::spawn(move || input.map(|mut input| input.write_all(text.as_bytes())));
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = errors.map(|errors| errors.take(4096).read_to_string(&mut said));
        said
    });
    let limit =
        hook.timeout().filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
    if let Some(limit) = limit
        && !pidfd::wait_for_end(&process, limit)
    {
        child.kill().context("ending it")?;
        child.wait().context("waiting for its end")?;
        bail!("it took longer than its timeout of {} s", limit.as_secs());
    }
    let status = child.wait().context("waiting for its end")?;
    let _ = writer.join();
    if !status.success() {
        let said = reader.join().unwrap_or_default();
        bail!("{status}, stderr: {}", said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(script: &str, rest: &str) -> Hook {
        let script = serde_json::to_string(script).unwrap();
        serde_json::from_str(&format!(r#"{{"path":"/bin/sh","args":["sh","-c",{script}]{rest}}}"#)).unwrap()
    }

    #[test]
    fn a_hook_has_the_state_and_its_own_environment_alone() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("said");
        let script = format!("cat > {0}; echo \"$A $HOME\" >> {0}", at.display());
        run("test", &[hook(&script, r#","env":["A=b","PATH=/usr/bin:/bin"]"#)], &serde_json::json!({"id": "x"}))
            .unwrap();
        assert_eq!(std::fs::read_to_string(at).unwrap(), "{\"id\":\"x\"}b \n");
    }

    #[test]
    fn one_that_fails_is_told_with_what_it_said() {
        let error = run("test", &[hook("true", ""), hook("echo no >&2; exit 3", "")], &Value::Null).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("test hook #1") && text.contains("status: 3") && text.contains("no"), "{text}");
    }

    #[test]
    fn one_that_takes_too_long_is_ended() {
        let error = run("test", &[hook("exec sleep 1000", r#","timeout":1"#)], &Value::Null).unwrap_err();
        assert!(format!("{error:#}").contains("timeout of 1 s"));
    }
}

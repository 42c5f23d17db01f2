//! A graphical guest: an X server without a screen, a window manager and a terminal.

use crate::interrupt;
use crate::own_pando::OwnPando;
use anyhow::{Context, ensure};
use std::time::{Duration, Instant};

/// The guest with the installed system, which others are copies of.
const INSTALLED: &str = "desktop-system";

const PACKAGES: &str = "xvfb,openbox,xterm,xdotool,firefox-esr";

/// How long it may take until it has drawn what it was told to.
const PATIENCE: Duration = Duration::from_secs(120);

const SCRIPT: &str = "\
Xvfb :1 -screen 0 1024x768x24 -nolisten tcp &
export DISPLAY=:1 HOME=/root
until xdotool getdisplaygeometry; do sleep 0.1; done
openbox &
xterm &
wait";

/// Installs the system, which takes minutes.
pub(super) fn install(pando: &OwnPando) -> anyhow::Result<()> {
    let source = format!("debian:bookworm+{PACKAGES}");
    let done = pando.command().args(["create", INSTALLED, "--from", &source]).output()?;
    ensure!(done.status.success(), "installing it failed: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

pub(super) fn source() -> String {
    format!("guest:{INSTALLED}")
}

pub(super) fn command() -> Vec<String> {
    ["sh", "-c", SCRIPT].map(str::to_owned).to_vec()
}

/// Waits until the terminal's shell runs: it comes last.
pub(super) fn wait_until_ready(pando: &OwnPando, guest: &str) -> anyhow::Result<()> {
    until(pando, guest, "pidof bash xterm openbox >/dev/null").context("the desktop does not come up")
}

/// Waits until a script succeeds in a guest.
pub(super) fn until(pando: &OwnPando, guest: &str, script: &str) -> anyhow::Result<()> {
    const MOMENT: Duration = Duration::from_millis(200);
    let since = Instant::now();
    loop {
        let asked = pando.command().args(["exec", guest, "--", "sh", "-c", script]).output()?;
        if asked.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        ensure!(since.elapsed() < PATIENCE, "guest '{guest}' is not ready after {PATIENCE:?}: {said}");
        interrupt::pause(MOMENT)?;
    }
}

//! A terminal of the test's own, with a command line on it.

use crate::line::end_of;
use crate::patience::{comes_true, seconds};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

/// The controlling end of a terminal, and the command on the other end. Dropping it hangs the terminal up.
#[derive(Debug)]
pub(crate) struct Terminal {
    controller: File,
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs a command line on a new terminal, as its session's leader.
    #[track_caller]
    pub(crate) fn run<W: AsRef<OsStr>>(program: &Path, words: impl IntoIterator<Item = W>, size: (u16, u16)) -> Self {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a new terminal");
        grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("a terminal of ours");
        let name = ptsname(&controller, Vec::new()).expect("it has a name").into_string().expect("a plain one");
        let controller = File::from(controller);
        resize(&controller, size);
        let open = || File::options().read(true).write(true).open(&name).expect("it can be opened");
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).args(words).env("TERM", "vt100");
        let child = command.stdin(open()).stdout(open()).stderr(open()).spawn().expect("setsid can be started");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, sink) = (controller.try_clone().expect("a descriptor"), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                sink.lock().expect("no reader panics").extend_from_slice(&bytes[..length]);
            }
        });
        Self { controller, child, shown }
    }

    /// Types.
    pub(crate) fn types(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// Changes its size: rows and columns.
    pub(crate) fn resize(&self, size: (u16, u16)) {
        resize(&self.controller, size);
    }

    /// All that it has shown.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no reader panics")).into_owned()
    }

    /// Waits until it has shown something.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) {
        assert!(comes_true(|| self.shown().contains(text)), "the terminal never showed {text:?}: {:?}", self.shown());
    }

    /// Waits for the end of the command; the answer is its exit code.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> i32 {
        let status = end_of(&mut self.child, seconds(30));
        let status = status.unwrap_or_else(|| panic!("the command on the terminal goes on: {:?}", self.shown()));
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(controller: &File, (ws_row, ws_col): (u16, u16)) {
    tcsetwinsize(controller, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }).expect("a terminal has a size");
}

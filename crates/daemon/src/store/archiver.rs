//! tar, run over files that others have made.
//!
//! What it says of them (a socket is left out, a name is odd) is theirs to choose, and as long as they like: so it is
//! heard beside the archive, and nothing but the last line of it is kept.
//!
//! Layers have no holes: the image specification asks for that, since few programs read them. So a file that is one
//! hole becomes as long as it says, and that is looked at before.

use pando_kernel::process::contained::Contained;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How often whoever wants the archive is asked whether he still does.
const BEAT: Duration = Duration::from_millis(200);

/// What of a line that it says is kept, in bytes.
const LONGEST_LINE: usize = 1024;

/// What tar is told of every archive.
const WORDS: [&str; 6] = ["--create", "--format=posix", "--numeric-owner", "--xattrs", "--acls", "--file=-"];

fn not_run(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the program tar cannot be run ({error}); install it"))
}

/// An archive that is being made: read it to its end, then [finish](Self::finish). tar is ended when this is dropped.
pub(crate) struct Archiver<'a> {
    tar: Contained,
    output: Option<ChildStdout>,
    errors: Option<ChildStderr>,
    /// The last line that it has said, and the one that it is saying.
    last: Vec<u8>,
    line: Vec<u8>,
    wanted: &'a dyn Fn() -> bool,
    asked: Instant,
}

impl<'a> Archiver<'a> {
    /// Begins one of the files below `tree`, in the format of pax(1), with more options of tar(1).
    pub(crate) fn begin(tree: &Path, options: &[&str], wanted: &'a dyn Fn() -> bool) -> io::Result<Self> {
        let mut command = Command::new("tar");
        // By the descriptor that its name may stand for, which the program itself does not get.
        command.args(WORDS).args(options).arg(".").current_dir(tree);
        Self::start(command, wanted).map_err(not_run)
    }

    /// Begins one of a layer: of single files of `tree` and not what lies in them, then of those below `besides`. Equal
    /// files make an equal archive, whenever that is.
    pub(crate) fn layer(
        tree: &Path,
        (listed, besides, also): (&Path, &Path, &Path),
        wanted: &'a dyn Fn() -> bool,
    ) -> io::Result<Self> {
        // The times of access and change are of this copy, and the name of a header is of this process.
        const SAME: &str = "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime";
        const LIST: [&str; 5] = [SAME, "--no-recursion", "--null", "--verbatim-files-from", "--no-unquote"];
        let mut command = Command::new("tar");
        command.args(WORDS).args(LIST).arg("--files-from").arg(listed);
        command.arg("--directory").arg(besides).arg("--files-from").arg(also).current_dir(tree);
        Self::start(command, wanted).map_err(not_run)
    }

    fn start(mut command: Command, wanted: &'a dyn Fn() -> bool) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tar = Contained::start(command)?;
        let (output, errors) = (tar.take_output(), tar.take_errors());
        Ok(Self { tar, output, errors, last: Vec::new(), line: Vec::new(), wanted, asked: Instant::now() })
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// What it said last, where something is not in the archive that should be.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.output = None;
        loop {
            self.wait()?;
            if let Some(status) = self.tar.ended()? {
                while self.errors.is_some() && self.hear() {}
                return if status.success() { Ok(()) } else { Err(self.failure()) };
            }
        }
    }

    fn failure(mut self) -> io::Error {
        if !self.line.is_empty() {
            self.last = std::mem::take(&mut self.line);
        }
        let said = String::from_utf8_lossy(&self.last);
        let said = if said.trim().is_empty() { "it did not say why" } else { said.trim() };
        io::Error::other(format!("tar could not read its files: {said}"))
    }

    /// Waits for something to happen; whether there is something of the archive.
    fn wait(&mut self) -> io::Result<bool> {
        fn pipe(of: Option<&impl AsFd>) -> Option<BorrowedFd<'_>> {
            of.map(AsFd::as_fd)
        }
        let pipes = [pipe(self.output.as_ref()), pipe(self.errors.as_ref())];
        let [archive, complaint] = self.tar.wait_for(pipes, BEAT)?;
        if complaint {
            self.hear();
        }
        if self.asked.elapsed() >= BEAT {
            self.asked = Instant::now();
            if !(self.wanted)() {
                return Err(io::Error::other("whoever wanted it has gone"));
            }
        }
        Ok(archive)
    }

    /// Hears once what it says; whether there may be more.
    fn hear(&mut self) -> bool {
        let mut buffer = [0; LONGEST_LINE];
        let count = self.errors.as_mut().and_then(|errors| errors.read(&mut buffer).ok()).unwrap_or(0);
        for byte in &buffer[..count] {
            match byte {
                b'\n' => self.last = std::mem::take(&mut self.line),
                byte if self.line.len() < LONGEST_LINE => self.line.push(*byte),
                _ => {}
            }
        }
        if count == 0 {
            self.errors = None;
        }
        count > 0
    }
}

impl Read for Archiver<'_> {
    /// # Errors
    ///
    /// That nobody wants it any more.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !self.wait()? {
            if self.output.is_none() {
                return Ok(0);
            }
        }
        self.output.as_mut().map_or(Ok(0), |output| output.read(into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_holds_nothing_up() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..2000 {
            let path = place.path().join(format!("a-socket-with-a-long-name-{number}"));
            drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        }
        let mut archiver = Archiver::begin(place.path(), &[], &|| true).unwrap();
        let size = io::copy(&mut archiver, &mut io::sink()).unwrap();
        archiver.finish().unwrap();
        assert!(size >= 1024);
    }

    #[test]
    fn a_failure_is_told_by_its_last_line() {
        let mut archiver = Archiver::begin(Path::new("/proc/self/task"), &["./no-such-file"], &|| true).unwrap();
        io::copy(&mut archiver, &mut io::sink()).unwrap();
        let error = archiver.finish().unwrap_err().to_string();
        assert!(error.starts_with("tar could not read its files: tar: Exiting with failure"), "{error}");
    }

    #[test]
    fn one_that_nobody_wants_any_more_is_given_up() {
        let place = tempfile::tempdir().unwrap();
        std::fs::File::create(place.path().join("hole")).unwrap().set_len(1 << 40).unwrap();
        let mut archiver = Archiver::begin(place.path(), &[], &|| false).unwrap();
        assert!(io::copy(&mut archiver, &mut io::sink()).unwrap_err().to_string().contains("has gone"));
    }
}

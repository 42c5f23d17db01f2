//! The caller's side: it starts a reader, and hears it.

use crate::attended::Attended;
use crate::child::{NAME, NOT_CONFINED};
use crate::failure::Failure;
use crate::job::Job;
use crate::wire::{Head, Message, Nonsense, head, message};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;

/// Fewer turns between the two sides than with the customary 64 KiB.
const PIPE: usize = 1 << 20;

/// What of its last words is kept.
const LAST_WORDS: usize = 4096;

/// Why something was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReaderError {
    /// The input is damaged, or not what it was said to be.
    #[error("{0:?}")]
    Failed(Failure),
    /// The reader is no more.
    #[error(transparent)]
    Died(#[from] Died),
    /// The reader could not be started.
    #[error("the process that reads it, which has no powers, cannot be started: {0}")]
    Start(io::Error),
}

/// How a reader ended before it had said all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Died {
    /// It made a system call that reading does not need.
    #[error("the process that reads it, which has no powers, tried what reading does not need, and was ended")]
    Forbidden,
    /// The reader took too long.
    #[error("the process that reads it needed more processor time than it may have, and was ended")]
    Time,
    /// It took too much, or found a fault in itself.
    #[error("the process that reads it ended itself: {0}")]
    Itself(String),
    /// It has powers that could not be given up.
    #[error("the process that is to read it could not give up its powers, and has read nothing: {0}")]
    NotConfined(String),
    /// The reader ended in any other way.
    #[error("the process that reads it ended too early ({0})")]
    Otherwise(String),
    /// It stood still, with something to read.
    #[error("the process that reads it has stood still for minutes, with something to read, and was ended")]
    Still,
    /// The reader said what a reader never says.
    #[error("the process that reads it said what no reader says, and was ended")]
    Nonsense,
}

/// A reader at work. It is ended when this is dropped.
pub struct Reader {
    heard: BufReader<Box<dyn Read + Send>>,
    running: Option<Running>,
    /// What is left of the frame of content that is being read.
    content: usize,
    /// How much content may follow the last message.
    allowed: u64,
    job: Job,
    /// A message that was met at the end of content.
    next: Option<Message>,
    position: Rc<Cell<u64>>,
}

struct Running {
    child: Child,
    words: OwnedFd,
}

impl Reader {
    /// Starts one in a process of its own, which has `input` and nothing else.
    pub fn start(job: &Job, input: impl Into<OwnedFd>) -> Result<Self, ReaderError> {
        Self::spawn(job, input.into()).map_err(ReaderError::Start)?.begun()
    }

    /// A reader that is a thread of this process and has all its powers: for tests of what is done with what a reader
    /// says.
    pub fn start_unconfined(job: &Job, input: impl Into<OwnedFd>) -> Result<Self, ReaderError> {
        let (heard, said) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| ReaderError::Start(error.into()))?;
        let (hears, job, input) = (job.clone(), job.clone(), File::from(input.into()));
        std::thread::spawn(move || crate::serve::serve(&job, &[], input, File::from(said)));
        Self::hearing(Box::new(File::from(heard)), hears, None).begun()
    }

    fn spawn(job: &Job, input: OwnedFd) -> io::Result<Self> {
        let (heard, said) = pipe_with(PipeFlags::CLOEXEC)?;
        let _ = fcntl_setpipe_size(&heard, PIPE);
        // Nobody empties this one while the reader works: it does not wait for that.
        let (words, spoken) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).arg(serde_json::to_string(job)?).env_clear();
        if let Some(planted) = pando_kernel::mistake::plant() {
            command.env(pando_kernel::mistake::PLANT, planted);
        }
        let kept = input.as_fd().try_clone_to_owned()?;
        let child = command.stdin(input).stdout(said).stderr(Stdio::from(spoken)).current_dir("/").spawn()?;
        let heard = Attended::new(heard.into(), kept, child.id());
        Ok(Self::hearing(Box::new(heard), job.clone(), Some(Running { child, words })))
    }

    fn hearing(heard: Box<dyn Read + Send>, job: Job, running: Option<Running>) -> Self {
        Self {
            heard: BufReader::with_capacity(256 << 10, heard),
            running,
            content: 0,
            allowed: 0,
            job,
            next: None,
            position: Rc::default(),
        }
    }

    fn begun(mut self) -> Result<Self, ReaderError> {
        match self.next()? {
            Message::Begun => Ok(self),
            _ => Err(self.nonsense()),
        }
    }

    /// How many bytes of its input it has read.
    pub fn position(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.position)
    }

    /// The pid of its process, if it is one.
    pub fn pid(&self) -> Option<u32> {
        Some(self.running.as_ref()?.child.id())
    }

    /// The next message; what is left of content before it is passed over.
    ///
    /// # Errors
    ///
    /// That the input is wrong, or how the reader ended.
    #[expect(clippy::should_implement_trait, reason = "an iterator would go on after an error")]
    pub fn next(&mut self) -> Result<Message, ReaderError> {
        io::copy(self, &mut io::sink()).map_err(|error| self.lost(&error))?;
        match self.next.take() {
            Some(Message::Failed(failure)) => Err(ReaderError::Failed(failure)),
            Some(message) => Ok(message),
            None => Err(self.nonsense()),
        }
    }

    fn nonsense(&mut self) -> ReaderError {
        self.end();
        Died::Nonsense.into()
    }

    /// What an error of [`Read`] means, or content that ended too early.
    pub fn lost(&mut self, error: &io::Error) -> ReaderError {
        match (self.next.take(), error.get_ref().and_then(|inner| inner.downcast_ref::<Died>())) {
            (Some(Message::Failed(failure)), _) => ReaderError::Failed(failure),
            (Some(_), _) => self.nonsense(),
            (None, Some(died)) => died.clone().into(),
            (None, None) => Died::Otherwise(error.to_string()).into(),
        }
    }

    /// Ends it, and says how it had ended by itself.
    fn end(&mut self) -> Option<(ExitStatus, String)> {
        let Running { mut child, words } = self.running.take()?;
        let _ = child.kill();
        let status = child.wait().ok()?;
        let mut said = [0; LAST_WORDS];
        let length = rustix::io::read(&words, &mut said).unwrap_or(0);
        Some((status, String::from_utf8_lossy(&said[..length]).into_owned()))
    }

    /// The other side said no more, or nonsense.
    fn died(&mut self, how: &Nonsense) -> Died {
        match how {
            Nonsense::Gone => {}
            Nonsense::Read(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.end();
                return Died::Still;
            }
            _ => {
                self.end();
                return Died::Nonsense;
            }
        }
        // It has closed its output, so it ends by itself, or has.
        let status = self.running.as_mut().and_then(|running| running.child.wait().ok());
        let words = self.end().map(|(_, words)| words).unwrap_or_default();
        let last = words
            .lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty() && !line.starts_with("note:"))
            .unwrap_or("it did not say why");
        let last: String = last.chars().filter(|letter| !letter.is_control()).collect();
        match status.map(|status| (status.signal(), status.code(), status)) {
            Some((Some(libc::SIGSYS), ..)) => Died::Forbidden,
            Some((Some(libc::SIGXCPU), ..)) => Died::Time,
            Some((Some(libc::SIGABRT), ..) | (None, Some(101), _)) => Died::Itself(last),
            Some((None, Some(NOT_CONFINED), _)) => Died::NotConfined(last),
            Some((.., status)) => Died::Otherwise(status.to_string()),
            None => Died::Otherwise(last),
        }
    }
}

/// The content that follows a message, up to the next one.
impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.content == 0 {
            if self.next.is_some() {
                return Ok(0);
            }
            let found = head(&mut self.heard).and_then(|(found, position)| {
                self.position.set(position);
                match found {
                    Head::Content(length) => {
                        // More than it has told of, or of what has none.
                        self.allowed = self.allowed.checked_sub(length as u64).ok_or(Nonsense::Unknown)?;
                        self.content = length;
                    }
                    Head::Message(length) => {
                        let message = message(&mut self.heard, length)?;
                        self.allowed = message.content(&self.job);
                        self.next = Some(message);
                    }
                }
                Ok(())
            });
            found.map_err(|how| io::Error::other(self.died(&how)))?;
        }
        let most = into.len().min(self.content);
        let count = match self.heard.read(&mut into[..most]) {
            Ok(0) if most > 0 => return Err(io::Error::other(self.died(&Nonsense::Gone))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(io::Error::other(self.died(&error.into())));
            }
            done => done?,
        };
        self.content -= count;
        Ok(count)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, into: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        into.debug_struct("Reader")
            .field("pid", &self.pid())
            .field("position", &self.position.get())
            .finish_non_exhaustive()
    }
}

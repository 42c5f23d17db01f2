//! Signatures of exports, as `ssh-keygen -Y sign` makes them: whether one is right, and whose it is.

use crate::child::NOT_CONFINED;
use crate::verifier::{self, NO_PROGRAM, Question, What};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// What signatures of exports are for: one that was made for something else, a commit or a letter, does not count.
pub const NAMESPACE: &str = "pando-image";

/// The longest signature: a key of 16,384 bits with its certificate takes a quarter of it.
pub const LONGEST_SIGNATURE: u64 = 64 << 10;

/// The longest list of signers, or of what was revoked.
pub const LONGEST_LIST: u64 = 4 << 20;

/// What of an answer is read.
const LONGEST_ANSWER: u64 = 64 << 10;

/// How many identities are tried that a key has.
const MOST_IDENTITIES: usize = 64;

/// The reason of one that gives none.
const SILENT: &str = "it did not say why";

/// How long an answer may take.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// The keys whose signatures are believed.
#[derive(Clone, Debug)]
pub struct Signers {
    /// As ssh-keygen(1) has it under "ALLOWED SIGNERS".
    pub list: Vec<u8>,
    /// Keys that are not believed any more: a list of public keys, or a KRL.
    pub revoked: Option<Vec<u8>>,
}

/// The signer of an export that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// By the list of signers; none where there was no list to ask.
    pub identity: Option<String>,
    /// The kind of key and its fingerprint.
    pub key: String,
}

/// Why a signature is not believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The signature is damaged, or was made of something else.
    #[error(
        "its signature does not fit its content ({0}): it was changed after it was signed, or the signature is damaged"
    )]
    Wrong(String),
    /// The signature is right, and its signer is not on the list.
    #[error("it is signed with the key {key}, which is not believed: {why}")]
    NotBelieved {
        /// The key that signed it.
        key: String,
        /// The message that ssh-keygen printed.
        why: String,
    },
    /// The signature is too long to be one.
    #[error("its signature is longer than 64 KiB")]
    TooLong,
    /// The signature could not be checked.
    #[error("its signature cannot be checked: {0}")]
    Unchecked(String),
}

/// Checks that a signature is one of this statement, and says by which signer.
///
/// # Errors
///
/// Why it is not believed.
pub fn check(statement: &[u8], signature: &[u8], signers: Option<&Signers>) -> Result<Signed, SignatureError> {
    if signature.len() as u64 > LONGEST_SIGNATURE {
        return Err(SignatureError::TooLong);
    }
    let ask = |what| ask(&Question { statement: statement.to_vec(), signature: signature.to_vec(), what });
    let valid = ask(What::Valid)?;
    let Some(key) = valid.good() else { return Err(SignatureError::Wrong(valid.words)) };
    let Some(signers) = signers else { return Ok(Signed { identity: None, key }) };
    let list = || signers.list.clone();
    let found = ask(What::Principals { signers: list() })?;
    let mut why = found.words;
    if found.ended_well {
        for identity in found.said.lines().filter(|line| !line.is_empty()).take(MOST_IDENTITIES) {
            let of = What::Of { signers: list(), identity: identity.to_owned(), revoked: signers.revoked.clone() };
            let answer = ask(of)?;
            match answer.good() {
                Some(same) if same == key => return Ok(Signed { identity: Some(identity.to_owned()), key }),
                _ if answer.words == SILENT => why = "it is revoked, or may not sign images".to_owned(),
                _ => why = answer.words,
            }
        }
    }
    Err(SignatureError::NotBelieved { key, why })
}

/// What ssh-keygen said.
struct Answer {
    ended_well: bool,
    /// On its output.
    said: String,
    /// On its errors, as a line.
    words: String,
}

impl Answer {
    /// The key, if the signature is right.
    fn good(&self) -> Option<String> {
        let line = self.said.lines().next().filter(|line| self.ended_well && line.starts_with("Good "))?;
        let (_, key) = line.rsplit_once(" with ")?;
        Some(key.replacen(" key ", " ", 1))
    }
}

fn ask(question: &Question) -> Result<Answer, SignatureError> {
    answered(question).map_err(|error| SignatureError::Unchecked(error.to_string()))
}

fn answered(question: &Question) -> io::Result<Answer> {
    use rustix::pipe::{PipeFlags, pipe_with};
    // Nobody empties this one while it works: it does not wait for that.
    let (heard, spoken) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(verifier::NAME).env_clear();
    if let Some(planted) = pando_kernel::mistake::plant() {
        command.env(pando_kernel::mistake::PLANT, planted);
    }
    let child = command
        .stdin(verifier::asked(question)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::from(spoken))
        .current_dir("/")
        .spawn()?;
    let mut child = Ended(child);
    let said = listen(&mut child.0)?;
    // The output ends when the program does, whose status is set by then: this ends one that has closed it and stays.
    let _ = child.0.kill();
    let status = child.0.wait()?;
    let words = last_words(&heard);
    match status.code() {
        Some(NO_PROGRAM) => Err(io::Error::other("there is no program ssh-keygen; install it (openssh-client has it)")),
        Some(NOT_CONFINED) => {
            Err(io::Error::other(format!("the process that is to do it could not give up its powers: {words}")))
        }
        // It ends with 255 if the answer is no.
        Some(0 | 1 | 255) => Ok(Answer { ended_well: status.success(), said, words }),
        _ => Err(io::Error::other(format!("ssh-keygen ended oddly ({status}); be careful with where it came from"))),
    }
}

/// A process that goes with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that it says, up to a bound and for a while.
fn listen(child: &mut Child) -> io::Result<String> {
    let Some(mut output) = child.stdout.take() else { return Ok(String::new()) };
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    while (said.len() as u64) < LONGEST_ANSWER {
        let mut wait = [PollFd::new(&output, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| rustix::event::poll(&mut wait, Some(&PATIENCE)))? == 0 {
            return Err(io::Error::other("ssh-keygen does not come to an end"));
        }
        match output.read(&mut buffer)? {
            0 => break,
            length => said.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

fn last_words(heard: &OwnedFd) -> String {
    let mut bytes = Vec::new();
    if let Ok(pipe) = heard.try_clone() {
        // It ends with an error where another process still has the other end.
        let _ = File::from(pipe).take(4096).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.map(|line| line.trim_end_matches(['.', '\r'])).collect::<Vec<_>>().join("; ");
    let line = if line.is_empty() { SILENT.to_owned() } else { line };
    line.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

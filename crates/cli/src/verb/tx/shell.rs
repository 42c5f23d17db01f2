//! `pando tx shell`: a shell in a transaction, which is committed or aborted at its end.

use super::diff::show;
use super::end::{Abort, Commit};
use super::guest;
use super::holder::Purpose;
use super::open::{Begin, Enter};
use super::wait::{Line, Waiting};
use crate::complaint::OWN_FAILURE;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_tx::TxName;
use std::ffi::OsString;
use std::io::IsTerminal;

/// What the user has decided against.
const ABORTED: u8 = 1;

#[derive(Debug, clap::Args)]
pub(super) struct Shell {
    /// The transaction's name [default: shell- and a number]
    #[arg(long, value_name = "NAME")]
    name: Option<TxName>,
    /// In this guest, which must be running
    #[arg(long, value_name = "GUEST")]
    guest: Option<String>,
    /// What to run instead of a shell, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What is to become of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Diff,
    Commit,
    Abort,
}

impl Answer {
    /// The answer of a word or its first letter.
    fn of(text: &str) -> Option<Self> {
        match text.trim() {
            "d" | "diff" => Some(Self::Diff),
            "c" | "commit" => Some(Self::Commit),
            "a" | "abort" => Some(Self::Abort),
            _ => None,
        }
    }
}

impl Shell {
    pub(super) fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        let name = match self.name.clone() {
            Some(name) => name,
            None => format!("shell-{}", std::process::id()).parse()?,
        };
        // It ends with this process: whatever that dies of, nothing is left.
        Begin::new(name.clone(), self.guest.clone()).begin(root, Some(&Purpose::default()))?;
        let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if asks {
            eprintln!("pando: in transaction '{name}'; leave the shell to see, commit or abort what you have changed");
        }
        let ended = Enter::new(name.clone(), self.guest.clone(), self.command.clone()).run(root);
        let code = match ended {
            Ok(code) => code,
            Err(error) => {
                self.abort(root, &name)?;
                return Err(error);
            }
        };
        if asks { self.ask(root, &name) } else { self.end(root, &name, code) }
    }

    /// Without anybody to ask, what has succeeded is committed, as `tx run` does.
    fn end(&self, root: &StateRoot, name: &TxName, code: u8) -> anyhow::Result<u8> {
        if code != 0 {
            self.abort(root, name)?;
            return Ok(code);
        }
        let committed = self.commit(root, name);
        if committed.is_err() {
            self.abort(root, name)?;
        }
        committed
    }

    fn ask(&self, root: &StateRoot, name: &TxName) -> anyhow::Result<u8> {
        let mut waiting = Waiting::take()?;
        loop {
            eprint!("pando: '{name}': [d]iff, [c]ommit or [a]bort? ");
            let answer = match waiting.line()? {
                Line::Text(text) => Answer::of(&text),
                Line::End => {
                    eprintln!();
                    Some(Answer::Abort)
                }
                Line::Signal(signal) => {
                    eprintln!();
                    self.abort(root, name)?;
                    return Ok(u8::try_from(128 + signal).unwrap_or(OWN_FAILURE));
                }
            };
            match answer {
                None => eprintln!("pando: d, c or a; the end of the input aborts"),
                Some(Answer::Diff) => self.diff(root, name)?,
                Some(Answer::Abort) => {
                    self.abort(root, name)?;
                    return Ok(ABORTED);
                }
                Some(Answer::Commit) => match self.commit(root, name) {
                    Ok(code) => return Ok(code),
                    // In conflict it stays open, and can be looked at, or committed once more.
                    Err(error) => eprintln!("pando: {}", crate::complaint::sentences(&error)),
                },
            }
        }
    }

    fn diff(&self, root: &StateRoot, name: &TxName) -> anyhow::Result<()> {
        let home = &guest::home(root, self.guest.as_deref())?;
        let review = pando_tx::review_of_open(home, name);
        show(&review.with_context(|| format!("cannot read the changes of '{name}'"))?, true)
    }

    fn commit(&self, root: &StateRoot, name: &TxName) -> anyhow::Result<u8> {
        Commit::whole(name.clone(), self.guest.clone()).run(root)
    }

    fn abort(&self, root: &StateRoot, name: &TxName) -> anyhow::Result<u8> {
        Abort::new(name.clone(), self.guest.clone()).run(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_its_first_letter_is_an_answer() {
        assert_eq!(["d\n", "commit", " a "].map(Answer::of), [Answer::Diff, Answer::Commit, Answer::Abort].map(Some));
        assert_eq!(["", "yes", "C"].map(Answer::of), [None; 3]);
    }
}

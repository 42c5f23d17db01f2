//! Where a log is printed.

use crate::complaint::NoReader;
use crate::tamed_text::TamedText;
use anyhow::Context;
use std::io::{ErrorKind, IsTerminal, Write};

/// Standard output. Of what goes to a terminal colours are left, and nothing that drives it: a guest may have written
/// anything.
pub(crate) struct Paper {
    tamed: Option<TamedText>,
}

impl Paper {
    /// What is given to it goes out as it is if that is wanted (`raw`), or no terminal is there.
    pub(crate) fn new(raw: bool) -> Self {
        Self { tamed: (!raw && std::io::stdout().is_terminal()).then(TamedText::default) }
    }

    /// Prints some of it.
    pub(crate) fn print(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        let written = match &mut self.tamed {
            Some(tamed) => out.write_all(&tamed.tame(bytes)),
            None => out.write_all(bytes),
        };
        match written.and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(NoReader.into()),
            other => other.context("cannot write to standard output"),
        }
    }
}

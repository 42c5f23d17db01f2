//! The host as what a command is run on: how each attempt begins, in memory, on what a daemon has made ahead, or
//! without either.

use super::outcome::announce;
use super::prewarmed::{self, Clearer};
use super::run::Run;
use super::wait::Waiting;
use crate::state_root::StateRoot;
use pando_tx::{
    BeginError, Contention, KeepRequest, Lesson, Memory, ReplayedInput, Retry, Runner, StateDirectory, Transaction,
    Tried, TxName, ViewPlan,
};
use std::path::PathBuf;
use std::time::Duration;

/// A transaction that has begun, the view that it is to have, and who clears away after it, if that is a daemon.
pub(super) type Begun = (Transaction, ViewPlan, Option<Clearer>);

/// What lasts from one attempt to the next.
pub(super) struct OnHost<'a> {
    pub(super) run: &'a Run,
    pub(super) root: &'a StateRoot,
    pub(super) home: &'a StateDirectory,
    pub(super) waiting: Waiting,
    pub(super) input: ReplayedInput,
    pub(super) contention: Contention,
    /// What is kept of its commit.
    pub(super) keep: Option<KeepRequest>,
    /// How much memory there is for what is changed, if it is kept there.
    pub(super) memory: Option<u64>,
    /// Where what it reads is not validated.
    pub(super) ignored: Vec<PathBuf>,
}

impl Runner for OnHost<'_> {
    type Error = anyhow::Error;

    fn attempt(&mut self, number: u32, lesson: &mut Lesson, _exclusive: bool) -> anyhow::Result<Tried> {
        self.run.attempt(self, number, lesson)
    }

    fn announce(&mut self, retry: &Retry<'_>) {
        announce(retry, self.run.retry);
    }

    fn rest(&mut self, pause: Duration) -> anyhow::Result<Option<i32>> {
        self.waiting.rest(pause)
    }
}

impl OnHost<'_> {
    /// Begins a transaction: in memory, on what a daemon has made ahead, or as it is done without either.
    pub(super) fn begin(&self, name: &TxName, shown: &[String], lesson: &mut Lesson) -> Result<Begun, BeginError> {
        // As they are before it sees any of them.
        let baselines = lesson.baselines();
        let (mut transaction, plan, clearer) = self.begin_somewhere(name, shown, lesson)?;
        transaction.ignore(&self.ignored)?;
        lesson.apply(&mut transaction, baselines);
        Ok((transaction, plan, clearer))
    }

    fn begin_somewhere(&self, name: &TxName, shown: &[String], lesson: &Lesson) -> Result<Begun, BeginError> {
        let (home, begun) = (self.home, lesson.first_begun());
        let memory = self.memory.filter(|_| lesson.allows_memory());
        if let Some(memory) = memory.map(|most| Memory::new(most, home)).transpose()? {
            let (transaction, plan) = Transaction::begin_in_memory(home, name, shown, begun, memory)?;
            return Ok((transaction, plan, None));
        }
        if let Some((transaction, plan, clearer)) = prewarmed::begin(self.root, home, name, shown, begun)? {
            return Ok((transaction, plan, Some(clearer)));
        }
        let (transaction, plan) = Transaction::begin(home, name, shown, begun)?;
        Ok((transaction, plan, None))
    }
}

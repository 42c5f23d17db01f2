//! The host as what a command is run on: how each attempt begins, in memory, on what a daemon has made ahead, or
//! without either.

use super::outcome::announce;
use super::prewarmed::{self, Clearer};
use super::run::Run;
use super::wait::Waiting;
use crate::state_root::StateRoot;
use pando_tx::{
    BeginError, Contention, HostGate, KeepRequest, Lesson, Memory, ReplayedInput, Retry, Runner, StateDirectory,
    Transaction, Tried, TxName, ViewPlan,
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
    /// What keeps others out while it is committed.
    pub(super) gate: HostGate,
    /// Whether it has lost all its retries: others are to wait for what it touches, where that is to be had.
    pub(super) is_last: bool,
    /// Where what it reads is not validated.
    pub(super) ignored: Vec<PathBuf>,
}

impl Runner for OnHost<'_> {
    type Error = anyhow::Error;

    fn attempt(&mut self, number: u32, lesson: &mut Lesson, exclusive: bool) -> anyhow::Result<Tried> {
        self.is_last = exclusive;
        self.run.attempt(self, number, lesson)
    }

    fn announce(&mut self, retry: &Retry<'_>) {
        announce(retry, self.run.retry, "with others waiting for what it touches");
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

    /// Has others wait for what the transaction touches, where that was asked for, or where it has lost its retries.
    pub(super) fn hold(
        &mut self,
        transaction: &mut Transaction,
        plan: &ViewPlan,
        lesson: &Lesson,
    ) -> anyhow::Result<()> {
        let by_priority = self.contention == Contention::Priority;
        if self.gate.holds() {
            return Ok(transaction.have_others_wait(plan, self.gate, by_priority, lesson.contended())?);
        }
        let holding = self.gate.holding().filter(|_| self.is_last && self.ignored.is_empty());
        let Some(gate) = holding else { return Ok(()) };
        if transaction.have_others_wait(plan, gate, by_priority, lesson.contended()).is_ok() {
            self.gate = gate;
        }
        Ok(())
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

//! Calls that start a process: told of when it runs, and when it has ended.

use crate::dispatch::{Client, Gone};
use crate::launch::exec;
use crate::lifecycle::{kill, run, wait};
use crate::state::guest::{Guest, Running};
use pando_api::{Fault, ProcessNotice, Reply};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often one who waits for the end of a guest is told that it runs.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

impl Client {
    pub(super) async fn run(&mut self, order: run::Order, more: bool, since: Instant) -> Result<(), Gone> {
        let daemon = Rc::clone(&self.daemon);
        let run::Started { guest, running, note } = match run::run(&daemon, order).await {
            Ok(started) => started,
            Err(fault) => return self.fault(&fault).await,
        };
        let (notice, exit_code) = self.life_of(&guest, (&running, note), more).await?;
        let note = about_kills(&guest, exit_code, running.oom_kills.get());
        self.ended(ProcessNotice { note, ..notice }, exit_code, since).await
    }

    /// Tells that a guest runs; how it ends.
    pub(super) async fn life_of(
        &mut self,
        guest: &Guest,
        (running, note): (&Running, Option<String>),
        more: bool,
    ) -> Result<(ProcessNotice, Option<i32>), Gone> {
        let notice =
            ProcessNotice { guest: guest.name.to_string(), pid: running.first.pid(), ..ProcessNotice::default() };
        if more {
            self.reply(Reply::Notice { notice: ProcessNotice { note, ..notice.clone() } }, true, vec![]).await?;
        }
        Ok((notice, run::outcome(running).await))
    }

    /// Tells of a process that was started, and of its end.
    pub(super) async fn follow(
        &mut self,
        name: &str,
        started: Result<exec::Started, Fault>,
        more: bool,
        since: Instant,
    ) -> Result<(), Gone> {
        let started = match started {
            Ok(started) => started,
            Err(fault) => return self.fault(&fault).await,
        };
        let notice = ProcessNotice { guest: name.to_owned(), pid: started.pid, ..ProcessNotice::default() };
        if more && let Err(gone) = self.reply(Reply::Notice { notice: notice.clone() }, true, vec![]).await {
            // The process lives on; somebody has to see its end all the same.
            tokio::task::spawn_local(async move { exec::outcome(&started).await });
            return Err(gone);
        }
        let exit_code = exec::outcome(&started).await;
        // The guest may have gone with it.
        let guest = self.daemon.guest(name).ok();
        let note = guest.and_then(|guest| {
            let kills = exec::kills(&self.daemon.resources, &guest).saturating_sub(started.kills);
            about_kills(&guest, exit_code, kills)
        });
        self.ended(ProcessNotice { note, ..notice }, exit_code, since).await
    }

    /// The same of a guest that runs for an errand: what its end leaves is cleared away before that is told, and it may
    /// be started at once.
    pub(super) async fn see_home(
        &mut self,
        guest: &Rc<Guest>,
        running: &Running,
        more: bool,
        since: Instant,
    ) -> Result<(), Gone> {
        let (notice, exit_code) = self.life_of(guest, (running, None), more).await?;
        match kill::has_ended(guest).await {
            Ok(()) => self.ended(notice, exit_code, since).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    /// Waits for the end of a guest that somebody else started.
    pub(super) async fn wait(&mut self, name: &str, more: bool, since: Instant) -> Result<(), Gone> {
        let guest = match self.daemon.guest(name) {
            Ok(guest) => guest,
            Err(fault) => return self.fault(&fault).await,
        };
        let notice = ProcessNotice { guest: guest.name.to_string(), ..ProcessNotice::default() };
        let mut end = std::pin::pin!(wait::for_end(&guest));
        loop {
            match tokio::time::timeout(SIGN_OF_LIFE, &mut end).await {
                Ok(exit_code) => return self.ended(notice, exit_code, since).await,
                // Who has gone is not waited for: a guest may run for years.
                Err(_) if more => self.reply(Reply::Notice { notice: notice.clone() }, true, vec![]).await?,
                Err(_) => {}
            }
        }
    }

    pub(super) async fn ended(
        &mut self,
        notice: ProcessNotice,
        exit_code: Option<i32>,
        since: Instant,
    ) -> Result<(), Gone> {
        let micros = i64::try_from(since.elapsed().as_micros()).ok();
        self.reply(Reply::Notice { notice: ProcessNotice { exited: true, exit_code, micros, ..notice } }, false, vec![])
            .await
    }
}

/// Why a command may have failed, where the kernel has killed processes of its guest for want of memory meanwhile.
fn about_kills(guest: &Guest, exit_code: Option<i32>, kills: u64) -> Option<String> {
    let count = match kills {
        1 => "a process".to_owned(),
        more => format!("{more} processes"),
    };
    let killed = format!("the kernel killed {count} of guest '{}' for want of memory", guest.name);
    (kills > 0 && exit_code != Some(0)).then(|| match &guest.spec.borrow().memory.limit {
        Some(limit) => format!("{killed}: it may have {} (--memory, or memory.limit of 'pando set')", limit.0),
        None => format!("{killed}: the machine had none left"),
    })
}

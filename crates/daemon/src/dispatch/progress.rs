//! Calls that are long, and tell of their progress.

use crate::dispatch::{Client, Gone};
use crate::failure;
use crate::lifecycle::create;
use crate::store::layers::is_word;
use crate::store::{commit, pulled_images, unify};
use pando_api::{Fault, Progress, Reply};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

/// How often a long call tells of its progress.
const PULSE: Duration = Duration::from_millis(100);

impl Client {
    pub(super) async fn create(&mut self, order: create::Order, more: bool) -> Result<(), Gone> {
        let (sender, progress) = mpsc::channel();
        let daemon = Rc::clone(&self.daemon);
        let making = tokio::task::spawn_local(async move { create::create(&daemon, order, sender).await });
        match self.accompany(making, &progress, more, "making the guest").await? {
            Ok(warnings) => {
                self.reply(Reply::Progress { progress: None, warnings: Some(warnings) }, false, vec![]).await
            }
            Err(fault) => self.fault(&fault).await,
        }
    }

    pub(super) async fn unify(&mut self, dry_run: bool, more: bool) -> Result<(), Gone> {
        let (sender, progress) = mpsc::channel();
        let daemon = Rc::clone(&self.daemon);
        let unifying = tokio::task::spawn_local(async move { unify::unify(&daemon, dry_run, &sender).await });
        match self.accompany(unifying, &progress, more, "unifying the guests").await? {
            Ok(unification) => self.reply(Reply::Unification { unification }, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    pub(super) async fn push(
        &mut self,
        image: String,
        to: Option<String>,
        fds: Vec<OwnedFd>,
        more: bool,
    ) -> Result<(), Gone> {
        let (sender, progress) = mpsc::channel();
        let daemon = Rc::clone(&self.daemon);
        let work = async move { pulled_images::push(&daemon, &image, to.as_deref(), fds, sender).await };
        match self.accompany(tokio::task::spawn_local(work), &progress, more, "pushing the image").await? {
            Ok(pulled) => self.reply(Reply::Pulled { pulled, changed: true }, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    pub(super) async fn commit(&mut self, name: String, image: String, more: bool) -> Result<(), Gone> {
        let (sender, progress) = mpsc::channel();
        let daemon = Rc::clone(&self.daemon);
        let work = async move { commit::commit(&daemon, &name, &image, sender).await };
        match self.accompany(tokio::task::spawn_local(work), &progress, more, "making the image").await? {
            Ok(pulled) => self.reply(Reply::Pulled { pulled, changed: true }, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    pub(super) async fn pull(
        &mut self,
        reference: &str,
        missing: bool,
        fds: Vec<OwnedFd>,
        more: bool,
    ) -> Result<(), Gone> {
        let order = match pulled_images::Order::read(reference, missing, fds) {
            Ok(order) => order,
            Err(fault) => return self.fault(&fault).await,
        };
        let (sender, progress) = mpsc::channel();
        let daemon = Rc::clone(&self.daemon);
        let pulling = tokio::task::spawn_local(async move { pulled_images::pull_told(&daemon, order, sender).await });
        match self.accompany(pulling, &progress, more, "pulling the image").await? {
            Ok((pulled, changed)) => self.reply(Reply::Pulled { pulled, changed }, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    /// Tells of the progress of something long until it is done. What makes a guest goes on without a client; what is
    /// for him alone gives up once nobody hears how it goes on.
    pub(super) async fn accompany<T>(
        &mut self,
        mut work: tokio::task::JoinHandle<Result<T, Fault>>,
        progress: &mpsc::Receiver<Progress>,
        more: bool,
        doing: &str,
    ) -> Result<Result<T, Fault>, Gone> {
        let mut stage = String::new();
        loop {
            match tokio::time::timeout(PULSE, &mut work).await {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(error)) => {
                    return Ok(Err(failure::bad("call", format!("{doing} failed inside Pando: {error}"))));
                }
                Err(_) if self.has_hung_up() => return Err(Gone),
                Err(_) => {
                    if let Some(latest) = latest(progress, &mut stage).filter(|_| more) {
                        self.reply(Reply::Progress { progress: Some(latest), warnings: None }, true, vec![]).await?;
                    }
                }
            }
        }
    }
}

/// The newest progress that was told since the last time, with its stage.
fn latest(progress: &mpsc::Receiver<Progress>, stage: &mut String) -> Option<Progress> {
    let mut newest = None;
    for mut told in progress.try_iter().filter(is_word) {
        if told.stage.is_empty() {
            told.stage.clone_from(stage);
        } else {
            stage.clone_from(&told.stage);
        }
        newest = Some(told);
    }
    newest
}

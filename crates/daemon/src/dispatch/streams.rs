//! What a client listens to or reads by itself: events, and a guest's log.

use crate::dispatch::{Client, Gone};
use crate::init::kept_input;
use crate::{failure, logs};
use pando_api::{Event, Reply};
use std::fs::File;
use std::os::fd::OwnedFd;
use tokio::sync::broadcast::error::RecvError;

impl Client {
    pub(super) async fn events(&mut self) -> Result<(), Gone> {
        let mut events = self.daemon.events.listen();
        loop {
            let event = match events.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(missed)) => Event {
                    time_ms: 0,
                    guest: String::new(),
                    what: "missed".to_owned(),
                    detail: Some(format!("{missed} events: this listener is too slow")),
                },
                Err(RecvError::Closed) => return Err(Gone),
            };
            self.reply(Reply::Event { event }, true, vec![]).await?;
        }
    }

    pub(super) async fn input(&mut self, name: &str) -> Result<(), Gone> {
        let opened = self.daemon.guest(name).and_then(|guest| kept_input::end(&self.daemon.field, &guest));
        match opened {
            Ok(end) => self.reply(Reply::Done {}, false, vec![end]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    pub(super) async fn log(&mut self, name: &str) -> Result<(), Gone> {
        let opened = self.daemon.guest(name).and_then(|guest| {
            let path = guest.log(&self.daemon.places);
            let open = || match File::open(&path) {
                // It has said nothing yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => File::open("/dev/null"),
                opened => opened,
            };
            let log = open().map_err(|error| failure::io("opening the guest's log", name, &error))?;
            // One that an earlier Pando wrote has no times.
            Ok(std::iter::once(log).chain(File::open(logs::times(&path)).ok()).map(OwnedFd::from).collect())
        });
        match opened {
            Ok(files) => self.reply(Reply::Done {}, false, files).await,
            Err(fault) => self.fault(&fault).await,
        }
    }
}

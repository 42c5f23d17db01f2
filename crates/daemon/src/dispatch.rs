//! From a call on the wire to what does it, and back.

use crate::daemon::Daemon;
use crate::failure;
use crate::guest::{Guest, Running};
use crate::life::{
    address, clone, collect, connections, copy, create, exec, freeze, identity, image, moving, remove, restore, run,
    set, start, stop, storage, unify,
};
use crate::processes;
use crate::resources::{self, accounting};
use pando_api::{Event, Fault, HeldLimit, Inspection, Method, MethodCall, ProcessNotice, Progress, Reply};
use pando_kernel::pidfd;
use pando_tx::{HandedOver, Remains};
use serde::Serialize;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::RecvError;
use zlink::tokio::unix::Stream;

type Connection = zlink::Connection<Stream>;

/// The client has gone.
struct Gone;

impl<E: std::error::Error> From<E> for Gone {
    fn from(error: E) -> Self {
        tracing::debug!(%error, "a client has gone");
        Self
    }
}

/// How often a long call tells of its progress.
const PULSE: Duration = Duration::from_millis(100);

/// Answers one client until it goes.
pub(crate) async fn converse(daemon: Rc<Daemon>, connection: Connection) {
    let mut client = Client { daemon, connection, remains: Vec::new() };
    while let Ok(()) = client.turn().await {}
    let Client { connection, remains, .. } = client;
    drop(connection);
    crate::spares::clear_after(remains).await;
}

struct Client {
    daemon: Rc<Daemon>,
    connection: Connection,
    /// What is left of the spares that it took, to be cleared away once it has gone.
    remains: Vec<Remains>,
}

/// A call that is being answered.
struct Call {
    method: Method,
    more: bool,
    fds: Vec<OwnedFd>,
    since: Instant,
}

impl Client {
    async fn turn(&mut self) -> Result<(), Gone> {
        let (call, fds) = self.connection.receive_call::<MethodCall>().await?;
        let since = Instant::now();
        let (untyped, more) = (call.method().clone(), call.more());
        drop(call);
        for fd in &fds {
            // The varlink library receives them without that mark; programs that the daemon starts must not get them.
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
        }
        if untyped.method.starts_with("org.varlink.service.") {
            return self.describe(&untyped).await;
        }
        if !DESCRIBED.iter().any(|name| {
            untyped.method.strip_prefix(pando_api::INTERFACE).and_then(|rest| rest.strip_prefix('.')) == Some(name)
        }) {
            return self.varlink_error("MethodNotFound", &serde_json::json!({ "method": untyped.method })).await;
        }
        match untyped.typed() {
            Ok(method) => self.answer(Call { method, more, fds, since }).await,
            Err(error) => {
                self.fault(&failure::bad("parameters", format!("the call's parameters cannot be read: {error}"))).await
            }
        }
    }

    async fn answer(&mut self, call: Call) -> Result<(), Gone> {
        let daemon = Rc::clone(&self.daemon);
        let Call { method, more, fds, since } = call;
        let reply = match method {
            Method::Run { name, source, spec, process } => {
                return self.run(run::Order { name, source, spec, process, stdio: fds }, more, since).await;
            }
            Method::Exec { name, process } => {
                let started = match daemon.guest(&name) {
                    Ok(guest) => exec::exec(&daemon, &guest, process, fds).await,
                    Err(fault) => Err(fault),
                };
                return self.follow(&name, started, more, since).await;
            }
            Method::Copy { name, path, direction } => {
                let guest = match daemon.guest(&name) {
                    Ok(guest) => guest,
                    Err(fault) => return self.fault(&fault).await,
                };
                return match copy::copy(&daemon, &guest, path, direction, fds).await {
                    Ok(copy::Copy::Beside(started)) => self.follow(&name, Ok(started), more, since).await,
                    Ok(copy::Copy::Alone(running)) => self.see_home(&guest, &running, more, since).await,
                    Err(fault) => self.fault(&fault).await,
                };
            }
            Method::Create { name, source, spec, start } => {
                return self.create(create::Order { name, source, spec, start }, more).await;
            }
            Method::ExportImage { image } => image::export(&daemon, &image, fds).await.map(|()| Reply::Done {}),
            Method::ImportImage { image } => {
                image::import(&daemon, image, fds).await.map(|held| Reply::Image { image: held.status() })
            }
            Method::Unify { dry_run } => return self.unify(dry_run, more).await,
            Method::Events {} => return self.events().await,
            Method::Log { name } => return self.log(&name).await,
            Method::TakeSpare {} => return self.spare().await,
            Method::Quit {} => {
                self.reply(Reply::Done {}, false, vec![]).await?;
                daemon.quit.notify_one();
                return Ok(());
            }
            other => lasting(&daemon, other).await,
        };
        match reply {
            Ok(reply) => self.reply(reply, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    async fn reply(&mut self, reply: Reply, continues: bool, fds: Vec<OwnedFd>) -> Result<(), Gone> {
        let reply = zlink::Reply::new(Some(reply)).set_continues(Some(continues));
        Ok(self.connection.send_reply(&reply, fds).await?)
    }

    /// Gives away the beginning of a transaction, if one was made ahead. The descriptors are closed here once they are sent.
    async fn spare(&mut self) -> Result<(), Gone> {
        let Some(spare) = self.daemon.spares.take() else {
            return self.reply(Reply::Spare { spare: None }, false, vec![]).await;
        };
        let HandedOver { name, descriptors, remains } = spare.hand_over();
        self.remains.push(remains);
        self.reply(Reply::Spare { spare: Some(name) }, false, descriptors).await
    }

    async fn fault(&mut self, fault: &Fault) -> Result<(), Gone> {
        let error = ErrorReply {
            error: fault.error_name(),
            parameters: serde_json::json!({ "object": fault.object, "message": failure::without_numbers(&fault.message) }),
        };
        Ok(self.connection.send_error(&error, vec![]).await?)
    }

    async fn varlink_error(&mut self, name: &str, parameters: &serde_json::Value) -> Result<(), Gone> {
        let error = ErrorReply { error: format!("org.varlink.service.{name}"), parameters: parameters.clone() };
        Ok(self.connection.send_error(&error, vec![]).await?)
    }

    /// The interface that every varlink service has.
    async fn describe(&mut self, call: &MethodCall) -> Result<(), Gone> {
        let parameters = match call.method.rsplit('.').next() {
            Some("GetInfo") => serde_json::json!({
                "vendor": "Pando", "product": "Pando", "version": env!("CARGO_PKG_VERSION"), "url": "https://github.com/pando/pando",
                "interfaces": ["org.varlink.service", pando_api::INTERFACE],
            }),
            Some("GetInterfaceDescription") => {
                match call.parameters.get("interface").and_then(serde_json::Value::as_str) {
                    Some(pando_api::INTERFACE) => serde_json::json!({ "description": pando_api::DESCRIPTION }),
                    other => {
                        return self
                            .varlink_error("InterfaceNotFound", &serde_json::json!({ "interface": other }))
                            .await;
                    }
                }
            }
            _ => return self.varlink_error("MethodNotFound", &serde_json::json!({ "method": call.method })).await,
        };
        Ok(self.connection.send_reply(&zlink::Reply::new(Some(parameters)), vec![]).await?)
    }

    async fn run(&mut self, order: run::Order, more: bool, since: Instant) -> Result<(), Gone> {
        let daemon = Rc::clone(&self.daemon);
        let (guest, running) = match run::run(&daemon, order).await {
            Ok(started) => started,
            Err(fault) => return self.fault(&fault).await,
        };
        let (notice, exit_code) = self.life_of(&guest, &running, more).await?;
        self.ended(notice, exit_code, since).await
    }

    /// Tells that a guest runs; how it ends.
    async fn life_of(
        &mut self,
        guest: &Guest,
        running: &Running,
        more: bool,
    ) -> Result<(ProcessNotice, Option<i32>), Gone> {
        let notice = ProcessNotice { guest: guest.name.to_string(), pid: running.pid, ..ProcessNotice::default() };
        if more {
            self.reply(Reply::Notice { notice: notice.clone() }, true, vec![]).await?;
        }
        Ok((notice, run::outcome(running).await))
    }

    /// Tells of a process that was started, and of its end.
    async fn follow(
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
        self.ended(notice, exit_code, since).await
    }

    /// The same of a guest that runs for an errand: what its end leaves is cleared away before that is told, and it may be started at once.
    async fn see_home(&mut self, guest: &Rc<Guest>, running: &Running, more: bool, since: Instant) -> Result<(), Gone> {
        let (notice, exit_code) = self.life_of(guest, running, more).await?;
        match stop::has_ended(guest).await {
            Ok(()) => self.ended(notice, exit_code, since).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    async fn ended(&mut self, notice: ProcessNotice, exit_code: Option<i32>, since: Instant) -> Result<(), Gone> {
        let micros = i64::try_from(since.elapsed().as_micros()).ok();
        self.reply(Reply::Notice { notice: ProcessNotice { exited: true, exit_code, micros, ..notice } }, false, vec![])
            .await
    }

    async fn create(&mut self, order: create::Order, more: bool) -> Result<(), Gone> {
        let (sender, progress) = mpsc::channel();
        let daemon = Rc::clone(&self.daemon);
        let making = tokio::task::spawn_local(async move { create::create(&daemon, order, sender).await });
        match self.accompany(making, &progress, more, "making the guest").await? {
            Ok(()) => self.reply(Reply::Progress { progress: None }, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    async fn unify(&mut self, dry_run: bool, more: bool) -> Result<(), Gone> {
        let (sender, progress) = mpsc::channel();
        let daemon = Rc::clone(&self.daemon);
        let unifying = tokio::task::spawn_local(async move { unify::unify(&daemon, dry_run, &sender).await });
        match self.accompany(unifying, &progress, more, "unifying the guests").await? {
            Ok(unification) => self.reply(Reply::Unification { unification }, false, vec![]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }

    /// Tells of the progress of something long until it is done. It goes on without a client: half of it is worth nothing to anybody.
    async fn accompany<T>(
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
                Err(_) => {
                    if let Some(latest) = latest(progress, &mut stage).filter(|_| more) {
                        self.reply(Reply::Progress { progress: Some(latest) }, true, vec![]).await?;
                    }
                }
            }
        }
    }

    async fn events(&mut self) -> Result<(), Gone> {
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

    async fn log(&mut self, name: &str) -> Result<(), Gone> {
        let opened = self.daemon.guest(name).and_then(|guest| {
            let path = guest.log(&self.daemon.places);
            let open = || match File::open(&path) {
                // It has said nothing yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => File::open("/dev/null"),
                opened => opened,
            };
            open().map_err(|error| failure::io("opening the guest's log", name, &error))
        });
        match opened {
            Ok(log) => self.reply(Reply::Done {}, false, vec![log.into()]).await,
            Err(fault) => self.fault(&fault).await,
        }
    }
}

/// The newest progress that was told since the last time, with its stage.
fn latest(progress: &mpsc::Receiver<Progress>, stage: &mut String) -> Option<Progress> {
    let mut newest = None;
    for mut told in progress.try_iter() {
        if told.stage.is_empty() {
            told.stage.clone_from(stage);
        } else {
            stage.clone_from(&told.stage);
        }
        newest = Some(told);
    }
    newest
}

#[derive(Debug, Serialize)]
struct ErrorReply {
    error: String,
    parameters: serde_json::Value,
}

/// The methods of the interface.
const DESCRIBED: [&str; 36] = [
    "Version",
    "Quit",
    "Run",
    "Exec",
    "Signal",
    "Create",
    "Start",
    "Stop",
    "Restart",
    "Kill",
    "Remove",
    "List",
    "Inspect",
    "Security",
    "Processes",
    "Set",
    "Address",
    "Stats",
    "Watchdog",
    "Events",
    "Log",
    "TakeSpare",
    "Copy",
    "Freeze",
    "Clone",
    "Restore",
    "Move",
    "Images",
    "RemoveImage",
    "InspectImage",
    "ExportImage",
    "ImportImage",
    "Usage",
    "Verify",
    "Collect",
    "Unify",
];

/// Calls that take their time and have one reply.
async fn lasting(daemon: &Rc<Daemon>, method: Method) -> Result<Reply, Fault> {
    match method {
        Method::Start { name } => start::start(daemon, &daemon.guest(&name)?).await?,
        Method::Stop { name, signal, grace } => {
            stop::stop(daemon, &daemon.guest(&name)?, signal.as_deref(), grace).await?;
        }
        Method::Restart { name, grace } => stop::restart(daemon, &daemon.guest(&name)?, grace).await?,
        Method::Freeze { name, image, stop, memory, wait } => {
            let order = freeze::Order { image, stop, memory, answer: None };
            let held = freeze::freeze(daemon, &daemon.guest(&name)?, order).await?;
            if !memory && !held.is_kept() {
                let kept = image::keep(daemon, &held);
                if wait {
                    kept.await.map_err(|error| {
                        failure::bad(&name, format!("keeping the image failed inside Pando: {error}"))
                    })??;
                }
            }
            return Ok(Reply::Image { image: held.status() });
        }
        Method::Clone { image, names, addresses, signal } => {
            let identity = identity::Identity::wished(&image, &names, addresses, signal.as_deref())?;
            clone::clone_all(daemon, &image, &names, identity).await?;
        }
        Method::Move { pids, to } => {
            let (from, moved) = moving::move_processes(daemon, &pids, &to).await?;
            let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            let (processes, threads) = (number(moved.processes), number(moved.threads));
            let pause_us = i64::try_from(moved.pause.as_micros()).unwrap_or(i64::MAX);
            return Ok(Reply::Moved { from, processes, threads, pause_us });
        }
        Method::Restore { image, replace } => {
            return restore::restore(daemon, &image, replace).await.map(|name| Reply::Restored { name });
        }
        Method::Remove { name, force } => {
            let guest = daemon.guest(&name)?;
            remove::remove(daemon, &guest, force).await?;
            connections::give_up_of(daemon, &guest);
        }
        Method::Address { name, change, address } => {
            address::change(daemon, &daemon.guest(&name)?, change, address).await?;
        }
        Method::Set { name, assignments } => {
            let outcome = set::set(daemon, &daemon.guest(&name)?, &assignments).await?;
            return Ok(Reply::Applied { applied: outcome.applied, at_next_start: outcome.at_next_start });
        }
        Method::Usage {} => return storage::usage(daemon).await.map(|usage| Reply::Usage { usage }),
        Method::Verify { repair, places } => {
            let verified = storage::verify(daemon, repair, places).await;
            return verified.map(|verification| Reply::Verification { verification });
        }
        Method::Collect {} => return collect::told(daemon).await.map(|collection| Reply::Collection { collection }),
        at_once => return immediate(daemon, at_once),
    }
    Ok(Reply::Done {})
}

/// Calls that wait for nothing.
fn immediate(daemon: &Rc<Daemon>, method: Method) -> Result<Reply, Fault> {
    match method {
        Method::Version {} => Ok(Reply::Version {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: i32::try_from(std::process::id()).unwrap_or(0),
            root: daemon.places.root().to_string_lossy().into_owned(),
        }),
        Method::List {} => {
            let guests = daemon.guests.borrow();
            // What is merely being cleared away is nobody's guest any more.
            Ok(Reply::Guests {
                guests: guests.values().filter(|guest| !guest.is_leaving()).map(|guest| guest.status()).collect(),
            })
        }
        Method::Images {} => {
            Ok(Reply::Images { images: daemon.images.borrow().values().map(|held| held.status()).collect() })
        }
        Method::RemoveImage { image } => image::remove(daemon, &image).map(|()| Reply::Done {}),
        Method::InspectImage { image } => image::inspect(daemon, &image).map(|image| Reply::ImageInspection { image }),
        Method::Inspect { name } => inspect(daemon, &name),
        Method::Security { name } => {
            crate::security::in_force(daemon, &name).map(|security| Reply::Security { security })
        }
        Method::Processes { name: Some(name), .. } => {
            let guest = daemon.guest(&name)?;
            guest.life()?;
            Ok(Reply::Processes { processes: processes::of_guest(daemon, &guest) })
        }
        Method::Processes { name: None, host: true } => Ok(Reply::Processes { processes: processes::of_host(daemon) }),
        Method::Processes { name: None, host: false } => {
            let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
            Ok(Reply::Processes {
                processes: guests.iter().flat_map(|guest| processes::of_guest(daemon, guest)).collect(),
            })
        }
        Method::Signal { name, pid, signal } => send_signal(daemon, &name, pid, signal),
        Method::Kill { name, signal } => {
            stop::kill(daemon, &daemon.guest(&name)?, signal.as_deref())?;
            Ok(Reply::Done {})
        }
        Method::Stats { name, history } => accounting::stats(daemon, name.as_deref(), history),
        Method::Watchdog { policy } => resources::watching::state(daemon, policy.as_deref()),
        _ => Err(failure::bad("method", "the daemon does not know what to do with this call")),
    }
}

fn inspect(daemon: &Daemon, name: &str) -> Result<Reply, Fault> {
    let guest = daemon.guest(name)?;
    let running = guest.running.borrow().clone();
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let inspection = Inspection {
        status: guest.status(),
        spec: guest.spec.borrow().clone(),
        directory: text(guest.directory(&daemon.places)),
        log: text(guest.log(&daemon.places)),
        layers: guest
            .record
            .borrow()
            .layers
            .iter()
            .map(|layer| text(crate::life::layers::path(&daemon.places, layer)))
            .collect(),
        first_id: running
            .as_ref()
            .filter(|life| life.namespace.is_some())
            .map(|life| pando_guest::slot::first_id(life.slot)),
        cgroups: running.iter().flat_map(|life| daemon.field.plot(life.slot).paths()).map(text).collect(),
        limits: resources::held(
            &daemon.resources,
            &guest.name,
            &guest.spec.borrow(),
            &crate::record::room(&guest.directory(&daemon.places)),
        )
        .into_iter()
        .chain(bandwidth_held(daemon, &guest))
        .collect(),
        addresses: running.as_ref().map(|life| daemon.private.addresses(life.slot)).unwrap_or_default(),
    };
    Ok(Reply::Inspection { guest: inspection })
}

/// What a guest is granted of the devices, as the kernel holds it.
fn bandwidth_held(daemon: &Daemon, guest: &crate::guest::Guest) -> Vec<HeldLimit> {
    let spec = guest.spec.borrow();
    let running = guest.running.borrow();
    let shown = running.as_ref().map(|life| daemon.bandwidth.shown(life.slot)).unwrap_or_default();
    let held = |(key, wish): (&'static str, &str)| {
        let limit = HeldLimit { key: key.to_owned(), wish: wish.to_owned(), ..HeldLimit::default() };
        if key == "net.limit_in" {
            let note = "what comes in faster is dropped, by a program on the guest's control group";
            return vec![HeldLimit { note: Some(note.to_owned()), ..limit }];
        }
        let on = |(device, words): &(String, String)| HeldLimit {
            value: Some(format!("{device}: {words}")),
            ..limit.clone()
        };
        if shown.is_empty() { vec![limit.clone()] } else { shown.iter().map(on).collect() }
    };
    spec.net.pairs().into_iter().flat_map(held).collect()
}

fn send_signal(daemon: &Daemon, name: &str, pid: i32, signal: i32) -> Result<Reply, Fault> {
    let guest = daemon.guest(name)?;
    let running = guest.life()?;
    if !running.started_by_clients.borrow().contains(&pid) {
        return Err(failure::bad(
            &pid.to_string(),
            format!("process {pid} was not started by 'run' or 'exec' in guest '{name}', or has ended"),
        ));
    }
    if !(1..=64).contains(&signal) {
        return Err(failure::bad(
            &signal.to_string(),
            format!("{signal} is not a signal's number; they go from 1 to 64"),
        ));
    }
    let sent = if pid == running.pid {
        pidfd::send_signal(&running.trunk, signal)
    } else {
        pidfd::open(pid).and_then(|process| pidfd::send_signal(&process, signal))
    };
    sent.map_err(|error| failure::io("sending a signal", name, &error))?;
    Ok(Reply::Done {})
}

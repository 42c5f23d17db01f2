//! From a call on the wire to what does it, and back.
//!
//! ```text
//!   converse ─▶ turn ─▶ answer ─┬▶ process_life   run, exec, cp: a process and its end
//!                               ├▶ progress       create, pull, push, commit, unify: told of until done
//!                               ├▶ streams        events, a log
//!                               ├▶ transaction    begun inside a program, and kept for it
//!                               ├▶ lasting        takes its time, one reply
//!                               ├▶ immediate      waits for nothing
//!                               └▶ introspection  what every varlink service tells of itself
//! ```

mod immediate;
mod introspection;
mod lasting;
mod process_life;
mod progress;
mod streams;
mod transaction;

use crate::failure;
use crate::launch::exec;
use crate::lifecycle::{copy, create, run};
use crate::state::daemon::Daemon;
use crate::store::{images, tag};
use lasting::lasting;
use pando_api::{Fault, Method, MethodCall, Reply};
use pando_tx::{HandedOver, Remains};
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;
use zlink::tokio::unix::Stream;

type Connection = zlink::Connection<Stream>;

/// The client has gone, and hears no answer.
struct Gone;

impl<E: std::error::Error> From<E> for Gone {
    fn from(error: E) -> Self {
        tracing::debug!(%error, "a client has gone");
        Self
    }
}

/// Answers one client until it goes.
pub(crate) async fn converse(daemon: Rc<Daemon>, connection: Connection) {
    let mut client = Client { daemon, connection, remains: Vec::new(), program: None };
    let mut end = None;
    loop {
        let turn = match &mut end {
            None => client.turn().await,
            // A child that it has forked may have the connection open still.
            Some(end) => tokio::select! {
                turn = client.turn() => turn,
                () = end => Err(Gone),
            },
        };
        if turn.is_err() {
            break;
        }
        if end.is_none() {
            end = client.program.as_ref().map(|program| Box::pin(program.end()));
        }
    }
    let Client { daemon, connection, remains, program } = client;
    drop(connection);
    transaction::end_with(&daemon, program);
    // They may have been given up for this client.
    daemon.descriptors.refill();
    daemon.transaction_reserve.clear_after(remains).await;
}

struct Client {
    daemon: Rc<Daemon>,
    connection: Connection,
    /// What is left of the spares that it took, to be cleared away once it has gone.
    remains: Vec<Remains>,
    /// Whose transactions are kept on this connection, once it has begun one.
    program: Option<transaction::Program>,
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
        if !introspection::describes(&untyped.method) {
            return self.varlink_error("MethodNotFound", &serde_json::json!({ "method": untyped.method })).await;
        }
        match untyped.typed() {
            Ok(method) => self.answer(Call { method, more, fds, since }).await,
            Err(error) => {
                self.fault(&failure::bad("parameters", format!("the call's parameters cannot be read: {error}"))).await
            }
        }
    }

    /// Whether the other side has closed the connection. What it has sent before stays to be read.
    fn has_hung_up(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let (connection, now) = (self.connection.read().read_half(), Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut watched = [PollFd::new(connection, PollFlags::empty())];
        poll(&mut watched, Some(&now)).is_ok() && watched[0].revents().contains(PollFlags::HUP)
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
            Method::Wait { name } => return self.wait(&name, more, since).await,
            Method::Create { name, source, spec, start } => {
                return self.create(create::Order { name, source, spec, start }, more).await;
            }
            Method::ExportImage { image, sign } => {
                let exported = images::export(&daemon, &image, sign, fds).await;
                exported.map(|statement| Reply::Exported { statement })
            }
            Method::ImportImage { image, allow, verify } => {
                let order = images::ImportOrder { name: image, allowed: allow, verify, check: create::check_image };
                images::import(&daemon, order, fds).await.map(|held| Reply::Image { image: held.status() })
            }
            Method::PullImage { reference, missing } => return self.pull(&reference, missing, fds, more).await,
            Method::PushImage { image, to } => return self.push(image, to, fds, more).await,
            Method::Commit { name, image } => return self.commit(name, image, more).await,
            Method::TagImage { image, to } => {
                let tagged = tag::tag(&daemon, &image, &to).await;
                tagged.map(|(pulled, changed)| Reply::Pulled { pulled, changed })
            }
            Method::Unify { dry_run } => return self.unify(dry_run, more).await,
            Method::Events {} => return self.events().await,
            Method::Log { name } => return self.log(&name).await,
            Method::Input { name } => return self.input(&name).await,
            Method::TakeSpare {} => return self.spare().await,
            Method::BeginTransaction {} => return self.begin_transaction(fds).await,
            Method::CommitTransaction { durable } => return self.commit_transaction(durable).await,
            Method::AbortTransaction {} => return self.abort_transaction().await,
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

    /// Gives away the beginning of a transaction, if one was made ahead. The descriptors are closed here once they are
    /// sent.
    async fn spare(&mut self) -> Result<(), Gone> {
        let Some(HandedOver { ticket, descriptors, remains }) = self.daemon.transaction_reserve.take() else {
            return self.reply(Reply::Spare { spare: None }, false, vec![]).await;
        };
        self.remains.push(remains);
        self.reply(Reply::Spare { spare: Some(ticket) }, false, descriptors).await
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
}

#[derive(Debug, Serialize)]
struct ErrorReply {
    error: String,
    parameters: serde_json::Value,
}

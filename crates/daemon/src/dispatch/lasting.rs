//! Calls that take their time and have one reply.

use crate::clone::{clone_guest, identity, restore};
use crate::dispatch::immediate::immediate;
use crate::failure;
use crate::freeze::{freeze_guest, migrate};
use crate::lifecycle::{quarantine, remove, restart, set, start, stop, takeover};
use crate::network::{address, connections, named_networks};
use crate::resources::{admission, reclaiming};
use crate::state::daemon::Daemon;
use crate::store::{collect, images, storage, volumes};
use pando_api::{Fault, Method, Reply};
use std::rc::Rc;

/// Carries out a method that may take long.
pub(super) async fn lasting(daemon: &Rc<Daemon>, method: Method) -> Result<Reply, Fault> {
    match method {
        Method::Start { name } => start::start(daemon, &daemon.guest(&name)?).await?,
        Method::Stop { name, signal, grace } => {
            stop::stop(daemon, &daemon.guest(&name)?, signal.as_deref(), grace).await?;
        }
        Method::Restart { name, grace } => restart::restart(daemon, &daemon.guest(&name)?, grace).await?,
        Method::Freeze { name, image, stop, memory, wait, unchecked } => {
            let order = freeze_guest::Order { image, stop, memory, unchecked, answer: None };
            let held = freeze_guest::freeze(daemon, &daemon.guest(&name)?, order).await?;
            if !memory && !held.is_kept() {
                let kept = images::keep(daemon, &held);
                if wait {
                    kept.await.map_err(|error| {
                        failure::bad(&name, format!("keeping the image failed inside Pando: {error}"))
                    })??;
                }
            }
            return Ok(Reply::Image { image: held.status() });
        }
        Method::Clone { image, names, addresses, signal, admit, overbook } => {
            let wish = admission::Wish::read(admit.as_deref(), overbook.as_deref())?;
            let identity = identity::Identity::requested(&image, &names, addresses, signal.as_deref())?;
            clone_guest::clone_all(daemon, &image, &names, (identity, wish)).await?;
        }
        Method::Move { pids, to } => {
            let (from, moved) = migrate::move_processes(daemon, &pids, &to).await?;
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
        Method::Repair { name } => {
            let guest = daemon.guest(&name)?;
            let _doing = guest.begin_in_trouble("repaired")?;
            let done = quarantine::repair(daemon, &guest)?;
            takeover::again(daemon, &guest).await;
            return Ok(Reply::Repaired { done });
        }
        Method::Address { name, change, address } => {
            address::change(daemon, &daemon.guest(&name)?, change, address).await?;
        }
        Method::Set { name, assignments } => {
            let outcome = set::set(daemon, &daemon.guest(&name)?, &assignments).await?;
            return Ok(Reply::Applied { applied: outcome.applied, at_next_start: outcome.at_next_start });
        }
        Method::Reclaim { name } => return reclaiming::reclaim(daemon, name.as_deref()).await,
        Method::Usage {} => return storage::usage(daemon).await.map(|usage| Reply::Usage { usage }),
        Method::Verify { repair, places } => {
            let verified = storage::verify(daemon, repair, places).await;
            return verified.map(|verification| Reply::Verification { verification });
        }
        Method::Collect {} => return collect::told(daemon).await.map(|collection| Reply::Collection { collection }),
        beside => return beside_guests(daemon, beside).await,
    }
    Ok(Reply::Done {})
}

/// The same for what guests are given: volumes and networks.
async fn beside_guests(daemon: &Rc<Daemon>, method: Method) -> Result<Reply, Fault> {
    match method {
        Method::CreateVolume { name } => volumes::make(&daemon.places, &name).map(drop)?,
        Method::Volumes {} => return volumes::list(daemon).map(|volumes| Reply::Volumes { volumes }),
        Method::RemoveVolume { name } => volumes::remove(daemon, &name).await?,
        Method::WrittenDirectories {} => return Ok(volumes::written_directories(daemon)),
        Method::CreateNetwork { name, subnet, internal } => {
            named_networks::make(daemon, &name, subnet.as_deref(), internal).await?;
        }
        Method::RemoveNetwork { name } => named_networks::remove(daemon, &name).await?,
        at_once => return immediate(daemon, at_once),
    }
    Ok(Reply::Done {})
}

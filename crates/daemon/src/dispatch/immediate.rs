//! Calls that wait for nothing.

use crate::inspection::inspect;
use crate::lifecycle::{pause, rename, signal, stop};
use crate::network::named_networks;
use crate::resources::accounting;
use crate::state::daemon::Daemon;
use crate::state::processes;
use crate::store::{images, pulled_images};
use crate::{failure, resources};
use pando_api::{Fault, Method, Reply};
use std::rc::Rc;

/// Carries out a method that is answered at once.
pub(super) fn immediate(daemon: &Rc<Daemon>, method: Method) -> Result<Reply, Fault> {
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
        Method::ReleaseImage { image } => images::release(daemon, &image).map(|()| Reply::Done {}),
        Method::RemoveImage { image } => removed(daemon, &image).map(|()| Reply::Done {}),
        Method::PulledImages {} => Ok(Reply::PulledImages { pulled_images: pulled_images::list(daemon) }),
        Method::PrunePulledImages { unused_for } => {
            let pruned = pulled_images::prune(daemon, unused_for.unwrap_or(0));
            pruned.map(|removed| Reply::Pruned { removed })
        }
        Method::InspectImage { image } => images::inspect(daemon, &image).map(|image| Reply::ImageInspection { image }),
        Method::Inspect { name } => inspect::inspect(daemon, &name),
        Method::Security { name } => {
            crate::inspection::security::in_force(daemon, &name).map(|security| Reply::Security { security })
        }
        Method::Processes { name: Some(name), .. } => {
            let guest = daemon.guest(&name)?;
            guest.life()?;
            Ok(Reply::Processes { processes: processes::of_guest(&daemon.field, &guest) })
        }
        Method::Processes { name: None, host: true } => {
            Ok(Reply::Processes { processes: processes::of_host(&daemon.field) })
        }
        Method::Processes { name: None, host: false } => {
            let guests: Vec<_> = daemon.guests.borrow().values().cloned().collect();
            Ok(Reply::Processes {
                processes: guests.iter().flat_map(|guest| processes::of_guest(&daemon.field, guest)).collect(),
            })
        }
        Method::Signal { name, pid, signal } => signal::send(daemon, &name, pid, signal),
        Method::Pause { name } => pause::pause(daemon, &daemon.guest(&name)?).map(|()| Reply::Done {}),
        Method::Unpause { name } => pause::unpause(daemon, &daemon.guest(&name)?).map(|()| Reply::Done {}),
        Method::Rename { name, to } => rename::rename(daemon, &daemon.guest(&name)?, &to).map(|()| Reply::Done {}),
        Method::Kill { name, signal } => {
            stop::kill(daemon, &daemon.guest(&name)?, signal.as_deref())?;
            Ok(Reply::Done {})
        }
        Method::Networks {} => Ok(Reply::Networks { networks: named_networks::list(daemon) }),
        Method::Reload {} => {
            let crate::settings::Reloaded { applied, at_next_daemon, problems } = crate::settings::reload(daemon);
            Ok(Reply::Reloaded { applied, at_next_daemon, problems })
        }
        Method::Stats { name, history } => accounting::stats(daemon, name.as_deref(), history),
        Method::Watchdog { policy } => resources::watching::state(daemon, policy.as_deref()),
        _ => Err(failure::bad("method", "the daemon does not know what to do with this call")),
    }
}

/// Removes an image, frozen or pulled.
fn removed(daemon: &Rc<Daemon>, image: &str) -> Result<(), Fault> {
    let is_frozen = daemon.images.borrow().contains_key(image);
    match pulled_images::named(daemon, image).filter(|_| !is_frozen) {
        Some(reference) => pulled_images::remove(daemon, &reference),
        None => images::remove(daemon, image),
    }
}

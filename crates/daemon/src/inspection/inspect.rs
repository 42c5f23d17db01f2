//! A guest, whole: what it was made from, what it is held to, where it lies.

use crate::network::bandwidth::Bandwidth;
use crate::resources;
use crate::state::daemon::Daemon;
use crate::state::guest::Guest;
use crate::state::record;
use crate::store::layers;
use pando_api::{Fault, HeldLimit, Inspection, Reply};
use pando_guest::slot;
use std::path::PathBuf;

/// All that is known of it.
pub(crate) fn inspect(daemon: &Daemon, name: &str) -> Result<Reply, Fault> {
    let guest = daemon.guest(name)?;
    let running = guest.running.borrow().clone();
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut status = guest.status();
    if running.is_some() {
        status.oom_kills = Some(daemon.resources.oom_kills(&guest.name)).filter(|kills| *kills > 0);
    }
    let inspection = Inspection {
        status,
        spec: guest.spec.borrow().clone(),
        directory: text(guest.directory(&daemon.places)),
        log: text(guest.log(&daemon.places)),
        layers: guest.record.borrow().layers.iter().map(|layer| text(layers::path(&daemon.places, layer))).collect(),
        first_id: running.as_ref().filter(|life| life.namespace.is_some()).map(|life| slot::first_id(life.slot)),
        cgroups: running.iter().flat_map(|life| daemon.field.plot(life.slot).paths()).map(text).collect(),
        limits: resources::held(
            &daemon.resources,
            &guest.name,
            &guest.spec.borrow(),
            &record::room(&guest.directory(&daemon.places)),
        )
        .into_iter()
        .chain(bandwidth_held(&daemon.bandwidth, &guest))
        .collect(),
        addresses: running.as_ref().map(|life| daemon.private.addresses(life.slot)).unwrap_or_default(),
    };
    Ok(Reply::Inspection { guest: inspection })
}

/// What a guest is granted of the devices, as the kernel holds it.
fn bandwidth_held(bandwidth: &Bandwidth, guest: &Guest) -> Vec<HeldLimit> {
    let spec = guest.spec.borrow();
    let running = guest.running.borrow();
    let shown = running.as_ref().map(|life| bandwidth.shown(life.slot)).unwrap_or_default();
    let held = |(key, request): (&'static str, &str)| {
        let limit = HeldLimit { key: key.to_owned(), request: request.to_owned(), ..HeldLimit::default() };
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

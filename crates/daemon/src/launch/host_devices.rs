//! Devices of the host's that guests may use.

use crate::failure;
use crate::init::prewarmed::PrewarmedInit;
use crate::state::daemon::Daemon;
use crate::store::volumes;
use pando_api::{Fault, Spec};
use pando_guest::GuestName;
use pando_guest::host_device::{self, DeviceRefusal, HostDevice};

/// Refuses a spec with a device that no guest is given.
pub(crate) fn check(daemon: &Daemon, spec: &Spec) -> Result<(), Fault> {
    find(daemon, spec).map(drop).map_err(|error| failure::bad("devices", error.to_string()))
}

fn find(daemon: &Daemon, spec: &Spec) -> Result<Vec<HostDevice>, DeviceRefusal> {
    if spec.devices.is_empty() {
        return Ok(Vec::new());
    }
    host_device::find(&spec.devices, &volumes::written_by_guests(daemon, spec))
}

/// Gives a guest that is about to run the devices of its spec. They are looked for anew: the host may use one by now
/// that it did not use when the guest was made.
pub(crate) fn give(daemon: &Daemon, name: &GuestName, spec: &Spec, init: &PrewarmedInit) -> Result<(), Fault> {
    if spec.devices.is_empty() {
        return Ok(());
    }
    let refused = |error: DeviceRefusal| {
        failure::bad(name.as_ref(), format!("guest '{name}' cannot be started as asked: {error}"))
    };
    let devices = find(daemon, spec).map_err(refused)?;
    init.give_devices(spec.security_profile(), &devices, &daemon.field)
        .map_err(|error| failure::call(&format!("giving guest '{name}' its devices"), name.as_ref(), &error))
}

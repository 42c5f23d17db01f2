//! Holding a guest to its profile's devices.

use crate::policy::devices::Rule;
use crate::policy::{devices, profile};
use pando_api::Profile;
use pando_kernel::bpf::{self, Hook};
use pando_kernel::cgroup::Field;
use pando_kernel::{CallError, Context};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

/// The name that the kernel knows the program by.
pub const NAME: &str = "pando_devices";

/// Holds whatever will live on a plot to the devices of a profile, for as long as its group exists: by a program in
/// version 2 of control groups, by the devices controller where there is version 1 alone.
///
/// # Errors
///
/// Where the kernel has neither, or a group above forbids it.
pub fn hold(profile: Profile, field: &Field, slot: u32) -> Result<(), CallError> {
    if let Some(group) = field.plot(slot).guest() {
        let doing = || format!("allowing devices to {}", group.display());
        let directory = File::open(&group).context(doing)?;
        return bpf::attach_to_cgroup(program(profile)?.as_fd(), directory.as_fd(), Hook::CgroupDevice).context(doing);
    }
    match field.seat("devices") {
        Some(seat) => by_controller(profile, &seat.of_plot(slot).group),
        None => Err(std::io::Error::other("there are neither control groups of version 2 nor the devices controller"))
            .context(|| "allowing devices".into()),
    }
}

/// The program of a profile, which the kernel holds once.
fn program(profile: Profile) -> Result<&'static OwnedFd, CallError> {
    static PROGRAMS: [OnceLock<OwnedFd>; 3] = [const { OnceLock::new() }; 3];
    let place = &PROGRAMS[profile as usize];
    if let Some(program) = place.get() {
        return Ok(program);
    }
    let instructions = devices::program(&profile::of(profile).devices());
    let loaded = bpf::load_device_program(&instructions, NAME).context(|| "loading the list of devices".into())?;
    Ok(place.get_or_init(|| loaded))
}

/// Lets a guest that is held to its profile's devices use these too. It is for a place where nothing of the guest's
/// runs yet, and that this process holds.
///
/// # Errors
///
/// The kernel's. Where no list could be put in force there is none to add to.
pub fn widen(profile: Profile, more: &[Rule], field: &Field, slot: u32) -> Result<(), CallError> {
    if let Some(group) = field.plot(slot).guest() {
        let doing = || format!("allowing devices to {}", group.display());
        let directory = File::open(&group).context(doing)?;
        let rules: Vec<Rule> = profile::of(profile).devices().into_iter().chain(more.iter().copied()).collect();
        let wider = bpf::load_device_program(&devices::program(&rules), NAME).context(doing)?;
        let (before, hook) = (program(profile)?.as_fd(), Hook::CgroupDevice);
        return match bpf::replace_at_cgroup(wider.as_fd(), directory.as_fd(), hook, before) {
            // This kernel let no list come into force.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done.context(doing),
        };
    }
    let Some(seat) = field.seat("devices") else { return Ok(()) };
    let path = seat.of_plot(slot).group.join("devices.allow");
    more.iter().try_for_each(|rule| {
        std::fs::write(&path, rule.to_string()).context(|| format!("writing '{rule}' to {}", path.display()))
    })
}

fn by_controller(profile: Profile, group: &Path) -> Result<(), CallError> {
    let write = |file: &str, text: &str| {
        let path = group.join(file);
        std::fs::write(&path, text).context(|| format!("writing '{text}' to {}", path.display()))
    };
    write("devices.deny", "a")?;
    profile::of(profile).devices().iter().try_for_each(|rule| write("devices.allow", &rule.to_string()))
}

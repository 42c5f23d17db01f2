//! A guest's limits and what holds them, for `inspect`.

use crate::resources::Resources;
use pando_api::{HeldLimit, Spec};
use pando_guest::GuestName;
use pando_limit::disk::{Means, Room};
use pando_limit::{Controller, apply, meter};

/// Every limit that a spec speaks of, with the file that holds it where the guest runs.
pub(crate) fn held(resources: &Resources, name: &GuestName, spec: &Spec, room: &Room) -> Vec<HeldLimit> {
    let mut all: Vec<HeldLimit> = Vec::new();
    for (key, request) in spec.requests() {
        let limit = HeldLimit {
            key: key.to_owned(),
            request: request.to_owned(),
            note: note(resources, key),
            ..HeldLimit::default()
        };
        if key.starts_with("disk.")
            && let Some(means) = room.means()
        {
            all.push(on_disk(limit, room, means));
            continue;
        }
        let found = resources.with(name, |tenant| {
            let settings = tenant.settings.iter().filter(|setting| setting.holds(key));
            settings.filter_map(|setting| apply::read_back(setting, &tenant.groups)).collect::<Vec<_>>()
        });
        let found = found.unwrap_or_default();
        if found.is_empty() {
            all.push(HeldLimit { value: weight(resources, name, key), ..limit });
            continue;
        }
        for (file, value) in found {
            all.push(HeldLimit {
                file: Some(file.to_string_lossy().into_owned()),
                value: Some(value),
                ..limit.clone()
            });
        }
    }
    all
}

/// How room on the disk is bounded, and what the file system says of it.
fn on_disk(limit: HeldLimit, room: &Room, means: Means) -> HeldLimit {
    let place = if means == Means::Image { room.image().path() } else { room.files() };
    let note = match means {
        Means::Project(number) => format!("project {number}: a quota that the file system keeps"),
        Means::Subvolume => {
            "a quota group of btrfs, which counts bytes alone; df inside shows the whole file system".to_owned()
        }
        Means::Image => "a file system of its own in a file whose room is set aside, with direct I/O".to_owned(),
    };
    let value = room.held().map(|(bytes, inodes)| if limit.key == "disk.size" { bytes } else { inodes });
    let file = Some(place.to_string_lossy().into_owned());
    HeldLimit { file, value: value.map(|value| value.to_string()), note: Some(note), ..limit }
}

/// Shares and reservations are held by a weight, which depends on who else is busy.
fn weight(resources: &Resources, name: &GuestName, key: &str) -> Option<String> {
    if !matches!(key, "cpu.share" | "cpu.reserve") {
        return None;
    }
    resources.with(name, |tenant| meter::weight(&tenant.groups)).flatten().map(|weight| format!("weight {weight}"))
}

/// What this kernel cannot keep of a limit.
fn note(resources: &Resources, key: &str) -> Option<String> {
    let legacy = |controller| resources.is_legacy(controller);
    let note = match key {
        "memory.reserve" if legacy(Controller::Memory) => {
            "best effort: version 1 of control groups knows a soft limit only, and the watchdog looks after the rest"
        }
        "io.write_rate" | "io.write_ops" if legacy(Controller::Io) => {
            "direct writes only: version 1 of control groups cannot hold back what is written through the page cache"
        }
        "files_total" => "by Pando, which counts them once a second: the kernel counts no open files of a group",
        "memory.locked" | "memory.anonymous" | "memory.virtual_size" | "files" => {
            "of each process, by its resource limits"
        }
        _ => return None,
    };
    Some(note.to_owned())
}

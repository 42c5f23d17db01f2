//! Whether the namespaces and control groups of an image that was read can be: who and what is in each, and that all is
//! bounded.

use crate::disk::wrong::{Wrong, ensure, is_path};
use crate::image::control_group::{DEEPEST_GROUP, MOST_GROUPS, SETTINGS};
use crate::image::memory::PAGE;
use crate::image::mount::{MOST_MOUNT_CHANGES, is_made, path};
use crate::image::namespace::{
    LONGEST_DEVICE_NAME, MOST_IPC_SPACES, MOST_MOUNT_SPACES, MOST_NET_SETTINGS, MOST_NET_SPACES, MOST_RANGES,
    MOST_USER_SPACES, PACKETS,
};
use crate::image::namespace_kind::{HOST_NAMES, IPC, Kind, MOUNTS, NETWORK, USERS};
use crate::image::{FileKind, Image, Link, MountChange, NetDevice, Process, Thread, made_mounts};
use pando_kernel::network::settings::NETWORK_SETTINGS;

/// Namespaces, and who and what is in them.
pub(crate) fn spaces(image: &Image) -> Result<(), Wrong> {
    let count = image.mount_spaces.len();
    let bounded = count <= MOST_MOUNT_SPACES
        && image.ipc_spaces <= MOST_IPC_SPACES
        && image.net_spaces.len() <= MOST_NET_SPACES
        && image.user_spaces.len() <= MOST_USER_SPACES;
    ensure(bounded, || "it has too many namespaces".into())?;
    let is_setting = |(path, value): &(String, String)| {
        let below = path.strip_prefix(NETWORK_SETTINGS).is_some_and(|rest| rest.starts_with('/'));
        below && is_plain(path) && value.len() <= PAGE as usize && is_path(path).is_ok()
    };
    let of_spaces = image.net_spaces.iter().map(|space| &space.settings);
    let mut settings = std::iter::once(&image.net_settings).chain(of_spaces);
    let right = settings.all(|all| all.len() <= MOST_NET_SETTINGS && all.iter().all(is_setting));
    ensure(right, || "a setting of its network is none".into())?;
    let is_device = |device: &NetDevice| {
        let name = &device.name;
        let plain = name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%'));
        (1..=LONGEST_DEVICE_NAME).contains(&name.len()) && plain && PACKETS.contains(&device.longest)
    };
    ensure(image.net_device.as_ref().is_none_or(is_device), || "its network device is none".into())?;
    let mut behind = 0;
    for contents in made_mounts::contents(image) {
        // Each is in one of them.
        let follows =
            contents.start >= behind && contents.start <= contents.end && contents.end <= image.contents.len();
        ensure(follows, || "a file system in memory is none".into())?;
        behind = contents.end;
    }
    ensure(image.mounts.len() <= MOST_MOUNT_CHANGES, || "it has too many mounts".into())?;
    image.mounts.iter().try_for_each(|change| mount_change(image, 0, change))?;
    let is_root = |change: &MountChange| is_made(change) && path(change) == "/";
    ensure(!image.mounts.iter().any(is_root), || "the first process has another root".into())?;
    for (number, space) in image.mount_spaces.iter().enumerate() {
        ensure(space.changes.len() <= MOST_MOUNT_CHANGES, || "a mount namespace has too many mounts".into())?;
        // What all that follows is mounted in.
        let late = space.changes.iter().skip(1).any(is_root);
        let shares = space.link == Link::Peers && space.changes.iter().any(is_root);
        ensure(!late && !shares, || "the root of a mount namespace is none".into())?;
        space.changes.iter().try_for_each(|change| mount_change(image, number, change))?;
    }
    let known = |space: Option<usize>| space.is_none_or(|space| space < count);
    let of_processes = |process: &Process| {
        known(process.mount_space)
            && process.ipc_space.is_none_or(|space| space < image.ipc_spaces)
            && is_network(image, process.net_space)
            && knows_itself(image, process)
    };
    let of_files =
        image.files.iter().map(|file| file.mount_space).chain(image.pipes.iter().map(|pipe| pipe.mount_space));
    let plain = image.files.iter().filter_map(|file| match &file.kind {
        FileKind::Plain(socket) => Some(socket.net_space),
        _ => None,
    });
    let mut of_sockets = image.unix.iter().map(|socket| socket.net_space).chain(plain);
    let right = image.processes.iter().all(of_processes)
        && of_files.into_iter().all(known)
        && of_sockets.all(|space| is_network(image, space));
    ensure(right, || "a namespace is none".into())
}

fn is_network(image: &Image, space: Option<usize>) -> bool {
    space.is_none_or(|space| space < image.net_spaces.len())
}

/// Whether a process can be in its user namespace, if it has one of its own.
fn knows_itself(image: &Image, process: &Process) -> bool {
    let Some(number) = process.user_space else { return true };
    let bounded = |map: &Vec<[u32; 3]>| {
        map.len() <= MOST_RANGES
            && map
                .iter()
                .all(|[first, outer, count]| first.checked_add(*count).is_some() && outer.checked_add(*count).is_some())
    };
    image.user_spaces.get(number).is_some_and(|space| {
        let known = |thread: &Thread| space.knows(&thread.credentials);
        bounded(&space.users) && bounded(&space.groups) && process.threads.iter().all(known)
    })
}

/// Whether there is such a namespace for a descriptor to lead to.
pub(crate) fn is_namespace(image: &Image, kind: i32, space: Option<usize>) -> bool {
    let count = match Kind::of_flag(kind) {
        Some(HOST_NAMES) => image.host_names.len(),
        Some(MOUNTS) => image.mount_spaces.len(),
        Some(IPC) => image.ipc_spaces,
        Some(NETWORK) => image.net_spaces.len(),
        Some(USERS) => image.user_spaces.len(),
        Some(_) => 0,
        None => return false,
    };
    space.is_none_or(|space| space < count)
}

/// Control groups, and who is in them.
pub(crate) fn control_groups(image: &Image) -> Result<(), Wrong> {
    let all = &image.control_groups;
    ensure(all.groups.len() <= MOST_GROUPS, || "it has too many control groups".into())?;
    let word = |name: &String| name.len() <= 32 && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
    let known =
        |(name, value): &(String, String)| SETTINGS.iter().any(|(one, _)| one == name) && value.len() <= PAGE as usize;
    for group in &all.groups {
        is_path(&group.path)?;
        let deep = group.path.matches('/').count() > DEEPEST_GROUP;
        let right = is_plain(&group.path) && !deep && group.given.iter().all(word) && group.settings.iter().all(known);
        ensure(right, || format!("the control group {} is none", group.path))?;
    }
    if !all.groups.is_empty() {
        is_path(&all.root)?;
    }
    let entered = |process: &Process| process.control_group.is_none_or(|group| group < all.groups.len());
    ensure(all.given.iter().all(word) && image.processes.iter().all(entered), || "a control group is none".into())
}

/// Whether a path is names and no way back up.
fn is_plain(path: &str) -> bool {
    path.split('/').skip(1).all(|name| !matches!(name, "" | "." | ".."))
}

fn mount_change(image: &Image, number: usize, change: &MountChange) -> Result<(), Wrong> {
    match change {
        MountChange::Gone { path } | MountChange::Set { path, .. } | MountChange::Propagate { path, .. } => {
            is_path(path)
        }
        MountChange::Bind { path, from, .. } => {
            is_path(path).and_then(|()| is_path(&from.path))?;
            // Those before are there when it is made, and what it has itself by then.
            ensure(from.space.is_none_or(|space| space <= number), || "a mount is of no namespace".into())
        }
        MountChange::Memory { path, options, .. } | MountChange::Proc { path, options, .. } => {
            is_path(path)?;
            let bounded = !options.contains('\0') && options.len() < PAGE as usize;
            ensure(bounded, || "a file system of a namespace is none".into())
        }
        MountChange::Queues { path, space, .. } => {
            is_path(path)?;
            ensure(*space < image.ipc_spaces, || "message queues are of no namespace".into())
        }
        MountChange::Devices { path, space, .. } => {
            is_path(path)?;
            ensure(*space < image.net_spaces.len(), || "devices are of no namespace".into())
        }
    }
}

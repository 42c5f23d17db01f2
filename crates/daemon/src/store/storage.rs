//! What the store costs and whom, and whether it is whole.

use crate::failure;
use crate::state::daemon::Daemon;
use crate::state::record::{DISK, FILES};
use crate::store::{collect, layers};
use pando_api::{DamagedFile, Fault, GuestUsage, StoreDamage, StoreUsage, Verification};
use pando_kernel::file::directory_chain::Chain;
use pando_kernel::file::tree_copy::{directory_below, names_in};
use pando_store::{Backend, Damage, LayerId, LayerUsage, Repaired, Usage};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes in a block of stat(2).
const BLOCK: u64 = 512;

/// A guest, as far as the store is concerned, to be taken to another thread.
struct Standing {
    name: String,
    files: PathBuf,
    /// The image that its files are in, where they have one.
    disk: PathBuf,
    layers: Vec<LayerId>,
}

fn standing(daemon: &Daemon) -> Vec<Standing> {
    let guests = daemon.guests.borrow();
    let one = |guest: &Rc<crate::state::guest::Guest>| Standing {
        name: guest.name.to_string(),
        files: guest.directory(&daemon.places).join(FILES),
        disk: guest.directory(&daemon.places).join(DISK),
        layers: guest.record.borrow().layers.iter().filter_map(|layer| layers::stored(layer)).collect(),
    };
    guests.values().map(one).collect()
}

/// Adds up what everything in the store takes.
pub(crate) async fn usage(daemon: &Rc<Daemon>) -> Result<StoreUsage, Fault> {
    let (guests, store) = (standing(daemon), Arc::clone(&daemon.store));
    let counted = collect::blocking(move || {
        let mounts = store.open()?;
        let usage = mounts.store().usage()?;
        Ok((mounts.backend(), told_usage(&usage, &guests), usage))
    });
    let (backend, guests, usage) =
        counted.await?.map_err(|error| failure::store("adding up the store", "store", &error))?;
    let backend = match backend {
        Backend::Image => "image",
        Backend::Farm => "farm",
    };
    Ok(StoreUsage {
        backend: backend.to_owned(),
        objects: number(usage.objects),
        bytes: number(usage.bytes),
        apart: guests.1,
        layers: i64::try_from(usage.layers.len()).unwrap_or(i64::MAX),
        guests: guests.0,
    })
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// What each guest takes, and what they would take apart.
fn told_usage(usage: &Usage, guests: &[Standing]) -> (Vec<GuestUsage>, i64) {
    let layers: HashMap<LayerId, &LayerUsage> = usage.layers.iter().map(|layer| (layer.layer, layer)).collect();
    let users = |layer: &LayerId| guests.iter().filter(|guest| guest.layers.contains(layer)).count();
    let mut apart = 0;
    let mut told = Vec::new();
    for guest in guests {
        let (mut own, mut shared) = (disk_use(&guest.files) + disk_use(&guest.disk), 0);
        for (id, layer) in guest.layers.iter().filter_map(|id| Some((id, layers.get(id)?))) {
            apart += layer.apart;
            if users(id) == 1 {
                own += layer.image + layer.own;
                shared += layer.shared;
            } else {
                shared += layer.image + layer.own + layer.shared;
            }
        }
        told.push(GuestUsage { name: guest.name.clone(), own: number(own), shared: number(shared) });
    }
    (told, number(apart))
}

/// Bytes of disk of a file, or of a directory and all below it, each inode once. A guest that runs may change it
/// meanwhile: what vanishes counts nothing, and what it puts in a directory's place leads nowhere.
fn disk_use(path: &Path) -> u64 {
    let Some((parent, name)) = path.parent().zip(path.file_name()) else { return 0 };
    let opened = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let mut use_of = Use { bytes: 0, several: HashSet::new() };
    if let Ok(parent) = opened {
        // What it came to until something could not be entered is as good as it gets.
        let _ = use_of.walk(parent, vec![name.to_owned()]);
    }
    use_of.bytes
}

/// What was counted so far.
struct Use {
    bytes: u64,
    /// Inodes with several names that were counted.
    several: HashSet<u64>,
}

impl Use {
    fn walk(&mut self, directory: OwnedFd, names: Vec<OsString>) -> Result<(), Errno> {
        let mut chain = Chain::new(directory);
        let mut levels = vec![names.into_iter()];
        while let Some(names) = levels.last_mut() {
            let Some(name) = names.next() else {
                levels.pop();
                chain.leave()?;
                continue;
            };
            let Ok(found) = rustix::fs::statat(chain.deepest(), &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            if found.st_nlink == 1 || is_directory || self.several.insert(found.st_ino) {
                self.bytes += found.st_blocks.cast_unsigned() * BLOCK;
            }
            if is_directory && let Ok(below) = directory_below(chain.deepest(), Path::new(&name)) {
                levels.push(names_in(below.as_fd())?.into_iter());
                chain.enter(below)?;
            }
        }
        Ok(())
    }
}

/// Reads everything again; with `repair` puts right what a copy is found of, in guests' own files and below `places`.
pub(crate) async fn verify(daemon: &Rc<Daemon>, repair: bool, places: Vec<String>) -> Result<Verification, Fault> {
    let guests = standing(daemon);
    let (store, beside) = (Arc::clone(&daemon.store), daemon.places.layers());
    let checked = collect::blocking(move || {
        let mounts = store.open()?;
        let store = mounts.store();
        let verified = store.verify()?;
        let repaired = if repair && !verified.damages.is_empty() {
            let given = places.into_iter().map(PathBuf::from);
            let places: Vec<PathBuf> =
                given.chain(guests.iter().map(|guest| guest.files.join("upper"))).chain([beside]).collect();
            store.repair(&verified.damages, &places)?
        } else {
            Vec::new()
        };
        let damages = verified.damages.iter().map(|damage| told_damage(damage, &guests, &repaired)).collect();
        Ok(Verification { objects: number(verified.objects), layers: number(verified.layers), damages })
    });
    checked.await?.map_err(|error| failure::store("verifying the store", "store", &error))
}

fn told_damage(damage: &Damage, guests: &[Standing], repaired: &[Repaired]) -> StoreDamage {
    let mut files = Vec::new();
    for (layer, path) in &damage.files {
        let path = path.to_string_lossy().into_owned();
        let users = guests.iter().filter(|guest| guest.layers.contains(layer));
        let before = files.len();
        files.extend(users.map(|guest| DamagedFile { guest: guest.name.clone(), path: path.clone() }));
        if files.len() == before {
            files.push(DamagedFile { guest: String::new(), path });
        }
    }
    let found = repaired.iter().find(|repaired| repaired.object == damage.object);
    StoreDamage {
        object: damage.object.clone(),
        what: damage.what.clone(),
        files,
        repaired_from: found.map(|repaired| repaired.from.to_string_lossy().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(digit: &str, own: u64, shared: u64) -> LayerUsage {
        LayerUsage { layer: digit.repeat(64).parse().unwrap(), files: 1, image: 10, own, shared, apart: own + shared }
    }

    #[test]
    fn what_two_guests_stand_on_is_nobodys_own() {
        let usage = Usage { layers: vec![layer("a", 100, 7), layer("b", 1_000, 7)], ..Usage::default() };
        let ids: Vec<LayerId> = usage.layers.iter().map(|layer| layer.layer).collect();
        let guest = |name: &str, layer: usize| Standing {
            name: name.to_owned(),
            disk: PathBuf::from("/no/such/disk"),
            files: "/nowhere".into(),
            layers: vec![ids[layer]],
        };
        let (told, apart) = told_usage(&usage, &[guest("one", 0), guest("two", 0), guest("three", 1)]);
        assert_eq!(
            told.iter().map(|guest| (guest.own, guest.shared)).collect::<Vec<_>>(),
            [(0, 117), (0, 117), (1_010, 7)]
        );
        assert_eq!(apart, 107 + 107 + 1_007);
    }
}

//! Captures System V shared memory, semaphores and messages: all that the ipc namespace keeps, whether or not a process
//! uses it now.
//!
//! A clone gets them with the numbers that they had. The kernel of a new namespace counts: 64 places in turn, each time
//! around with another generation. What lies between is made and removed again.

use crate::image::namespace_kind::IPC;
use crate::image::{Keyed, KeyedKind};
use crate::inspect::credentials::IdMaps;
use crate::inspect::proc_file::malformed;
use pando_kernel::{CallError, Context, ipc::sysv};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;

/// Shared memory of this kind is copied through memory of ours: the largest that is.
pub(crate) const LARGEST: u64 = 256 << 20;

/// Captures all of a namespace, the first made first.
pub(crate) fn capture(keys: &Keys, init: i32, maps: &IdMaps) -> Result<Vec<Keyed>, CallError> {
    match keys.lists()?.filter(|lists| lists.any().is_some()) {
        Some(lists) => inside(&IPC.at(init), || lists.read(maps)),
        None => Ok(Vec::new()),
    }
}

/// The first kind of thing that an ipc namespace keeps for System V, if it keeps any.
pub(crate) fn held(at: &str) -> Result<Option<&'static str>, CallError> {
    Ok(Keys::of(at)?.lists()?.and_then(|lists| lists.any()))
}

/// The namespace's lists, open: /proc/sysvipc shows those of whoever opened it. None if the namespace is our own: what
/// is there is not the guest's.
#[derive(Debug)]
pub(crate) struct Keys(Option<[File; 3]>);

impl Keys {
    /// Those of the namespace that a path leads to.
    pub(crate) fn of(at: &str) -> Result<Self, CallError> {
        if IPC.is_ours(at)? {
            return Ok(Self(None));
        }
        let open = |name: &str| {
            let path = format!("/proc/sysvipc/{name}");
            File::open(&path).context(|| format!("opening {path}"))
        };
        inside(at, || Ok(Self(Some([open("shm")?, open("sem")?, open("msg")?]))))
    }

    /// Reads the lists of the namespace's objects as they are now.
    pub(crate) fn lists(&self) -> Result<Option<Lists>, CallError> {
        let Some([shm, sem, msg]) = &self.0 else { return Ok(None) };
        let read = |mut file: &File| {
            let mut text = String::new();
            let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
            read.map(|_| text).context(|| "reading what an ipc namespace keeps".into())
        };
        Ok(Some(Lists { shm: read(shm)?, sem: read(sem)?, msg: read(msg)? }))
    }
}

/// The namespace's lists.
pub(crate) struct Lists {
    pub(crate) shm: String,
    pub(crate) sem: String,
    pub(crate) msg: String,
}

impl Lists {
    /// The first kind of which there is something.
    fn any(&self) -> Option<&'static str> {
        let kinds = [("shared memory", &self.shm), ("semaphores", &self.sem), ("a message queue", &self.msg)];
        kinds.into_iter().find(|(_, text)| !rows(text).is_empty()).map(|(kind, _)| kind)
    }

    fn read(&self, maps: &IdMaps) -> Result<Vec<Keyed>, CallError> {
        let mut all = Vec::new();
        for row in rows(&self.shm) {
            all.push(keyed(&row, [7, 8], maps, |id| {
                let length = number(&row, 3)? as u64;
                let mut content =
                    sysv::segment(id, length.min(LARGEST) as usize).context(|| format!("reading segment {id}"))?;
                let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                content.truncate(used);
                Ok(KeyedKind::Segment { length, content })
            })?);
        }
        for row in rows(&self.sem) {
            all.push(keyed(&row, [4, 5], maps, |id| {
                let values = sysv::semaphores(id, number(&row, 3)? as usize);
                Ok(KeyedKind::Semaphores { values: values.context(|| format!("reading semaphores {id}"))? })
            })?);
        }
        for row in rows(&self.msg) {
            all.push(keyed(&row, [7, 8], maps, |id| {
                let (bytes, count) = (number(&row, 3)? as usize, number(&row, 4)? as usize);
                let messages = sysv::messages(id, count, bytes).context(|| format!("reading queue {id}"))?;
                Ok(KeyedKind::Queue { messages })
            })?);
        }
        Ok(all)
    }
}

pub(crate) type Row = Vec<i64>;

/// The lines behind the title. Modes are octal.
pub(crate) fn rows(text: &str) -> Vec<Row> {
    const MODE: usize = 2;
    let word = |(place, word): (usize, &str)| {
        let base = if place == MODE { 8 } else { 10 };
        i64::from_str_radix(word, base).unwrap_or(0)
    };
    text.lines().skip(1).map(|line| line.split_ascii_whitespace().enumerate().map(word).collect()).collect()
}

pub(crate) fn number(row: &Row, place: usize) -> Result<i64, CallError> {
    row.get(place).copied().ok_or_else(|| malformed("parsing a list of /proc/sysvipc"))
}

fn keyed(
    row: &Row,
    [user, group]: [usize; 2],
    maps: &IdMaps,
    kind: impl FnOnce(i32) -> Result<KeyedKind, CallError>,
) -> Result<Keyed, CallError> {
    let id = number(row, 1)? as i32;
    let owner = (maps.user(number(row, user)? as u32)?, maps.group(number(row, group)? as u32)?);
    Ok(Keyed { id, key: number(row, 0)? as i32, mode: number(row, 2)? as u32, owner, kind: kind(id)? })
}

/// Does something in the ipc namespace that a path leads to.
pub(crate) fn inside<T: Send>(at: &str, act: impl FnOnce() -> Result<T, CallError> + Send) -> Result<T, CallError> {
    let what = || "entering an ipc namespace".to_owned();
    let namespace = File::open(at).context(what)?;
    let done = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let kind = Some(rustix::thread::LinkNameSpaceType::InterProcessCommunication);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).context(what)?;
            act()
        });
        thread.join()
    });
    done.map_err(|_| malformed("reading what an ipc namespace keeps"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_octal_modes() {
        let text = "       key      shmid perms                  size\n     -5 32769  1600 56\n";
        assert_eq!(rows(text), [[-5, 32769, 0o1600, 56]]);
    }
}

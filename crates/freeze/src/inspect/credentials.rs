//! Who a thread is, in the ids of its own user namespace.

use crate::image::Credentials;
use crate::inspect::proc_file::{self, Lines, malformed};
use pando_kernel::CallError;

/// How ids of a user namespace look from here.
#[derive(Debug)]
pub(crate) struct IdMaps {
    users: Vec<[u64; 3]>,
    groups: Vec<[u64; 3]>,
}

impl IdMaps {
    /// Those of a process's user namespace.
    pub(crate) fn of(pid: i32) -> Result<Self, CallError> {
        Ok(Self { users: parse(&proc_file::text(pid, "uid_map")?), groups: parse(&proc_file::text(pid, "gid_map")?) })
    }

    /// A user as the namespace knows it.
    pub(crate) fn user(&self, id: u32) -> Result<u32, CallError> {
        inside(&self.users, id)
    }

    /// A group as the namespace knows it.
    pub(crate) fn group(&self, id: u32) -> Result<u32, CallError> {
        inside(&self.groups, id)
    }
}

pub(crate) fn parse(text: &str) -> Vec<[u64; 3]> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace().map(str::parse);
        Some([words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?])
    };
    text.lines().filter_map(line).collect()
}

/// An id as its owner knows it.
pub(crate) fn inside(map: &[[u64; 3]], id: u32) -> Result<u32, CallError> {
    let id = u64::from(id);
    let found = map.iter().find(|[_, outer, count]| (*outer..outer.saturating_add(*count)).contains(&id));
    found
        .and_then(|[inner, outer, _]| u32::try_from(inner.checked_add(id - outer)?).ok())
        .ok_or_else(|| malformed(format!("looking up id {id} in the guest's range")))
}

/// The credentials of a stopped thread; `status` is its status file.
pub(crate) fn read(status: &Lines, maps: &IdMaps, secure_bits: u64) -> Result<Credentials, CallError> {
    let ids = |key: &str, map: &[[u64; 3]]| {
        let ids: Result<Vec<u32>, _> = status.words(key).map(|word| word.parse().map_err(|_| malformed(key))).collect();
        let ids: Result<Vec<u32>, _> = ids?.into_iter().map(|id| inside(map, id)).collect();
        ids
    };
    let four = |ids: Vec<u32>| <[u32; 4]>::try_from(ids).map_err(|_| malformed("parsing the ids of a thread"));
    let set = |key: &str| status.number(key, 16);
    Ok(Credentials {
        users: four(ids("Uid", &maps.users)?)?,
        groups: four(ids("Gid", &maps.groups)?)?,
        further: ids("Groups", &maps.groups)?,
        capabilities: [set("CapInh")?, set("CapPrm")?, set("CapEff")?, set("CapBnd")?, set("CapAmb")?],
        secure_bits,
        no_new_privileges: status.get("NoNewPrivs") == "1",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_namespace() {
        let map = parse("         0     231072      65536\n");
        assert_eq!(inside(&map, 231_172).unwrap(), 100);
        assert!(inside(&map, 0).is_err());
    }
}

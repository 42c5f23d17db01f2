//! Memory in the buffers of sockets.
//!
//! Version 2 counts it with all other memory. Version 1 does so in a file of its own, and not at all where no bound was
//! written there. A process that sends to itself and never reads then has as much as the whole machine grants to all
//! sockets (tcp(7), tcp_mem; udp(7), udp_mem), beside any limit of memory.
//!
//! ```text
//!   the machine's pool ──/2──▶ all guests together ──▶ each: its limit of memory, else a sixteenth of the pool
//! ```

use crate::groups::{Controller, Groups};
use crate::limits::Memory;
use crate::setting::Setting;
use pando_kernel::CallError;

/// Version 1's file. It bounds sockets of every family that count their buffers, those of UDP too. What was made before
/// there was a bound is not counted.
const FILE: &str = "memory.kmem.tcp.limit_in_bytes";

/// What it comes from, in words that differ from the limit on all other memory.
const KEY: &str = "memory.limit of sockets";

/// What the machine grants to the sockets of one protocol: the low mark, that of pressure, and the most, in pages.
const POOLS: [&str; 2] = ["/proc/sys/net/ipv4/tcp_mem", "/proc/sys/net/ipv4/udp_mem"];

/// The part of the pool that one set of processes may have where no limit of memory is set.
const PART_OF_ONE: u64 = 16;

/// The part of it that all sets together may have: what is left is the host's.
const PART_OF_ALL: u64 = 2;

/// What the machine grants to all sockets, in bytes: the smaller pool of its protocols. `None` where that cannot be
/// read.
pub fn pool() -> Option<u64> {
    POOLS.iter().filter_map(|path| most(&std::fs::read_to_string(path).ok()?)).min()
}

fn most(text: &str) -> Option<u64> {
    let pages: u64 = text.split_ascii_whitespace().nth(2)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// The setting that bounds the sockets in some groups; `None` where they are counted with all other memory, or nothing
/// is known of the pool.
pub(crate) fn setting(memory: &Memory, pool: Option<u64>, groups: &Groups) -> Option<Setting> {
    let own = pool.filter(|_| groups.is_legacy(Controller::Memory))? / PART_OF_ONE;
    let setting = Setting::new(KEY, Controller::Memory, &[FILE], memory.limit.unwrap_or(own), own);
    // Kernels that are built without version 1's accounting of sockets have no such file.
    Some(Setting { optional: true, ..setting })
}

/// Bounds the sockets of all sets of processes together, in the groups that theirs lie in. The kernel begins to count
/// where the first bound is said, for which it changes its own program: with one that stays, no start waits for that.
pub fn bound_all(groups: &Groups, pool: Option<u64>) -> Result<(), CallError> {
    let own = setting(&Memory::default(), pool, groups);
    let all = own.zip(pool).map(|(own, pool)| Setting { value: (pool / PART_OF_ALL).to_string(), ..own });
    all.map_or(Ok(()), |all| crate::apply::make(&all, groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::all;

    #[test]
    fn the_third_number_is_the_most() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(most("287901\t383868\t575802\n"), Some(575_802 * page));
        assert_eq!((most("1 2"), most("")), (None, None));
    }

    #[test]
    fn a_limit_of_memory_is_that_of_sockets_too_and_without_one_there_is_a_part() {
        let own = |limit| setting(&Memory { limit, ..Memory::default() }, Some(1600), &all(false)).unwrap();
        assert_eq!((own(Some(7)).value, own(None).value, own(Some(7)).usual), ("7".into(), "100".into(), "100".into()));
        assert_eq!(setting(&Memory::default(), Some(1600), &all(true)), None);
        assert_eq!(setting(&Memory::default(), None, &all(false)), None);
    }
}

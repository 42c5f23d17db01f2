//! What the processes of an image hold: for whoever has to judge an image that somebody else has made.

use crate::disk::needed_calls::{self, NeededCall};
use crate::image::{Image, Process};
use std::collections::BTreeSet;

/// What processes of an image hold that a guest may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Powers {
    /// All capabilities, a bit each, that any of them has or can get: but for those in user namespaces of their own
    /// making, which hold them over what is in that.
    pub capabilities: u64,
    /// The filters of system calls that all of them have first, oldest first: `struct sock_filter`s. None where nobody
    /// lives, as in a guest that idles: a clone's first process is not out of the image.
    pub filters: Option<Vec<Vec<u8>>>,
    /// Whether none can gain privileges by executing a file.
    pub no_new_privileges: bool,
    /// Calls by which they would have got what they hold: sockets, namespaces and their like.
    pub calls: Vec<NeededCall>,
    /// Resource limits that some of them have, each once: number, soft, hard. Where an image says nothing of one, that
    /// is whatever whoever makes it has.
    pub limits: BTreeSet<(u32, u64, u64)>,
}

/// `CAP_SYS_ADMIN`, which it takes to mount anything.
const SYS_ADMIN: u64 = 1 << 21;

/// How many resource limits there are.
const LIMITS: u32 = 16;

/// All of a process.
fn limits(process: &Process) -> impl Iterator<Item = (u32, u64, u64)> {
    (0..LIMITS).map(|number| {
        let named = process.limits.iter().rfind(|limit| limit.0 == number);
        named.copied().unwrap_or((number, u64::MAX, u64::MAX))
    })
}

impl Powers {
    pub(crate) fn of(image: &Image) -> Self {
        let living = || image.processes.iter().filter(|process| process.ended.is_none());
        let threads = || living().flat_map(|process| &process.threads);
        let over_the_guest = living().filter(|process| process.user_space.is_none()).flat_map(|one| &one.threads);
        let sets = over_the_guest.flat_map(|thread| thread.credentials.capabilities);
        let common = threads().map(|thread| thread.filters.clone()).reduce(|common, own| {
            common.into_iter().zip(own).take_while(|(one, other)| one == other).map(|(one, _)| one).collect()
        });
        // Whoever made it may have unmounted what hides something, and given that up since.
        let mounts = !image.mounts.is_empty() || !image.mount_spaces.is_empty() || image.shared_mounts;
        let mounts = if mounts { SYS_ADMIN } else { 0 };
        Self {
            capabilities: sets.fold(mounts, |all, set| all | set),
            filters: common,
            no_new_privileges: threads().all(|thread| thread.credentials.no_new_privileges),
            calls: needed_calls::of(image),
            limits: living().flat_map(limits).collect(),
        }
    }

    /// Whether all have these filters, before any other.
    pub fn are_filtered_by(&self, filters: &[&[u8]]) -> bool {
        let begin = |own: &Vec<Vec<u8>>| {
            own.len() >= filters.len() && own.iter().zip(filters).all(|(own, wanted)| own == wanted)
        };
        self.filters.as_ref().is_none_or(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Credentials, Thread};

    fn process(capabilities: [u64; 5], filters: &[u8]) -> Process {
        let credentials = Credentials { capabilities, no_new_privileges: true, ..Credentials::default() };
        let filters = filters.iter().map(|filter| vec![*filter; 8]).collect();
        Process { threads: vec![Thread { credentials, filters, ..Thread::default() }], ..Process::default() }
    }

    #[test]
    fn it_is_what_any_holds_and_what_all_are_held_by() {
        let nested = Process { user_space: Some(0), ..process([u64::MAX; 5], &[1, 2]) };
        let processes = vec![process([1, 0, 0, 0, 0], &[1, 2, 3]), process([0, 0, 0, 4, 8], &[1, 2]), nested];
        let powers = Powers::of(&Image { processes, ..Image::default() });
        assert_eq!(
            (powers.capabilities, powers.filters.as_ref().map(Vec::len), powers.no_new_privileges),
            (13, Some(2), true)
        );
        assert_eq!(powers.limits.len(), LIMITS as usize);
        assert!(powers.are_filtered_by(&[&[1; 8]]) && powers.are_filtered_by(&[&[1; 8], &[2; 8]]));
        assert!(!powers.are_filtered_by(&[&[2; 8]]) && !powers.are_filtered_by(&[&[1; 8], &[2; 8], &[3; 8]]));
    }

    #[test]
    fn nobody_is_without_a_filter() {
        assert!(Powers::of(&Image::default()).are_filtered_by(&[&[1; 8]]));
        let free = Image { processes: vec![process([0; 5], &[])], ..Image::default() };
        assert!(!Powers::of(&free).are_filtered_by(&[&[1; 8]]));
        assert!(Powers::of(&free).are_filtered_by(&[]));
    }
}

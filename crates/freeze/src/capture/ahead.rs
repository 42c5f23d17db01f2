//! What is learned and done while processes still run, so that they stand still for less: their areas are read, which
//! takes the kernel a walk through all their pages, and memory that is dense, and that nobody shares, gets huge pages,
//! of which a fork marks five hundred small ones' worth at once.

use crate::image::AreaKind;
use crate::inspect::areas::{self, Seen};
use crate::inspect::proc_file;
use crate::inspect::process_tree::Roots;
use pando_kernel::memory::collapse::{HUGE, collapse};
use pando_kernel::memory::pagemap::Pagemap;
use pando_kernel::{CallError, Context, process::pidfd};
use std::collections::HashMap;

/// Less than so many bytes of dense memory in a process are not worth the while.
const WORTH: u64 = 16 << 20;

/// The areas of processes, as they were.
#[derive(Default)]
pub(crate) struct Ahead(HashMap<i32, (String, Vec<Seen>)>);

impl Ahead {
    /// Reads those of all processes below some roots, and has their dense memory collapse. What cannot be read now is
    /// read later.
    pub(crate) fn of(roots: &Roots) -> Self {
        let members = roots.members();
        for member in members.iter().filter(|member| member.state != 'Z') {
            drop(collapse_dense(member.outer));
        }
        let read = |outer: i32| Some((outer, areas::read_with_lines(outer).ok()?));
        Self(members.iter().filter_map(|member| read(member.outer)).collect())
    }

    /// The areas of a process that stands still: as they were if they lie where they did. What was advised meanwhile is
    /// found out by [`areas::refresh`].
    pub(crate) fn read(&self, outer: i32) -> Result<Vec<Seen>, CallError> {
        match self.0.get(&outer) {
            Some((lines, seen)) if *lines == proc_file::text(outer, "maps")? => Ok(seen.clone()),
            _ => areas::read(outer),
        }
    }
}

fn collapse_dense(outer: i32) -> Result<(), CallError> {
    let mut areas: Vec<_> = areas::read(outer)?.into_iter().map(|seen| seen.area).collect();
    let no_huge_ones = libc::MADV_NOHUGEPAGE as u32;
    areas.retain(|area| area.kind == AreaKind::Anonymous && !area.grows && !area.advice.contains(&no_huge_ones));
    if areas.iter().map(|area| area.end - area.start).sum::<u64>() < WORTH {
        return Ok(());
    }
    areas::find_pages(outer, &mut areas)?;
    let dense: Vec<_> = areas.iter().flat_map(|area| &area.pages).filter_map(|run| aligned(*run)).collect();
    if dense.iter().map(|(start, end)| end - start).sum::<u64>() < WORTH {
        return Ok(());
    }
    let Ok(process) = pidfd::open(outer) else { return Ok(()) };
    let mut pagemap = Pagemap::of(outer).context(|| format!("reading which pages process {outer} has"))?;
    for start in dense.into_iter().flat_map(|(start, end)| (start..end).step_by(HUGE as usize)) {
        // A huge page takes the place of copies. Of pages that a fork shares it would leave the others theirs, so that
        // all pay for each other's from then on. The look comes right before, since the process may fork at any time.
        if pagemap.is_exclusive(start, start + HUGE).unwrap_or(false) {
            // Where there are no huge pages now, small ones do.
            let _ = collapse(&process, (start, start + HUGE));
        }
    }
    Ok(())
}

/// What of a run of pages (address, length) huge pages can have: first address, and that behind the last.
fn aligned((start, length): (u64, u64)) -> Option<(u64, u64)> {
    let (first, behind) = (start.next_multiple_of(HUGE), (start + length) / HUGE * HUGE);
    (first < behind).then_some((first, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_lie_at_multiples_of_their_length() {
        assert_eq!(aligned((HUGE - 4096, 2 * HUGE)), Some((HUGE, 2 * HUGE)));
        assert_eq!(aligned((HUGE, HUGE)), Some((HUGE, 2 * HUGE)));
        assert_eq!(aligned((4096, HUGE)), None);
    }

    #[test]
    fn what_has_moved_is_read_anew() {
        let me = std::process::id() as i32;
        let (lines, seen) = areas::read_with_lines(me).unwrap();
        let ahead = Ahead(HashMap::from([(me, (lines.replacen('-', "+", 1), Vec::new()))]));
        assert!(!seen.is_empty() && !ahead.read(me).unwrap().is_empty());
    }
}

//! What lies where in a process's memory: kinds, rights, files, advice. What is in it the holder has checked as it was
//! copied.

use crate::image::{Area, AreaKind, Process};
use crate::inspect::areas;
use crate::likeness::Said;
use pando_kernel::CallError;
use pando_restorer::{REGION, REGION_LENGTH};

/// Says how the memory of a clone's process differs from the image.
pub(super) fn compare(process: &Process, outer: i32) -> Result<Said, CallError> {
    // The restorer's own goes as the process passes the gate.
    let restorer = REGION..REGION + REGION_LENGTH;
    let now = areas::read(outer)?.into_iter().map(|seen| seen.area);
    let now: Vec<_> = now.filter(|area| !restorer.contains(&area.start)).collect();
    Ok(unlike(&now, &process.areas, process.mount_space.is_none()))
}

/// Ranges of two memories that differ. The kernel may have made one area of two, or two of one, so it is looked at from
/// one border of either to the next.
fn unlike(now: &[Area], before: &[Area], paths: bool) -> Said {
    let mut borders: Vec<u64> = now.iter().chain(before).flat_map(|area| [area.start, area.end]).collect();
    borders.sort_unstable();
    borders.dedup();
    let mut said = Said::new();
    let (mut is, mut was) = (now.iter().peekable(), before.iter().peekable());
    for &at in &borders {
        let of = |areas: &mut std::iter::Peekable<std::slice::Iter<'_, Area>>| {
            while areas.peek().is_some_and(|area| area.end <= at) {
                areas.next();
            }
            areas.peek().copied().filter(|area| area.start <= at).cloned()
        };
        let what = match (of(&mut is), of(&mut was)) {
            (None, None) => continue,
            (Some(_), None) => "there is memory that was not there".to_owned(),
            (None, Some(_)) => "there is no memory any more".to_owned(),
            (Some(is), Some(was)) => match differs(&is, &was, at, paths) {
                Some(what) => what,
                None => continue,
            },
        };
        said.push(format!("at {at:#x} {what}"));
    }
    said
}

/// What of two areas at one address differs, if anything does.
fn differs(is: &Area, was: &Area, at: u64, paths: bool) -> Option<String> {
    let place = |area: &Area, offset: u64| offset + (at - area.start);
    let same = match (&is.kind, &was.kind) {
        (AreaKind::Anonymous, AreaKind::Anonymous) | (AreaKind::AioRing(_), AreaKind::AioRing(_)) => true,
        (AreaKind::Private { path, offset }, AreaKind::Private { path: old, offset: then }) => {
            (!paths || path == old) && place(is, *offset) == place(was, *then)
        }
        (AreaKind::Shared { path, offset, .. }, AreaKind::Shared { path: old, offset: then, .. }) => {
            path == old && place(is, *offset) == place(was, *then)
        }
        (AreaKind::Segment { id, .. }, AreaKind::Segment { id: old, .. }) => id == old,
        // A file without a name is told by whatever name it had.
        (AreaKind::Private { offset, .. }, AreaKind::Nameless { offset: then, shared: false, .. })
        | (AreaKind::Shared { offset, .. }, AreaKind::Nameless { offset: then, shared: true, .. }) => {
            place(is, *offset) == place(was, *then)
        }
        (AreaKind::Kernel { name }, AreaKind::Kernel { name: old }) => name == old,
        _ => false,
    };
    if !same {
        return Some(format!("memory is {:?} instead of {:?}", is.kind, was.kind));
    }
    if matches!(was.kind, AreaKind::Kernel { .. }) {
        return None;
    }
    let sorted = |area: &Area| {
        let mut advice = area.advice.clone();
        advice.sort_unstable();
        advice
    };
    if is.protection != was.protection {
        return Some(format!("memory has rights {:#x} instead of {:#x}", is.protection, was.protection));
    }
    if (is.grows, is.sealed) != (was.grows, was.sealed) {
        return Some("memory grows, or is sealed, otherwise than it was".into());
    }
    (sorted(is) != sorted(was)).then(|| format!("memory was advised {:?} instead of {:?}", sorted(is), sorted(was)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(start: u64, end: u64) -> Area {
        Area::new(start, end, 3, AreaKind::Anonymous)
    }

    #[test]
    fn borders_between_areas_that_are_alike_are_none() {
        let (one, two) = ([area(0x1000, 0x5000)], [area(0x1000, 0x3000), area(0x3000, 0x5000)]);
        assert_eq!(unlike(&one, &two, true), Said::new());
        assert_eq!(unlike(&two, &one, true), Said::new());
        let file =
            |start, end, offset| Area { kind: AreaKind::Private { path: "/x".into(), offset }, ..area(start, end) };
        let parts = [file(0x1000, 0x2000, 0), file(0x2000, 0x3000, 0x1000)];
        assert_eq!(unlike(&[file(0x1000, 0x3000, 0)], &parts, true), Said::new());
    }

    #[test]
    fn what_differs_is_found_where_it_does() {
        let whole = [area(0x1000, 0x5000)];
        let hole = [area(0x1000, 0x2000), area(0x3000, 0x5000)];
        assert_eq!(unlike(&hole, &whole, true), ["at 0x2000 there is no memory any more"]);
        assert_eq!(unlike(&whole, &hole, true), ["at 0x2000 there is memory that was not there"]);
        let mut other = [area(0x1000, 0x2000), Area { protection: 1, ..area(0x2000, 0x5000) }];
        assert_eq!(unlike(&other, &whole, true), ["at 0x2000 memory has rights 0x1 instead of 0x3"]);
        other[1] = Area { advice: vec![libc::MADV_WIPEONFORK as u32], ..area(0x2000, 0x5000) };
        assert!(unlike(&whole, &other, true)[0].contains("was advised"));
        let program = Area { kind: AreaKind::Private { path: "/x".into(), offset: 0 }, ..area(0x1000, 0x5000) };
        assert!(unlike(&whole, &[program], true)[0].contains("instead of Private"));
    }
}

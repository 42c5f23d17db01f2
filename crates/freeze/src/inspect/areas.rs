//! The memory of a process, as /proc/PID/smaps tells it: see proc(5).

use crate::image::memory::{KEPT_ADVICE, USER_END};
use crate::image::{AioRing, Area, AreaKind};
use crate::inspect::proc_file::{self, malformed};
use crate::trampoline;
use pando_kernel::memory::pagemap::Pagemap;
use pando_kernel::{CallError, Context};

/// An area, and what stands in the way of freezing it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) area: Area,
    pub(crate) objection: Option<(String, &'static str)>,
}

/// Every area of a process.
pub(crate) fn read(pid: i32) -> Result<Vec<Seen>, CallError> {
    parse(&proc_file::text(pid, "smaps")?)
}

/// The kernel's own areas in a process: name, start, length.
pub(crate) fn kernels(pid: i32) -> Result<Vec<(String, u64, u64)>, CallError> {
    let own = |area: Area| match area.kind {
        AreaKind::Kernel { name } => Some((name, area.start, area.end - area.start)),
        _ => None,
    };
    Ok(read(pid)?.into_iter().filter_map(|seen| own(seen.area)).collect())
}

/// The same, and the lines of /proc/PID/maps that it comes from.
pub(crate) fn read_with_lines(pid: i32) -> Result<(String, Vec<Seen>), CallError> {
    let text = proc_file::text(pid, "smaps")?;
    let lines = text.lines().filter(|line| is_header(line)).flat_map(|line| [line, "\n"]).collect();
    Ok((lines, parse(&text)?))
}

fn is_header(line: &str) -> bool {
    line.split_ascii_whitespace().next().is_some_and(|word| word.contains('-'))
}

/// What has been advised of areas that were read before, as it is in a process, or a fork of it, that stands still.
/// Whether memory is locked a fork does not know.
pub(crate) fn refresh(pid: i32, areas: &mut [Area]) -> Result<(), CallError> {
    let now = read(pid)?;
    for area in areas {
        let same = now.iter().find(|seen| (seen.area.start, seen.area.end) == (area.start, area.end));
        let Some(Seen { area: now, .. }) = same else {
            // A fork leaves out what it was told to leave out in the last moment.
            return Err(malformed(format!("finding memory at {:#x} again; try once more", area.start)));
        };
        area.advice.clone_from(&now.advice);
        (area.grows, area.sealed) = (now.grows, now.sealed);
        (area.unreserved, area.accounted) = (now.unreserved, now.accounted);
    }
    Ok(())
}

/// A text of the form of /proc/PID/smaps. What a restorer left behind, where it once made the process, is not part of
/// it.
pub(crate) fn parse(text: &str) -> Result<Vec<Seen>, CallError> {
    let mut areas: Vec<Seen> = Vec::new();
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(seen) = areas.last_mut() {
                heed_flags(seen, flags);
            }
        } else if let Some(key) = line.strip_prefix("ProtectionKey:") {
            if let Some(seen) = areas.last_mut() {
                heed_key(seen, key);
            }
        } else if is_header(line) {
            areas.push(header(line)?);
        }
    }
    let is_script = |seen: &Seen| matches!(&seen.area.kind, AreaKind::Private { path, .. } if trampoline::is_one(path));
    let is_restored = areas.iter().any(is_script);
    let region = pando_restorer::REGION..pando_restorer::REGION + pando_restorer::REGION_LENGTH;
    areas.retain(|seen| {
        let leftover = match &seen.area.kind {
            AreaKind::Anonymous => is_restored && region.contains(&seen.area.start),
            AreaKind::Private { .. } => is_script(seen) || is_restored && region.contains(&seen.area.start),
            _ => false,
        };
        !leftover && seen.area.end <= USER_END
    });
    Ok(areas)
}

fn header(line: &str) -> Result<Seen, CallError> {
    let bad = || malformed(format!("parsing the mapping '{line}'"));
    let mut rest = line;
    let mut word = || {
        let (word, behind) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
        rest = behind;
        word
    };
    let (range, rights, offset, _device, inode) = (word(), word(), word(), word(), word());
    let name = rest.trim_start().to_owned();
    let hexadecimal = |word: &str| u64::from_str_radix(word, 16).map_err(|_| bad());
    let (start, end) = range.split_once('-').ok_or_else(bad)?;
    let mut protection = 0;
    for (letter, bit) in [('r', libc::PROT_READ), ('w', libc::PROT_WRITE), ('x', libc::PROT_EXEC)] {
        if rights.contains(letter) {
            protection |= bit as u32;
        }
    }
    let offset = hexadecimal(offset)?;
    let (mut kind, mut objection) = kind(&name, inode != "0", rights.ends_with('s'), offset);
    if name.starts_with("/SYSV") {
        // Its inode is the segment's number.
        kind = AreaKind::Segment { id: inode.parse().map_err(|_| bad())?, writable: true };
        if offset != 0 {
            objection = Some((format!("a part of the shared memory {name}"), "make the program attach all of it"));
        }
    }
    let area = Area::new(hexadecimal(start)?, hexadecimal(end)?, protection, kind);
    Ok(Seen { area, objection })
}

fn kind(name: &str, file: bool, shared: bool, offset: u64) -> (AreaKind, Option<(String, &'static str)>) {
    if name.starts_with("[v") {
        return (AreaKind::Kernel { name: name.to_owned() }, None);
    }
    if name == "[uprobes]" {
        return (AreaKind::Anonymous, Some(("a probe in its code".into(), "stop tracing it")));
    }
    if !file && !shared {
        return (AreaKind::Anonymous, None);
    }
    if name.starts_with("/[aio]") {
        // What is in it is for who knows the context.
        return (AreaKind::AioRing(AioRing::default()), None);
    }
    let path = name.to_owned();
    let objection = match name {
        _ if name.starts_with("anon_inode:") => {
            Some((format!("memory of {}", &name[11..]), "make the program do without it"))
        }
        _ if name.starts_with("/secretmem") => Some(("secret memory".into(), "make the program do without it")),
        _ => None,
    };
    let kind =
        if shared { AreaKind::Shared { path, offset, writable: true } } else { AreaKind::Private { path, offset } };
    (kind, objection)
}

fn heed_flags(seen: &mut Seen, flags: &str) {
    for flag in flags.split_ascii_whitespace() {
        let area = &mut seen.area;
        match flag {
            "gd" => area.grows = true,
            "lo" => area.locked = true,
            "lf" => area.locked_later = true,
            "ac" => area.accounted = true,
            "nr" => area.unreserved = true,
            "sl" => area.sealed = true,
            _ => {
                let named = KEPT_ADVICE.iter().filter(|(letters, _)| *letters == flag);
                area.advice.extend(named.map(|(_, advice)| *advice as u32));
            }
        }
    }
    let has = |flag: &str| flags.split_ascii_whitespace().any(|word| word == flag);
    if let AreaKind::Shared { writable, .. } | AreaKind::Segment { writable, .. } = &mut seen.area.kind {
        *writable = has("mw");
    }
    if matches!(seen.area.kind, AreaKind::Kernel { .. }) {
        seen.area.advice.clear();
        return;
    }
    let objections = [
        ("ht", "huge pages of hugetlbfs", "use transparent huge pages"),
        ("io", "memory of a device", "close the device"),
        ("pf", "memory of a device", "close the device"),
        ("um", "memory watched by userfaultfd", "make the program do without it"),
        ("uw", "memory watched by userfaultfd", "make the program do without it"),
        ("ui", "memory watched by userfaultfd", "make the program do without it"),
        ("ss", "a shadow stack", "start the program without it"),
    ];
    for (flag, what, advice) in objections {
        if has(flag) {
            seen.objection.get_or_insert((format!("{what} at {:#x}", seen.area.start), advice));
        }
    }
    // Of memory that is the process's own its pages tell.
    if has("gu") && !seen.area.kind.is_own() {
        let kind = format!("guards in shared memory at {:#x} (MADV_GUARD_INSTALL)", seen.area.start);
        seen.objection.get_or_insert((kind, "make the program do without them"));
    }
}

/// Pages that are for who has a key (pkeys(7)): a clone's process would have no such key.
fn heed_key(seen: &mut Seen, key: &str) {
    if key.trim() != "0" {
        let kind = format!("memory with a protection key (pkey_mprotect) at {:#x}", seen.area.start);
        seen.objection.get_or_insert((kind, "make the program do without it"));
    }
}

/// Notes which pages of each area are the process's own: written to, present or swapped out; and which are guards. What
/// a fork wipes, a clone begins without: it is there to tell a program that it is not the only one any more, and
/// generators of random numbers keep their state so.
pub(crate) fn find_pages(pid: i32, areas: &mut [Area]) -> Result<(), CallError> {
    let what = || format!("reading which pages process {pid} has");
    let mut pagemap = Pagemap::of(pid).context(what)?;
    for area in areas {
        let wiped = area.advice.contains(&(libc::MADV_WIPEONFORK as u32));
        if area.kind.is_own() && !wiped {
            let found = pagemap.pages(area.start, area.end).context(what)?;
            (area.pages, area.guards) = (found.own, found.guards);
        }
    }
    Ok(())
}

/// What leads to the file that an area maps, below a process's directory in /proc.
pub(crate) fn map_file(area: &Area) -> String {
    format!("map_files/{:x}-{:x}", area.start, area.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
555555554000-555555556000 r-xp 00001000 08:01 77    /usr/bin/a program
Size: 8 kB
VmFlags: rd ex mr mw me sl
7ffff7fc0000-7ffff7fc4000 r--p 00000000 00:00 0     [vvar]
VmFlags: rd mr de dd
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0     [stack]
VmFlags: rd wr mr mw me gd ac wf
7fffffff0000-7fffffff1000 r-xp 00000000 00:01 9     /memfd:pando-script (deleted)
VmFlags: rd ex mr mw me
400000000000-400000003000 r-xp 00000000 00:00 0
VmFlags: rd ex mr mw me
7ffff0000000-7ffff0001000 rw-s 00000000 00:01 9     /SYSV00000001 (deleted)
VmFlags: rd wr sh mr mw me ms
7ffff1000000-7ffff1001000 rw-s 00000000 00:13 9     /[aio] (deleted)
VmFlags: rd wr sh mr mw me ms de
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]
VmFlags: ex
";

    #[test]
    fn areas_are_told_apart() {
        let areas = parse(TEXT).unwrap();
        assert_eq!(areas.len(), 5, "the restorers' leftovers and vsyscall are not the process's: {areas:?}");
        let program = AreaKind::Private { path: "/usr/bin/a program".into(), offset: 0x1000 };
        assert_eq!(areas[0].area.kind, program);
        assert!(areas[0].area.sealed && !areas[2].area.sealed);
        assert_eq!(areas[1].area.kind, AreaKind::Kernel { name: "[vvar]".into() });
        assert!(areas[2].area.grows);
        assert_eq!(areas[2].area.advice, [libc::MADV_WIPEONFORK as u32]);
        assert_eq!(areas[3].area.kind, AreaKind::Segment { id: 9, writable: true });
        assert_eq!(areas[4].area.kind, AreaKind::AioRing(AioRing::default()));
    }

    #[test]
    fn what_a_clone_would_not_have_is_named() {
        let said = |name: &str, rights: &str, lines: &str| {
            let text = format!("7ffff0000000-7ffff0001000 {rights} 00000000 00:13 9     {name}\n{lines}\n");
            parse(&text).unwrap().pop().unwrap().objection.map(|(kind, _)| kind).unwrap_or_default()
        };
        for (name, rights, lines, wanted) in [
            ("/secretmem (deleted)", "rw-s", "VmFlags: rd wr sh", "secret memory"),
            ("anon_inode:[io_uring]", "rw-s", "VmFlags: rd wr sh", "memory of [io_uring]"),
            ("/file", "rw-p", "VmFlags: rd ht", "huge pages of hugetlbfs"),
            ("/file", "rw-p", "VmFlags: rd uw", "userfaultfd"),
            ("/file", "rw-s", "VmFlags: rd gu sh", "guards in shared memory"),
            ("/file", "rw-p", "ProtectionKey:         1\nVmFlags: rd", "a protection key"),
        ] {
            assert!(said(name, rights, lines).contains(wanted), "{name}: {wanted}");
        }
        assert_eq!(said("/file", "rw-p", "ProtectionKey:         0\nVmFlags: rd gu"), "");
    }
}

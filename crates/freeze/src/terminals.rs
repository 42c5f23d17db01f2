//! Pseudo-terminals: settings, size, whose they are. What waits in one, typed or printed and not read yet, is lost.
//!
//! A clone's terminals have the numbers that they had: it begins with a /dev/pts of its own, whose numbers count from 0; those between are made and
//! closed again.
//!
//! Of one terminal the other end may be outside: a console, which each clone has as well when it begins, under the same number.

use crate::credentials::IdMaps;
use crate::descriptors::Found;
use crate::image::file::HIGHEST_TERMINAL;
use crate::image::{FileKind, Image, OpenFile, Process, Terminal, TerminalEnd};
use crate::objects::Slots;
use crate::proc_file::{Lines, Stat};
use crate::refusal::Refusal;
use crate::script::{Chapter, Writer};
use crate::staging::AT_FDCWD;
use crate::stop::Stopped;
use crate::tree::{self, Member};
use crate::unix_socket;
use pando_kernel::confined::{Links, Root};
use pando_kernel::{CallError, Context, terminal};
use rustix::fs::{FileType, OFlags};

/// What a descriptor is of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Master,
    /// By its number.
    Other(u32),
    /// /dev/tty: whichever the session has.
    Own,
}

const OTHERS: u32 = 136;
const ALTERNATE: u32 = 5;

fn end(found: &Found) -> Option<End> {
    end_of(found.stat.st_rdev)
}

fn end_of(device: u64) -> Option<End> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    match (major, minor) {
        (ALTERNATE, 2) => Some(End::Master),
        (ALTERNATE, 0) => Some(End::Own),
        (OTHERS, number) => Some(End::Other(number)),
        _ => None,
    }
}

/// Whether it is one.
pub(crate) fn is_terminal(found: &Found) -> bool {
    end(found).is_some()
}

/// Whether it is /dev/tty: the terminal of whoever has it.
pub(crate) fn is_own(found: &Found) -> bool {
    FileType::from_raw_mode(found.stat.st_mode) == FileType::CharacterDevice && end(found) == Some(End::Own)
}

/// The number of the terminal that a process's session has.
fn own_number(outer: i32) -> Option<u32> {
    let device: i64 = Stat::read(outer, "").ok()?.field(7).ok()?;
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00));
    (major == i64::from(OTHERS)).then(|| u32::try_from(minor).unwrap_or(u32::MAX))
}

fn number(outer: i32, found: &Found) -> Option<u32> {
    match end(found)? {
        End::Other(number) => Some(number),
        End::Own => own_number(outer),
        End::Master => terminal::number(unix_socket::take(outer, found.number).ok()?).ok(),
    }
}

/// What stands in the way: terminals whose master is outside, as those of `pando exec -t` are, unless it is the console; and high numbers.
pub(crate) fn objections(
    all: &[(&Member, Vec<Found>)],
    console: Option<u32>,
    supplied: impl Fn(&Found) -> bool,
) -> Vec<Refusal> {
    let ends: Vec<_> = all
        .iter()
        .flat_map(|(member, found)| found.iter().map(move |one| (*member, one)))
        .filter_map(|(member, one)| Some((member, one, end(one)?)))
        .filter(|(_, one, _)| !supplied(one))
        .map(|(member, one, end)| (member, one, end, number(member.outer, one)))
        .collect();
    let mut refusals = Vec::new();
    for (member, one, end, number) in &ends {
        let mastered = |other: &(&Member, &Found, End, Option<u32>)| other.2 == End::Master && other.3 == *number;
        let advice = match number {
            Some(_) if *number == console => continue,
            Some(number) if *number > HIGHEST_TERMINAL => "close terminals, so that their numbers are low",
            Some(_) if *end == End::Master || ends.iter().any(mastered) => continue,
            _ => "start the program without a terminal, or in one that a program inside has made (tmux, script)",
        };
        refusals.push(Refusal {
            pid: member.pid,
            name: member.name.clone(),
            descriptor: Some(one.number),
            kind: format!("a terminal whose other end is outside ({})", one.target),
            advice,
        });
    }
    refusals
}

/// The terminal of a descriptor, in the image.
pub(crate) fn kind(member: &Member, found: &Found, maps: &IdMaps, image: &mut Image) -> Result<FileKind, CallError> {
    let what = || format!("reading the terminal {} of process {}", found.target, member.pid);
    let number = number(member.outer, found).ok_or(std::io::Error::from_raw_os_error(libc::ENXIO)).context(what)?;
    let side = match end(found) {
        Some(End::Master) => TerminalEnd::Master,
        _ if found.target == CONSOLE => TerminalEnd::Console,
        _ => TerminalEnd::Other,
    };
    let known = image.terminals.iter().position(|one| one.number == number);
    let terminal = match known {
        Some(known) => known,
        None => {
            image.terminals.push(Terminal { number, ..Terminal::default() });
            image.terminals.len() - 1
        }
    };
    let one = &mut image.terminals[terminal];
    let file = unix_socket::take(member.outer, found.number)?;
    if one.settings.is_empty() {
        one.look(&file).context(what)?;
    }
    if side == TerminalEnd::Master {
        one.packets = terminal::is_in_packet_mode(&file).context(what)?;
    } else if end(found) != Some(End::Own) {
        let (user, group) = (maps.user(found.stat.st_uid), maps.group(found.stat.st_gid));
        one.owner = (user.unwrap_or(0), group.unwrap_or(0), found.stat.st_mode & 0o777);
    }
    Ok(FileKind::Terminal { terminal, end: side })
}

/// What /dev/console is called in a guest.
const CONSOLE: &str = "/dev/console";

/// Notes the console, whether or not anybody has it open just now: its number is taken in a clone.
pub(crate) fn console(init: i32, number: u32, image: &mut Image) -> Result<(), CallError> {
    let what = || format!("reading the terminal {CONSOLE} of process {init}");
    let place = Root::of_process(init).and_then(|root| root.place(CONSOLE, Links::Followed)).context(what)?;
    // To open another device may do something.
    let about = place.about().context(what)?;
    let is_device = FileType::from_raw_mode(about.st_mode) == FileType::CharacterDevice;
    if !is_device || end_of(about.st_rdev) != Some(End::Other(number)) {
        return Err(std::io::Error::from_raw_os_error(libc::ENXIO)).context(what);
    }
    let file = place.open(OFlags::RDWR).context(what)?;
    let mut console = Terminal { number, kept: true, ..Terminal::default() };
    console.look(&file).context(what)?;
    image.terminals.push(console);
    Ok(())
}

/// Notes whose terminals they are.
pub(crate) fn sessions(image: &mut Image, stopped: &[Stopped]) {
    let Image { terminals, processes, .. } = image;
    if terminals.is_empty() {
        return;
    }
    for process in processes.iter().filter(|process| process.session == process.pid && process.ended.is_none()) {
        let Some(found) = stopped.iter().find(|found| found.member.pid == process.pid) else { continue };
        let number = own_number(found.member.outer);
        let Some(one) = terminals.iter_mut().find(|one| Some(one.number) == number) else { continue };
        one.session = process.pid;
        let group = Stat::read(found.member.outer, "").and_then(|stat| stat.field::<i32>(8)).unwrap_or(0);
        let status = Lines::read(group, "status");
        one.foreground = status.ok().and_then(|status| tree::inner(&status)).unwrap_or(0);
    }
}

const SET_LOCK: u64 = 0x4004_5431;
const SET_PACKETS: u64 = libc::TIOCPKT;
const SET_SETTINGS: u64 = 0x402c_542b;
const OPENING: u64 = (libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) as u64;

/// Writes the maker's steps: every terminal in the order of the numbers.
pub(crate) fn make(writer: &mut Writer, image: &Image, slots: Slots) {
    let chapter = Writer::MAKING;
    let Some(highest) = image.terminals.iter().map(|one| one.number).max() else { return };
    let zero = writer.words(&[0]);
    let multiplexer = writer.string("/dev/ptmx");
    let mut passing = 0;
    for number in 0..=highest.min(HIGHEST_TERMINAL) {
        let Some(place) = image.terminals.iter().position(|one| one.number == number) else {
            let arguments = [AT_FDCWD, multiplexer, OPENING];
            let slot = slots.passing(passing);
            writer.open(chapter, "counting terminals", libc::SYS_openat, &arguments, slot);
            passing += 1;
            continue;
        };
        let one = &image.terminals[place];
        let (master, other) = (slots.terminal(place, true), slots.terminal(place, false));
        if !one.kept {
            let arguments = [AT_FDCWD, multiplexer, OPENING];
            writer.open(chapter, "making a terminal", libc::SYS_openat, &arguments, master);
            writer.call(chapter, "unlocking a terminal", libc::SYS_ioctl, &[master, SET_LOCK, zero]);
        }
        let path = writer.string(&path(one, TerminalEnd::Other));
        let label = format!("opening terminal {number}");
        writer.open(chapter, label, libc::SYS_openat, &[AT_FDCWD, path, OPENING], other);
        let settings = writer.data(&one.settings, 8);
        writer.call(chapter, "setting a terminal", libc::SYS_ioctl, &[other, SET_SETTINGS, settings]);
        let size: Vec<u8> = one.size.iter().flat_map(|side| side.to_le_bytes()).collect();
        let size = writer.data(&size, 8);
        writer.call(chapter, "sizing a terminal", libc::SYS_ioctl, &[other, libc::TIOCSWINSZ, size]);
        if one.packets {
            let yes = writer.words(&[1]);
            writer.call(chapter, "setting packet mode", libc::SYS_ioctl, &[master, SET_PACKETS, yes]);
        }
        let (user, group, mode) = one.owner;
        writer.attempt(chapter, "setting an owner", libc::SYS_fchown, &[other, user.into(), group.into()]);
        writer.attempt(chapter, "setting a mode", libc::SYS_fchmod, &[other, mode.into()]);
    }
    for number in 0..passing {
        writer.call(chapter, "closing a terminal", libc::SYS_close, &[slots.passing(number)]);
    }
}

/// By which path it is opened.
fn path(one: &Terminal, end: TerminalEnd) -> String {
    if one.kept && end == TerminalEnd::Console { CONSOLE.to_owned() } else { format!("/dev/pts/{}", one.number) }
}

/// Writes the opening of an end for a descriptor.
pub(crate) fn open(
    writer: &mut Writer,
    file: &OpenFile,
    image: &Image,
    slots: Slots,
    (terminal, end): (usize, TerminalEnd),
    slot: u64,
) {
    if end == TerminalEnd::Master {
        // It cannot be opened again: that would make another terminal.
        let arguments = [slots.terminal(terminal, true), slot, 0];
        writer.call(Writer::MAKING, "placing a terminal", libc::SYS_dup3, &arguments);
        return;
    }
    let path = writer.string(&path(&image.terminals[terminal], end));
    let flags = u64::from(file.flags) | (libc::O_NOCTTY | libc::O_CLOEXEC) as u64;
    writer.open(Writer::MAKING, "opening a terminal", libc::SYS_openat, &[AT_FDCWD, path, flags], slot);
}

/// Writes what the leader of a new session does, before it forks anybody: it takes its terminal.
pub(crate) fn take_own(writer: &mut Writer, chapter: Chapter, image: &Image, slots: Slots, leader: i32) {
    for place in own(image, leader) {
        let arguments = [slots.terminal(place, false), libc::TIOCSCTTY, 0];
        writer.call(chapter, "taking a terminal", libc::SYS_ioctl, &arguments);
    }
}

/// And after it has forked all: the group that reads from the terminal is made by others.
pub(crate) fn set_foreground(writer: &mut Writer, chapter: Chapter, image: &Image, slots: Slots, process: &Process) {
    for place in own(image, process.pid) {
        let group = image.terminals[place].foreground;
        if image.processes.iter().any(|process| process.group == group && process.ended.is_none()) {
            let word = writer.data(&group.to_le_bytes(), 8);
            let arguments = [slots.terminal(place, false), libc::TIOCSPGRP, word];
            writer.await_call(chapter, "setting who reads from a terminal", libc::SYS_ioctl, &arguments);
        }
    }
}

fn own(image: &Image, leader: i32) -> impl Iterator<Item = usize> {
    let all = image.terminals.iter().enumerate();
    all.filter(move |(_, one)| one.session == leader && leader != 0)
        .map(|(place, _)| place)
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_is_there_and_keeps_its_number() {
        let one =
            |number, kept| Terminal { number, kept, settings: vec![0; terminal::SETTINGS], ..Terminal::default() };
        let image = Image { terminals: vec![one(0, true), one(1, false)], ..Image::default() };
        let mut writer = Writer::new();
        make(&mut writer, &image, Slots::of(&image));
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        let steps = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((steps("making a terminal"), steps("opening terminal 0"), steps("counting")), (1, 1, 0), "{text}");
    }

    #[test]
    fn numbers_between_are_made_and_closed_again() {
        let one = |number| Terminal { number, settings: vec![0; terminal::SETTINGS], ..Terminal::default() };
        let image = Image { terminals: vec![one(3), one(1)], ..Image::default() };
        let mut writer = Writer::new();
        make(&mut writer, &image, Slots::of(&image));
        let text = format!("{:?}", writer.finish(1, 1, 0, 0));
        let steps = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((steps("counting"), steps("making a terminal"), steps("closing a terminal")), (2, 2, 2), "{text}");
    }
}

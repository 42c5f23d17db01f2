//! Writes the making of pseudo-terminals: settings, size, whose they are. What waits in one, typed or printed and not
//! read yet, is lost.
//!
//! A clone's terminals have the numbers that they had: it begins with a /dev/pts of its own, whose numbers count from
//! 0. Those between are made and closed again.
//!
//! Of one terminal the other end may be outside: a console, which each clone has as well when it begins, under the same
//! number.

use crate::image::file::{CONSOLE_PATH, HIGHEST_TERMINAL};
use crate::image::{Image, OpenFile, Process, Terminal, TerminalEnd};
use crate::restore::script::{AT_FDCWD, Chapter, Writer};
use crate::restore::slots::Slots;

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
    if one.kept && end == TerminalEnd::Console { CONSOLE_PATH.to_owned() } else { format!("/dev/pts/{}", one.number) }
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

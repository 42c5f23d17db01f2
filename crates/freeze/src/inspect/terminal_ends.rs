//! Which ends of pseudo-terminals descriptors of processes are.

use crate::inspect::descriptors::Found;
use crate::inspect::proc_file::Stat;
use crate::inspect::socket_table;
use pando_kernel::terminal;
use rustix::fs::FileType;

/// What a descriptor is of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Master,
    /// By its number.
    Other(u32),
    /// /dev/tty: whichever the session has.
    Own,
}

const OTHERS: u32 = 136;
const ALTERNATE: u32 = 5;

pub(crate) fn end(found: &Found) -> Option<End> {
    end_of(found.stat.st_rdev)
}

/// The end that a device number stands for.
pub(crate) fn end_of(device: u64) -> Option<End> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    match (major, minor) {
        (ALTERNATE, 2) => Some(End::Master),
        (ALTERNATE, 0) => Some(End::Own),
        (OTHERS, number) => Some(End::Other(number)),
        _ => None,
    }
}

/// Whether a descriptor is of a pseudo-terminal.
pub(crate) fn is_terminal(found: &Found) -> bool {
    end(found).is_some()
}

/// Whether it is /dev/tty: the terminal of whoever has it.
pub(crate) fn is_own(found: &Found) -> bool {
    FileType::from_raw_mode(found.stat.st_mode) == FileType::CharacterDevice && end(found) == Some(End::Own)
}

/// The number of the terminal that a process's session has.
pub(crate) fn own_number(outer: i32) -> Option<u32> {
    let device: i64 = Stat::read(outer, "").ok()?.field(7).ok()?;
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00));
    (major == i64::from(OTHERS)).then(|| u32::try_from(minor).unwrap_or(u32::MAX))
}

pub(crate) fn number(outer: i32, found: &Found) -> Option<u32> {
    match end(found)? {
        End::Other(number) => Some(number),
        End::Own => own_number(outer),
        End::Master => terminal::number(socket_table::take(outer, found.number).ok()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, Terminal};
    use crate::restore::script::Writer;
    use crate::restore::slots::Slots;
    use crate::restore::terminals::make;

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

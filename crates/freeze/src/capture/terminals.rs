//! Captures pseudo-terminals: settings, size, whose they are.

use crate::image::file::CONSOLE_PATH;
use crate::image::{FileKind, Image, Terminal, TerminalEnd};
use crate::inspect::credentials::IdMaps;
use crate::inspect::descriptors::Found;
use crate::inspect::proc_file::{Lines, Stat};
use crate::inspect::process_tree::{self, Member};
use crate::inspect::socket_table;
use crate::inspect::terminal_ends::{End, end, end_of, number, own_number};
use crate::stop::seize::Stopped;
use pando_kernel::file::confined::{Links, Root};
use pando_kernel::{CallError, Context, terminal};
use rustix::fs::{FileType, OFlags};

/// The terminal of a descriptor, in the image.
pub(crate) fn kind(member: &Member, found: &Found, maps: &IdMaps, image: &mut Image) -> Result<FileKind, CallError> {
    let what = || format!("reading the terminal {} of process {}", found.target, member.pid);
    let number = number(member.outer, found).ok_or(std::io::Error::from_raw_os_error(libc::ENXIO)).context(what)?;
    let side = match end(found) {
        Some(End::Master) => TerminalEnd::Master,
        _ if found.target == CONSOLE_PATH => TerminalEnd::Console,
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
    let file = socket_table::take(member.outer, found.number)?;
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

/// Notes the console, whether or not anybody has it open just now: its number is taken in a clone.
pub(crate) fn console(init: i32, number: u32, image: &mut Image) -> Result<(), CallError> {
    let what = || format!("reading the terminal {CONSOLE_PATH} of process {init}");
    let place = Root::of_process(init).and_then(|root| root.place(CONSOLE_PATH, Links::Followed)).context(what)?;
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
        one.foreground = status.ok().and_then(|status| process_tree::inner(&status)).unwrap_or(0);
    }
}

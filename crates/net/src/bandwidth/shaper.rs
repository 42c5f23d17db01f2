//! Classes on devices, by tc(8).
//!
//! The program and not its protocol: it turns rates into the kernel's tables of ticks, and a list of its commands is
//! one transaction that an administrator can read. A device to which a user has given a queueing discipline is left
//! alone, by name.

use super::classes::{Class, OTHERS};
use super::rate::Rate;
use pando_kernel::{CallError, Context};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};

/// The number of our queueing discipline, the upper half of its classes' numbers.
const MAJOR: u32 = 0x50a;

/// The class that all others lie in: it knows the device's rate.
const WHOLE: u16 = 0xffff;

/// The number by which a packet names the class.
pub fn class_id(minor: u16) -> u32 {
    MAJOR << 16 | u32::from(minor)
}

/// What the device itself says of its rate.
pub fn link_rate(device: &str) -> Option<Rate> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{device}/speed")).ok()?;
    let megabits: u64 = text.trim().parse().ok().filter(|speed| (1..1_000_000).contains(speed))?;
    Some(Rate(megabits * 1_000_000))
}

/// Makes a device's classes those of a plan. Others' stay where `is_others` says so; without any left, all of it goes.
///
/// # Errors
///
/// tc's, or that the device has a queueing discipline of another make.
pub fn settle(device: &str, link: Rate, classes: &[Class], is_others: impl Fn(u16) -> bool) -> Result<(), CallError> {
    let what = || format!("shaping what leaves by device {device}");
    let root = root(device).context(what)?;
    let standing = if root == Root::Ours { minors(device).context(what)? } else { Vec::new() };
    let foreign = standing.iter().any(|minor| is_others(*minor));
    let wanted: Vec<_> = classes.iter().filter(|class| class.minor != OTHERS).collect();
    if wanted.is_empty() && !foreign {
        let gone = if root == Root::Ours { batch(&format!("qdisc del dev {device} root\n")) } else { Ok(()) };
        return gone.context(what);
    }
    let mut script = String::new();
    if root == Root::Usual {
        let _ = writeln!(script, "qdisc add dev {device} root handle {MAJOR:x}: htb default {OTHERS:x}");
    }
    if let Root::Others(kind) = &root {
        return Err(io::Error::other(format!("it has a queueing discipline of its own ({kind}), which Pando leaves alone; remove it with 'tc qdisc del dev {device} root'"))).context(what);
    }
    let _ = writeln!(
        script,
        "class replace dev {device} parent {MAJOR:x}: classid {MAJOR:x}:{WHOLE:x} htb rate {link} ceil {link} {} quantum 65536",
        bursts(link, link)
    );
    for Class { minor, rate, ceil, quantum } in classes {
        let _ = writeln!(
            script,
            "class replace dev {device} parent {MAJOR:x}:{WHOLE:x} classid {MAJOR:x}:{minor:x} htb rate {rate} ceil {ceil} {} quantum {quantum} prio 0",
            bursts(*rate, *ceil)
        );
    }
    let stale =
        standing.iter().filter(|minor| !is_others(**minor) && !classes.iter().any(|class| class.minor == **minor));
    for minor in stale {
        let _ = writeln!(script, "class del dev {device} classid {MAJOR:x}:{minor:x}");
    }
    batch(&script).context(what)
}

/// How much a class that could not send when it might have may make up for: a processor that is late by more than this
/// loses bandwidth for good, and tc's own default is less than a millisecond's worth.
fn bursts(rate: Rate, ceil: Rate) -> String {
    const LATE: u64 = 50;
    const LEAST: u64 = 8000;
    let of = |rate: Rate| (rate.0 / 8 / LATE).max(LEAST);
    format!("burst {} cburst {}", of(rate), of(ceil))
}

/// How the kernel holds a class, in tc's words; `None` where it does not.
pub fn shown(device: &str, minor: u16) -> Option<String> {
    let text = ask(&["class", "show", "dev", device, "classid", &format!("{MAJOR:x}:{minor:x}")]).ok()?;
    let (_, words) = text.lines().next()?.split_once(" prio ")?;
    Some(words.split_once(' ')?.1.trim().to_owned())
}

/// Makes classes once, where it hurts nobody.
pub(crate) fn try_classes() -> io::Result<()> {
    batch("qdisc add dev lo root handle 1: htb default 1\nclass add dev lo parent 1: classid 1:1 htb rate 1mbit\n")
}

/// Whether a device has classes of ours, or of another Pando's.
pub fn is_shaped(device: &str) -> bool {
    root(device).is_ok_and(|root| root == Root::Ours)
}

#[derive(Debug, PartialEq, Eq)]
enum Root {
    /// What every device begins with.
    Usual,
    Ours,
    Others(String),
}

fn root(device: &str) -> io::Result<Root> {
    Ok(root_in(&ask(&["qdisc", "show", "dev", device, "root"])?))
}

fn root_in(text: &str) -> Root {
    let mut words = text.split_ascii_whitespace().skip(1);
    match (words.next(), words.next()) {
        (Some("htb"), Some(handle)) if handle == format!("{MAJOR:x}:") => Root::Ours,
        (Some(kind), Some(handle)) if handle != "0:" => Root::Others(kind.to_owned()),
        _ => Root::Usual,
    }
}

/// The members' classes that there are.
fn minors(device: &str) -> io::Result<Vec<u16>> {
    Ok(minors_in(&ask(&["class", "show", "dev", device])?))
}

fn minors_in(text: &str) -> Vec<u16> {
    let prefix = format!("{MAJOR:x}:");
    let numbers =
        text.lines().filter_map(|line| line.strip_prefix("class htb ")?.split(' ').next()?.strip_prefix(&prefix));
    let numbers = numbers.filter_map(|minor| u16::from_str_radix(minor, 16).ok());
    numbers.filter(|minor| *minor != OTHERS && *minor != WHOLE).collect()
}

fn command() -> Command {
    let mut command = Command::new("tc");
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin");
    command
}

fn ask(words: &[&str]) -> io::Result<String> {
    let output = command().args(words).stdin(Stdio::null()).output().map_err(missing)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(said(&output.stderr))
    }
}

/// Carries out commands, to the first that fails.
fn batch(script: &str) -> io::Result<()> {
    let child =
        command().args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(missing)?;
    child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?.write_all(script.as_bytes())?;
    let output = child.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(said(&output.stderr)) }
}

fn missing(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return io::Error::new(io::ErrorKind::NotFound, "there is no program tc; install the package iproute2");
    }
    error
}

fn said(stderr: &[u8]) -> io::Error {
    let said = String::from_utf8_lossy(stderr);
    io::Error::other(said.lines().find(|line| !line.trim().is_empty()).unwrap_or("tc gave no reason").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discipline_of_others_is_told_from_the_usual_one() {
        assert_eq!(root_in("qdisc noqueue 0: root refcnt 2 \n"), Root::Usual);
        assert_eq!(root_in("qdisc htb 50a: root refcnt 2 r2q 10 default 0x1\n"), Root::Ours);
        assert_eq!(root_in("qdisc htb 1: root refcnt 2 r2q 10\n"), Root::Others("htb".into()));
        assert_eq!(root_in(""), Root::Usual);
    }

    #[test]
    fn members_are_read_from_what_tc_says() {
        let text = "class htb 50a:1 parent 50a:ffff prio 0 rate 1Kbit\nclass htb 50a:ffff root rate 1Kbit\nclass htb 50a:1f parent 50a:ffff prio 0\nclass mq :1 root\n";
        assert_eq!(minors_in(text), [0x1f]);
    }
}

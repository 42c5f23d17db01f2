//! Many guests at once: what all of them carry together, and what datagrams cost the processors (section 3.2 of the
//! EuroSys paper).

use super::load::{self, PORT};
use super::{Running, SERVER, Wire, compare, native, pando_on, served, within};
use crate::interrupt;
use crate::report::Report;
use crate::service_group::ServiceGroup;
use crate::settings::Settings;
use anyhow::Context;
use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// How many servers there are at most, and at how many of them it is looked.
const MOST: usize = 64;
const STREAMS: [usize; 4] = [1, 4, 16, 64];
const DATAGRAMS: [usize; 5] = [1, 2, 4, 8, 16];

/// How long one look takes: short, so that those that are compared have the same neighbours, and often.
const TIME: Duration = Duration::from_millis(50);
const ROUNDS: usize = 300;

/// Datagrams a second to all servers together, and the size of one.
const OFFERED: u32 = 20_000;
const SIZE: usize = 64;

const NATIVE: &str = "native";
const SHARED: &str = "guests, shared stack";

fn address(number: usize) -> String {
    format!("10.9.0.{}", 101 + number)
}

/// Servers by their addresses: those of the host itself on one wire, guests on another.
pub(super) fn measure(settings: &Settings, report: &mut Report, me: &str) -> anyhow::Result<()> {
    let most = if settings.quick { 4 } else { MOST };
    let (plain, shared) = (Wire::new()?, Wire::new()?);
    let addresses: Vec<String> = (0..most).map(address).collect();
    let mut natives = Vec::new();
    for (ip, group) in addresses.iter().zip(ServiceGroup::several("crowd", most as u32)?) {
        let added = within(&plain.host, "ip").args(["address", "add", &format!("{ip}/32"), "dev", "h0"]).status()?;
        anyhow::ensure!(added.success(), "an address could not be added");
        natives.push((native(&plain, me, ip, &group)?, group));
    }
    let pando = pando_on(settings, &shared)?;
    let guest = |ip: &String| served(&pando, me, &["--address", ip], &SERVER);
    let guests: Vec<Running> = addresses.iter().map(guest).collect::<anyhow::Result<_>>()?;
    for round in 0..=settings.samples(ROUNDS, 1) {
        for (kind, counts) in [("streams", &STREAMS[..]), ("datagrams", &DATAGRAMS[..])] {
            for count in counts.iter().filter(|count| **count <= most) {
                let mut both = [(NATIVE, &plain), (SHARED, &shared)];
                both.rotate_left(round % 2);
                for (name, wire) in both {
                    let figure = look(wire, me, kind, &addresses[..*count])?;
                    if round > 0 {
                        report.add(&series(kind, *count, name), if kind == "streams" { "Mbit/s" } else { "%" }, figure);
                    }
                }
            }
        }
    }
    drop((natives, guests, pando));
    judge(report, most);
    Ok(())
}

fn series(kind: &str, count: usize, name: &str) -> String {
    format!("{kind} of {count}, {name}")
}

fn look(wire: &Wire, me: &str, kind: &str, addresses: &[String]) -> anyhow::Result<f64> {
    interrupt::check()?;
    let mut command: Command = within(&wire.outside, me);
    let output = command.args(["net-crowd", kind, &TIME.as_millis().to_string()]).args(addresses).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("{kind}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn judge(report: &mut Report, most: usize) {
    for count in STREAMS.into_iter().filter(|count| *count <= most) {
        let both = [NATIVE, SHARED].map(|name| series("streams", count, name));
        compare(report, format!("{count} streams together: native against shared stack"), &both, 1.03);
    }
    for count in DATAGRAMS.into_iter().filter(|count| *count <= most) {
        let both = [SHARED, NATIVE].map(|name| series("datagrams", count, name));
        let figure = format!("processor time of {OFFERED} datagrams a second to {count}: shared stack against native");
        // In the paper 77 % of a processor against 72 %.
        compare(report, figure, &both, 77.0 / 72.0);
    }
}

/// Makes the load from outside, and prints the figure: Mbit/s of all streams, or the part of a processor, in percent,
/// that sender and receivers had.
pub(crate) fn make(kind: &str, milliseconds: u64, ips: &[&str]) -> anyhow::Result<()> {
    let time = Duration::from_millis(milliseconds);
    load::stay_on(0)?;
    println!("{}", if kind == "streams" { streams(ips, time)? } else { datagrams(ips, time)? });
    Ok(())
}

fn streams(ips: &[&str], time: Duration) -> anyhow::Result<f64> {
    let all = thread::scope(|scope| {
        let started: Vec<_> = ips.iter().map(|ip| scope.spawn(move || load::stream(ip, time))).collect();
        let ended = started.into_iter().map(|one| one.join().unwrap_or_else(|_| anyhow::bail!("a stream ended")));
        ended.collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok(all.iter().sum())
}

/// An even stream, as one from another machine is. In bursts the receivers' processor would halt between them, and what
/// is measured be how often it happens to have done so: waking one takes an interrupt, which costs a virtual machine
/// more than everything else that a datagram takes.
fn datagrams(ips: &[&str], time: Duration) -> anyhow::Result<f64> {
    let sockets = ips.iter().map(|ip| {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        socket.connect((*ip, PORT)).map(|()| socket)
    });
    let sockets: Vec<UdpSocket> = sockets.collect::<Result<_, _>>()?;
    let spent = || ips.iter().map(|ip| Ok(load::taken(ip)?.1)).sum::<anyhow::Result<u64>>();
    let (before, start, mut own) = (spent()?, Instant::now(), Duration::ZERO);
    for number in 0.. {
        let due = start + Duration::from_secs(1) * number / OFFERED;
        if due >= start + time {
            break;
        }
        // Waiting is no part of what the datagrams take: sending is, in which the kernel also hands them over to the
        // receiver.
        let mut since = Instant::now();
        while since < due {
            std::hint::spin_loop();
            since = Instant::now();
        }
        let _ = sockets[number as usize % sockets.len()].send(&[0; SIZE]);
        own += since.elapsed();
    }
    let elapsed = start.elapsed();
    // What asking costs the servers is in it, and the same for everybody.
    Ok((own.as_nanos() as u64 + spent()? - before) as f64 / elapsed.as_nanos() as f64 * 100.0)
}

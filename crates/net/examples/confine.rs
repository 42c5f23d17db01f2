//! Runs a command that owns the given addresses and no others: `confine CGROUP NUMBER IP… -- COMMAND…`. The cgroup, of
//! version 2, must exist.
//!
//! It shows the crate at work without Pando around it: everything is removed when the command has ended.

use pando_kernel::{CallError, Context};
use pando_net::device::Devices;
use pando_net::placement;
use pando_net::shared::{Pins, Stack};
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let end = words.iter().position(|word| word == "--").ok_or("usage: confine CGROUP NUMBER IP... -- COMMAND...")?;
    let [group, number, ips @ ..] = &words[..end] else { return Err("name a cgroup and a number".into()) };
    let group = PathBuf::from(group);
    let directory = std::env::temp_dir().join(format!("confine.{}", std::process::id()));
    let stack = Stack::open_or_make(&Pins::at(&directory))?;
    let (mut devices, mut own) = (Devices::look()?, Vec::new());
    for ip in ips {
        let placed = placement::place(devices.all(), ip.parse()?, None, None)?;
        if let Some(index) = placed.put_on {
            devices.add_address(index, placed.own.ip, placement::bits(placed.own.ip))?;
        }
        own.push(placed.own);
    }
    stack.admit(&mut devices, &group, (number.parse()?, 0), &own)?;
    enter(&group)?;
    let status = Command::new(&words[end + 1]).args(&words[end + 2..]).status();
    stack.remove()?;
    std::process::exit(status?.code().unwrap_or(1));
}

fn enter(group: &std::path::Path) -> Result<(), CallError> {
    let path = group.join("cgroup.procs");
    std::fs::write(&path, "0").context(|| format!("writing {}", path.display()))
}

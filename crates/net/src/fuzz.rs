//! What a fuzzer calls. Each takes any bytes, and panics where what is promised of them is broken.

use crate::bandwidth::Rate;
use crate::{private, shared};
use std::net::Ipv4Addr;

/// What is kept of the shared network, and what texts of the host become for guests.
pub fn network(data: &[u8]) {
    shared::fuzz::maps(data);
    let text = String::from_utf8_lossy(data);
    let _ = text.parse::<Rate>();
    let said = private::names::resolver(&text, &[Ipv4Addr::new(10, 0, 0, 1).into()]);
    let servers: Vec<_> = said.lines().filter(|line| line.trim_start().starts_with("nameserver")).collect();
    assert_eq!(servers, ["nameserver 10.0.0.1"]);
}

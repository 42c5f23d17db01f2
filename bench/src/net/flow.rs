//! Flows that last: a sender that sends as fast as it may, and a sink that tells how much of each arrived.

use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The port of the first flow; the others follow.
pub(super) const FIRST_PORT: u16 = 7100;

/// What a datagram carries.
const DATAGRAM: usize = 1000;

/// Room for datagrams that nobody has read yet, in bytes.
const ROOM: usize = 16 << 20;

/// How many bytes a device sends for each byte that arrives: the headers of Ethernet and IP, and of TCP with its time
/// stamps or of UDP, in packets of 1,500 or of what a datagram carries.
pub(super) fn on_the_wire(kind: &str) -> f64 {
    if kind == "tcp" { 1514.0 / 1448.0 } else { (DATAGRAM + 42) as f64 / DATAGRAM as f64 }
}

/// Sends until it is killed.
pub(crate) fn send(kind: &str, ip: &str, port: u16) -> anyhow::Result<()> {
    println!("ready");
    if kind == "tcp" {
        let (mut stream, bytes) = (TcpStream::connect((ip, port))?, vec![0; 1 << 16]);
        loop {
            stream.write_all(&bytes)?;
        }
    }
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((ip, port))?;
    loop {
        // A full queue is what a limit feels like.
        if socket.send(&[0; DATAGRAM]).is_err() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Takes `count` flows of either kind, and prints once each has begun, after a second to settle, how many bits a second
/// of each arrived in `milliseconds`.
pub(crate) fn sink(count: u16, milliseconds: u64) -> anyhow::Result<()> {
    let arrived: Vec<_> = (0..count).map(|_| Arc::new(AtomicU64::new(0))).collect();
    for (number, counter) in (0..count).zip(&arrived) {
        let (listener, socket) =
            (TcpListener::bind(("0.0.0.0", FIRST_PORT + number))?, UdpSocket::bind(("0.0.0.0", FIRST_PORT + number))?);
        // What arrived counts, also if this program gets a processor only a good while later.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, ROOM)?;
        let counters = (Arc::clone(counter), Arc::clone(counter));
        std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 17];
            while let Ok((mut stream, _)) = listener.accept() {
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    counters.0.fetch_add(length as u64, Ordering::Relaxed);
                }
            }
        });
        std::thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok(length) = socket.recv(&mut bytes) {
                counters.1.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
    }
    println!("ready");
    let patience = Instant::now() + Duration::from_secs(20);
    while arrived.iter().any(|counter| counter.load(Ordering::Relaxed) == 0) {
        if Instant::now() > patience {
            bail!("not every flow began");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(1));
    let look = || arrived.iter().map(|counter| counter.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (start, before) = (Instant::now(), look());
    std::thread::sleep(Duration::from_millis(milliseconds));
    let (seconds, after) = (start.elapsed().as_secs_f64(), look());
    let rates = after.iter().zip(&before).map(|(after, before)| (after - before) as f64 * 8.0 / seconds);
    println!("{}", rates.map(|rate| rate.to_string()).collect::<Vec<_>>().join(" "));
    std::io::stdout().flush().context("telling the rates")
}

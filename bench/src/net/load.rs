//! The load: a server that takes what comes, and a client that makes it. Both are this program again, started where
//! they are to be measured.

use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the server listens.
pub(super) const PORT: u16 = 7000;

/// The first byte of a connection says what it is for.
const SINK: u8 = b's';
const ECHO: u8 = b'e';
const COUNT: u8 = b'c';
const GREET: u8 = b'g';

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Bytes that one connection carries, in Mbit/s, both ends on processors of their own.
    Stream,
    /// The same with one processor for both ends: what it costs.
    StreamOnOne,
    /// Until one byte has come back, in µs; the median.
    RoundTrip,
    /// Connections opened, answered by one byte and reset, in a second.
    Connections,
    /// Datagrams of 64 bytes that arrive, in thousands a second.
    Datagrams,
}

impl Load {
    pub(super) const ALL: [Self; 5] =
        [Self::Stream, Self::StreamOnOne, Self::RoundTrip, Self::Connections, Self::Datagrams];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stream => "tcp stream",
            Self::StreamOnOne => "tcp stream on one processor",
            Self::RoundTrip => "round trip",
            Self::Connections => "connections",
            Self::Datagrams => "udp 64 bytes",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Stream | Self::StreamOnOne => "Mbit/s",
            Self::RoundTrip => "us",
            Self::Connections => "1/s",
            Self::Datagrams => "k/s",
        }
    }

    /// How often it is looked at where others are once: the rate of a stream differs by half from one connection to the
    /// next.
    pub(super) fn looks(self) -> usize {
        if matches!(self, Self::Stream | Self::StreamOnOne) { 3 } else { 1 }
    }

    /// Where the client is. Where the scheduler puts two processes that wake each other is not what is measured, and
    /// differs more than any network: so the server is on the last processor, and the client, as if it were another
    /// machine, on the first; or with it, to see what one processor carries.
    fn processor(self) -> usize {
        if self == Self::StreamOnOne { last_processor() } else { 0 }
    }
}

pub(super) fn last_processor() -> usize {
    std::thread::available_parallelism().map_or(0, |count| count.get() - 1)
}

/// Keeps this thread, and those that it starts from now on, on one processor.
pub(super) fn stay_on(processor: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("staying on processor {processor}"))
}

/// Serves, on every address or on one, until it is killed.
pub(crate) fn serve(ip: &str) -> anyhow::Result<()> {
    stay_on(last_processor())?;
    let arrived = Arc::new(AtomicU64::new(0));
    let socket = UdpSocket::bind((ip, PORT))?;
    let counter = Arc::clone(&arrived);
    std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        while socket.recv_from(&mut bytes).is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let listener = TcpListener::bind((ip, PORT))?;
    println!("ready");
    for client in listener.incoming() {
        let (mut client, arrived) = (client?, Arc::clone(&arrived));
        let mut kind = [0];
        if !matches!(client.read(&mut kind), Ok(1)) {
            continue;
        }
        if kind == [GREET] {
            let _ = client.write_all(&kind);
        } else {
            std::thread::spawn(move || attend(client, kind[0], &arrived));
        }
    }
    Ok(())
}

fn attend(mut client: TcpStream, kind: u8, arrived: &AtomicU64) -> std::io::Result<()> {
    let mut bytes = vec![0; 1 << 17];
    client.set_nodelay(true)?;
    if kind == COUNT {
        client.write_all(&arrived.load(Ordering::Relaxed).to_le_bytes())?;
        return client.write_all(&own_time().to_le_bytes());
    }
    loop {
        let length = client.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        if kind == ECHO {
            client.write_all(&bytes[..length])?;
        }
    }
}

/// Makes one kind of load (by its name) on a server for a time, in milliseconds, and prints the figure.
pub(crate) fn make(ip: &str, name: &str, milliseconds: &str) -> anyhow::Result<()> {
    let load = Load::ALL.into_iter().find(|load| load.name() == name).context("no such load")?;
    let time = Duration::from_millis(milliseconds.parse()?);
    stay_on(load.processor())?;
    let figure = match load {
        Load::Stream | Load::StreamOnOne => stream(ip, time)?,
        Load::RoundTrip => round_trip(ip, time)?,
        Load::Connections => connections(ip, time)?,
        Load::Datagrams => datagrams(ip, time)?,
    };
    println!("{figure}");
    Ok(())
}

fn open(ip: &str, kind: u8) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect((ip, PORT))?;
    stream.set_nodelay(true)?;
    stream.write_all(&[kind])?;
    Ok(stream)
}

/// What a server has taken: datagrams, and nanoseconds of a processor.
pub(super) fn taken(ip: &str) -> anyhow::Result<(u64, u64)> {
    let (mut stream, mut numbers) = (open(ip, COUNT)?, [0; 16]);
    stream.read_exact(&mut numbers)?;
    let (first, second) = numbers.split_at(8);
    Ok((u64::from_le_bytes(first.try_into()?), u64::from_le_bytes(second.try_into()?)))
}

/// Nanoseconds of a processor that this process has had, in the kernel too.
pub(super) fn own_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(super) fn stream(ip: &str, time: Duration) -> anyhow::Result<f64> {
    let (mut stream, bytes, start) = (open(ip, SINK)?, vec![0; 1 << 17], Instant::now());
    let mut sent = 0;
    while start.elapsed() < time {
        stream.write_all(&bytes)?;
        sent += bytes.len();
    }
    Ok(sent as f64 * 8.0 / 1e6 / start.elapsed().as_secs_f64())
}

fn round_trip(ip: &str, time: Duration) -> anyhow::Result<f64> {
    let (mut stream, mut byte, start) = (open(ip, ECHO)?, [0], Instant::now());
    let mut trips = Vec::new();
    while start.elapsed() < time {
        let since = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        trips.push(since.elapsed().as_secs_f64() * 1e6);
    }
    trips.sort_by(f64::total_cmp);
    trips.get(trips.len() / 2).copied().context("not one byte came back")
}

fn connections(ip: &str, time: Duration) -> anyhow::Result<f64> {
    let (start, mut made) = (Instant::now(), 0_u32);
    while start.elapsed() < time {
        let mut stream = TcpStream::connect((ip, PORT))?;
        // Answered, or a server that gets no turn would fill its queue, and a lost packet be all that is measured.
        stream.write_all(&[GREET])?;
        stream.read_exact(&mut [0])?;
        // Reset instead of closed: ports that wait would soon be all there are, and looking for a free one take the
        // time.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        made += 1;
    }
    Ok(f64::from(made) / start.elapsed().as_secs_f64())
}

fn datagrams(ip: &str, time: Duration) -> anyhow::Result<f64> {
    let (socket, bytes, before) = (UdpSocket::bind(("0.0.0.0", 0))?, [0; 64], taken(ip)?.0);
    socket.connect((ip, PORT))?;
    let start = Instant::now();
    while start.elapsed() < time {
        // A queue that is full is part of what is measured.
        let _ = socket.send(&bytes);
    }
    let seconds = start.elapsed().as_secs_f64();
    let count = taken(ip)?.0.saturating_sub(before);
    if count == 0 {
        bail!("not one datagram arrived");
    }
    Ok(count as f64 / 1e3 / seconds)
}

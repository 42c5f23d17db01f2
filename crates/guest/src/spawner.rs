//! The spawner: a small process with one thread that makes shims.
//!
//! Making one takes a good part of a millisecond, so the daemon asks ahead. The daemon's end of the socket
//! is its life: when that closes, the spawner ends, and with it the shims that nobody connected to.

use crate::places::Places;
use crate::shim::PROGRAM;
use crate::slot::{self, Slot};
use pando_kernel::cgroup::{Entrances, Field, Hierarchies, Plot};
use pando_kernel::{CallError, Context, memory, namespace::id_map, socket::packet};
use pando_shim::{Namespaces, Scopes};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Resource;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// What a shim is made with: its namespaces and scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShimKind {
    /// In a user namespace of its own.
    pub user_namespace: bool,
    /// In a network namespace of its own, with nothing but a loopback device.
    pub network_namespace: bool,
    /// What a Landlock domain keeps inside.
    pub scopes: Scopes,
}

/// A shim, as the spawner tells of it. A user namespace's descriptor comes along, if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeShim {
    /// The number of the shim's slot.
    pub slot: u32,
    /// The shim's pid on the host.
    pub pid: i32,
}

/// The largest message in either direction.
pub const MAX_MESSAGE: usize = 4096;

/// The answer to a [`ShimKind`]: a shim, or why it could not be made.
pub type Answer = Result<MadeShim, String>;

/// The soft limit on open files that guests begin with, as systemd recommends: programs that use select(2) break above
/// it.
const GUEST_FILES: u64 = 1024;

/// Serves requests on `socket` until it closes.
pub fn serve(places: &Places, socket: &OwnedFd) -> Result<(), CallError> {
    rustix::thread::set_name(c"pando-spawner").context(|| "naming the spawner".into())?;
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = Some(limit.maximum.map_or(GUEST_FILES, |most| most.min(GUEST_FILES)));
    rustix::process::setrlimit(Resource::Nofile, limit).context(|| "limiting open files".into())?;
    let spawner = Spawner { places, field: Hierarchies::detect()?.field(&places.field())?, nursery: Nursery::start()? };
    let mut hint = 0;
    let mut unused = Unused::default();
    // While one makes its namespaces, the groups of the next are made.
    let mut sown: Option<Result<Sown, String>> = None;
    loop {
        let kind = match request(socket, sown.is_none())? {
            Request::None => None,
            Request::Shim(kind) => Some(kind),
            Request::End => return Ok(()),
        };
        let next = kind.map(|kind| spawner.sow(kind?, &mut hint).map_err(|error| error.to_string()));
        let Some(before) = std::mem::replace(&mut sown, next) else { continue };
        let made = before.and_then(|sown| spawner.settle(sown).map_err(|error| error.to_string()));
        let (answer, namespace): (Answer, _) = match made {
            Ok(made) => {
                unused.keep(made.handshake);
                (Ok(made.shim), made.namespace)
            }
            Err(message) => (Err(message), None),
        };
        let mut bytes = [0; MAX_MESSAGE];
        let bytes = postcard::to_slice(&answer, &mut bytes).map_err(io::Error::other).context(|| "answering".into())?;
        let fds: Vec<_> = namespace.iter().map(AsFd::as_fd).collect();
        packet::send(socket, bytes, &fds).context(|| "answering the daemon".into())?;
    }
}

/// What the daemon wants.
enum Request {
    /// Nothing yet.
    None,
    /// A shim, or something that cannot be read.
    Shim(Result<ShimKind, String>),
    /// Nothing any more.
    End,
}

/// The next request, waited for or not.
fn request(socket: &OwnedFd, wait: bool) -> Result<Request, CallError> {
    let mut bytes = [0; MAX_MESSAGE];
    let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    match rustix::net::recv(socket, &mut bytes, flags) {
        Ok((_, 0)) => Ok(Request::End),
        Ok((_, length)) => {
            let kind = postcard::from_bytes(bytes.get(..length).unwrap_or_default());
            Ok(Request::Shim(kind.map_err(|error| format!("reading a request: {error}"))))
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(Request::None),
        Err(errno) => Err(io::Error::from(errno)).context(|| "waiting for the daemon".into()),
    }
}

/// The handshakes of shims that nobody has connected to: they end with the spawner, whose end of the socket they watch.
#[derive(Debug, Default)]
struct Unused {
    handshakes: Vec<OwnedFd>,
    sweep_at: usize,
}

impl Unused {
    /// Keeps one more. Shims that found a client have closed theirs; looking for those at every doubling costs each
    /// only a few looks.
    fn keep(&mut self, handshake: OwnedFd) {
        const FEW: usize = 16;
        self.handshakes.push(handshake);
        if self.handshakes.len() > self.sweep_at {
            self.handshakes.retain(|handshake| !has_closed(handshake));
            self.sweep_at = (self.handshakes.len() * 2).max(FEW);
        }
    }
}

fn has_closed(handshake: &OwnedFd) -> bool {
    let read = rustix::net::recv(handshake, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(read, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
}

struct Spawner<'a> {
    places: &'a Places,
    field: Field,
    nursery: Nursery,
}

/// A seed that was ordered.
struct Sown {
    kind: ShimKind,
    slot: Slot,
    plot: Plot,
    handshake: Handshake,
}

/// A shim in its place.
struct Made {
    shim: MadeShim,
    namespace: Option<OwnedFd>,
    handshake: OwnedFd,
}

/// The process that shims are forked from: see `nursery.rs` of the shim. It ends when this value goes.
#[derive(Debug)]
struct Nursery(OwnedFd);

impl Nursery {
    fn start() -> Result<Self, CallError> {
        let program = memory::file::sealed("pando-shim", PROGRAM, true)
            .context(|| "putting the shim's program into memory".into())?;
        let (ours, theirs) = packet::pair().context(|| "making a socket pair".into())?;
        Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0("pando-shim")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context(|| "starting the nursery".into())?;
        Ok(Self(ours))
    }

    /// Orders a shim: it has a handshake, a socket to listen on, a slot to hold, and cgroups to live in.
    fn order(&self, handshake: &OwnedFd, listener: &OwnedFd, lock: &OwnedFd, into: &Entrances) -> io::Result<()> {
        let mut fds = vec![handshake.as_fd(), listener.as_fd(), lock.as_fd()];
        fds.extend(into.unified.iter().chain(&into.tasks).map(AsFd::as_fd));
        packet::send(&self.0, &[u8::from(into.unified.is_some())], &fds)
    }
}

impl Spawner<'_> {
    /// Has a shim made, which then makes its namespaces. `hint`: the slot to try first.
    fn sow(&self, kind: ShimKind, hint: &mut u32) -> Result<Sown, CallError> {
        let slot = slot::claim(*hint).context(|| "taking a slot".into())?;
        let slot =
            slot.ok_or_else(|| io::Error::other("all are taken")).context(|| "taking a slot for a guest".into())?;
        *hint = (slot.number + 1) % slot::SLOTS;
        let plot = self.field.plot(slot.number);
        plot.make()?;
        match self.order(kind, &slot, &plot) {
            Ok(handshake) => Ok(Sown { kind, slot, plot, handshake }),
            Err(error) => {
                self.clear(&slot, &plot);
                Err(error)
            }
        }
    }

    /// What was made of a shim that came to nothing goes again; whatever cannot is found and removed when the slot is
    /// next used.
    fn clear(&self, slot: &Slot, plot: &Plot) {
        let _ = plot.remove();
        let _ = std::fs::remove_file(self.places.shim(slot.number));
    }

    fn order(&self, kind: ShimKind, slot: &Slot, plot: &Plot) -> Result<Handshake, CallError> {
        let path = self.places.shim(slot.number);
        // A name left by a crash: the slot was free, so nobody listens there.
        let _ = std::fs::remove_file(&path);
        let listener = packet::listen(&path).context(|| format!("listening at {}", path.display()))?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().context(|| "making a socket pair".into())?;
        self.nursery
            .order(&theirs.into(), &listener, &slot.lock, &plot.entrances()?)
            .context(|| "ordering a shim".into())?;
        let mut namespaces = Namespaces::empty();
        namespaces.set(Namespaces::USER, kind.user_namespace);
        namespaces.set(Namespaces::NET, kind.network_namespace);
        let mut handshake = Handshake(ours);
        handshake.begin(namespaces.bits() | kind.scopes.bits(), slot::first_id(slot.number))?;
        Ok(handshake)
    }

    /// Settles a shim into its place.
    fn settle(&self, sown: Sown) -> Result<Made, CallError> {
        let Sown { kind, slot, plot, mut handshake } = sown;
        match settled(kind, &slot, &plot, &mut handshake) {
            Ok((shim, namespace)) => Ok(Made { shim, namespace, handshake: OwnedFd::from(handshake.0) }),
            Err(error) => {
                // A shim whose handshake ends goes.
                drop(handshake);
                self.clear(&slot, &plot);
                Err(error)
            }
        }
    }
}

fn settled(
    kind: ShimKind,
    slot: &Slot,
    plot: &Plot,
    handshake: &mut Handshake,
) -> Result<(MadeShim, Option<OwnedFd>), CallError> {
    let pid = handshake.hear("entering its cgroups or making namespaces (user.max_user_namespaces may be 0)")?;
    if kind.user_namespace {
        id_map::write(pid, slot::first_id(slot.number))?;
        plot.delegate(slot::first_id(slot.number))?;
    }
    handshake.say(0)?;
    handshake.hear("becoming root of its namespaces")?;
    let namespace = kind.user_namespace.then(|| id_map::open(pid)).transpose()?;
    Ok((MadeShim { slot: slot.number, pid }, namespace))
}

/// The shim's first words: see its `main.rs`.
struct Handshake(std::os::unix::net::UnixStream);

impl Handshake {
    /// Says which namespaces the shim is to make, and in whose name. In one write, for it is woken by the first word.
    fn begin(&mut self, wanted: u32, owner: u32) -> Result<(), CallError> {
        let words = [wanted.to_le_bytes(), owner.to_le_bytes()];
        self.0.write_all(words.as_flattened()).context(|| "speaking to a shim".into())
    }

    fn say(&mut self, word: u32) -> Result<(), CallError> {
        self.0.write_all(&word.to_le_bytes()).context(|| "speaking to a shim".into())
    }

    fn hear(&mut self, doing: &str) -> Result<i32, CallError> {
        let mut word = [0; 4];
        self.0.read_exact(&mut word).context(|| format!("waiting for a shim that was {doing}"))?;
        match i32::from_le_bytes(word) {
            errno if errno < 0 => Err(io::Error::from_raw_os_error(-errno)).context(|| format!("in a shim, {doing}")),
            word => Ok(word),
        }
    }
}

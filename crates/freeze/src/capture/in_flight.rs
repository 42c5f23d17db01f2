//! Descriptors in flight (SCM_RIGHTS in unix(7)): open files that wait in unix sockets, until somebody receives them or
//! nobody ever does. Who looks gets copies of them, and so they are looked at and captured like those of one more
//! process, which is the one that looks; the copies go when the processes run on.
//!
//! A socket in flight may have others in flight in it. Each socket is looked into once, so that circles of them end.

use crate::capture::descriptors::Notebook;
use crate::capture::socket_queue::{self, Message};
use crate::image::own_files::is_own_proc;
use crate::image::socket::MOST_IN_FLIGHT;
use crate::image::{FileKind, Image, Waiting};
use crate::inspect::descriptors::{self, Found, Outside, is, supplied};
use crate::inspect::open_files::Place;
use crate::inspect::process_tree::Member;
use crate::inspect::{socket_table, terminal_ends};
use crate::refusal::{FreezeError, Refusal};
use pando_kernel::{CallError, Context, socket};
use rustix::fs::FileType;
use std::os::fd::AsRawFd;

/// And than this not looked at while the processes run: until then they are open in the daemon itself, which needs
/// descriptors for others.
const MOST_EARLY: usize = 64;

/// What one message brings at most (`SCM_MAX_FD`).
pub(crate) const MOST_AT_ONCE: usize = 253;

type Objection = (String, &'static str);
const RECEIVE: &str = "let the program receive them first";

/// Everything that is in flight.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    carriers: Vec<Carrier>,
}

/// A socket in which descriptors wait.
#[derive(Debug)]
struct Carrier {
    /// Where it was found.
    place: Place,
    /// How many the kernel says there are.
    count: usize,
    /// The process that has it, or the socket in which it waits, and by which descriptor.
    holder: (i32, String, i32),
    messages: Vec<Message>,
    objection: Option<Objection>,
    /// What waits in it, once it is captured.
    waiting: Option<Vec<Waiting>>,
}

impl Flight {
    /// What is in flight in the sockets of processes, and what each of these descriptors is: those of one socket after
    /// another. Of processes that run only what comes next is looked at.
    pub(crate) fn look(
        all: &[(&Member, Vec<Found>)],
        outside: &[Outside],
        stopped: bool,
    ) -> Result<(Self, Vec<Vec<Found>>), CallError> {
        let mut flight = Self::default();
        for (member, found) in all {
            for one in found {
                flight.note(member.outer, one, outside, || (member.pid, member.name.clone(), one.number));
            }
        }
        let (mut all, mut next, mut total) = (Vec::new(), 0, 0);
        while next < flight.carriers.len() {
            let carrier = &mut flight.carriers[next];
            total += carrier.count;
            carrier.look(total, stopped)?;
            let copies = carrier.messages.iter().flat_map(|message| &message.descriptors);
            let own = std::process::id() as i32;
            let found = copies.map(|copy| descriptors::one(own, copy.as_raw_fd())).collect::<Result<Vec<_>, _>>()?;
            let holder = carrier.holder.clone();
            for one in &found {
                flight.note(own, one, outside, || holder.clone());
            }
            all.push(found);
            next += 1;
        }
        Ok((flight, all))
    }

    /// Notes a socket that carries some.
    fn note(&mut self, outer: i32, found: &Found, outside: &[Outside], holder: impl FnOnce() -> (i32, String, i32)) {
        // Since Linux 5.6; without that nobody knows.
        let count = if is(found, FileType::Socket) { found.lines.number("scm_fds", 10).unwrap_or(0) } else { 0 };
        let (device, inode) = (found.stat.st_dev, found.stat.st_ino);
        let known = || self.carriers.iter().any(|carrier| carrier.place.inode == inode);
        if count == 0 || supplied(found, outside).is_some() || known() {
            return;
        }
        let (place, count) = (Place { outer, number: found.number, device, inode }, count as usize);
        let (messages, objection, waiting) = (Vec::new(), None, None);
        self.carriers.push(Carrier { place, count, holder: holder(), messages, objection, waiting });
    }

    /// Who stands for the process that has them: one for each socket, whose pid none has.
    pub(crate) fn members(&self) -> Vec<Member> {
        let member = |number: usize| {
            let name = self.carriers[number].holder.1.clone();
            Member { outer: std::process::id() as i32, pid: -1 - number as i32, name, state: 'S' }
        };
        (0..self.carriers.len()).map(member).collect()
    }

    /// What stands in the way of the sockets themselves, and what cannot be where nobody has it.
    pub(crate) fn objections(&self, found: &[Vec<Found>]) -> Vec<Refusal> {
        let of = |carrier: &Carrier, (kind, advice): Objection| carrier.refusal(kind, advice);
        let carriers = self
            .carriers
            .iter()
            .filter_map(|carrier| carrier.objection.clone().map(|objection| of(carrier, objection)));
        let terminals = self.carriers.iter().zip(found).filter_map(|(carrier, found)| {
            let own = found.iter().find(|one| terminal_ends::is_own(one))?;
            Some(of(carrier, (format!("{} {IN_FLIGHT}", own.target), RECEIVE)))
        });
        carriers.chain(terminals).collect()
    }

    /// Makes refusals of what is in flight say where that is.
    pub(crate) fn explain(&self, refusals: &mut [Refusal]) {
        for refusal in refusals {
            let number = usize::try_from(-1 - i64::from(refusal.pid)).ok();
            if let Some(carrier) = number.and_then(|number| self.carriers.get(number)) {
                let kind = format!("{} {IN_FLIGHT}", refusal.kind);
                *refusal = carrier.refusal(kind, refusal.advice);
            }
        }
    }

    /// Captures what is in flight, when all that processes have is captured.
    pub(crate) fn capture(
        &mut self,
        found: &[Vec<Found>],
        notebook: &mut Notebook<'_>,
        outside: &[Outside],
        image: &mut Image,
    ) -> Result<(), FreezeError> {
        let members = self.members();
        for (carrier, (member, found)) in self.carriers.iter_mut().zip(members.iter().zip(found)) {
            let held = image.files.len();
            let files = notebook.capture(member, found, outside, image)?;
            for (one, found) in files.iter().zip(found) {
                if let Some((kind, advice)) = homeless(image, one.file, one.file >= held, found) {
                    return Err(FreezeError::Refused(vec![carrier.refusal(format!("{kind} {IN_FLIGHT}"), advice)]));
                }
            }
            let mut files = files.into_iter().map(|one| one.file);
            let waiting = carrier.messages.iter().map(|message| Waiting {
                bytes: message.bytes.clone(),
                from: message.from.clone(),
                files: files.by_ref().take(message.descriptors.len()).collect(),
                sender: message.sender,
            });
            carrier.waiting = Some(waiting.collect());
        }
        Ok(())
    }

    /// What waits in a socket, if it was looked at for descriptors.
    pub(crate) fn take(&mut self, inode: u64) -> Option<Vec<Waiting>> {
        self.carriers.iter_mut().find(|carrier| carrier.place.inode == inode)?.waiting.take()
    }
}

const IN_FLIGHT: &str = "that waits to be received from a unix socket (SCM_RIGHTS)";

/// Why what is captured cannot be had in a clone where the maker is to send it: because it needs a process that has it.
fn homeless(image: &Image, file: usize, only_here: bool, found: &Found) -> Option<Objection> {
    if is_own_proc(image, file) {
        return Some((format!("a file of /proc ({})", found.target), RECEIVE));
    }
    let own_group = |watches: &[crate::image::FileWatch]| watches.iter().any(|one| image.control_groups.has(&one.path));
    match &image.files[file].kind {
        FileKind::Process { .. } => Some(("a process descriptor".into(), RECEIVE)),
        FileKind::Epoll if only_here && found.info.lines().any(|line| line.starts_with("tfd:")) => {
            Some(("an epoll instance that watches something".into(), RECEIVE))
        }
        FileKind::Inotify { watches } if only_here && own_group(watches) => {
            Some(("an inotify instance that watches control groups".into(), RECEIVE))
        }
        _ => None,
    }
}

impl Carrier {
    /// Looks into it, as the one up to which there are so many in all.
    fn look(&mut self, total: usize, stopped: bool) -> Result<(), CallError> {
        if total > MOST_IN_FLIGHT {
            self.objection =
                Some((format!("more than {MOST_IN_FLIGHT} descriptors that wait in unix sockets"), RECEIVE));
            return Ok(());
        }
        if total > MOST_EARLY && !stopped {
            return Ok(());
        }
        // One that has been closed meanwhile has nothing against it.
        let socket = match socket_table::borrow(self.place) {
            Err(_) if !stopped => return Ok(()),
            borrowed => borrowed?,
        };
        let option = |number: i32| {
            socket::option::number(&socket, libc::SOL_SOCKET, number).context(|| "reading a unix socket".into())
        };
        // What waits in connections that nobody has accepted cannot be looked at. They are reset.
        if option(libc::SO_ACCEPTCONN)? != 0 {
            return Ok(());
        }
        if !stopped {
            self.messages.extend(socket_queue::next(&socket).ok().flatten());
            return Ok(());
        }
        self.messages = socket_queue::all(&socket, option(libc::SO_TYPE)?)?;
        let seen: usize = self.messages.iter().map(|message| message.descriptors.len()).sum();
        if seen != self.count || self.messages.iter().any(|message| message.lacks) {
            let kind = format!(
                "a unix socket in which {} descriptors wait (SCM_RIGHTS), of which {seen} are seen",
                self.count
            );
            self.objection = Some((kind, RECEIVE));
        }
        Ok(())
    }

    fn refusal(&self, kind: String, advice: &'static str) -> Refusal {
        let (pid, name, number) = self.holder.clone();
        Refusal { pid, name, descriptor: Some(number), kind, advice }
    }
}

//! Running the BPF program that walks a dentry cache (iterators over the files of a process, since Linux 6.1; bpf_loop,
//! since 5.17).

use super::ReadSetError;
use super::dentries::Seen;
use super::fitted::{Code, Fitted};
use super::tenant::Tenant;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, RingBufferBuilder};
use pando_kernel::bpf;
use pando_kernel::bpf::iterator::Instructions;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Bytes of the ring that records come through: small at first, since it is made of memory and mapping it costs a short
/// command more than the walk does, larger when it was too small.
const RINGS: [u32; 4] = [1 << 17, 8 << 20, 64 << 20, 512 << 20];

/// What a record takes of it, amply: 96 bytes and a name.
const RECORD_IN_RING: u64 = 160;

/// The key of maps with one element.
const ONLY: [u8; 4] = [0; 4];

/// Bytes of the program's `struct record`, `struct request` and `struct outcome`.
const RECORD: u32 = 344;
const REQUEST: u32 = 8;
const OUTCOME: u32 = 40;

/// The programs, loaded, and their maps.
#[derive(Debug)]
pub(crate) struct Walker {
    program: OwnedFd,
    /// What tells who has memory.
    memory: OwnedFd,
    records: MapHandle,
    requests: MapHandle,
    outcomes: MapHandle,
}

/// Directories that the kernel tells of once, when they are opened.
pub(super) struct Opened<'a> {
    /// Some of them, each open; none if there are no more.
    pub(super) read: &'a mut dyn FnMut() -> io::Result<Vec<OwnedFd>>,
    /// Notes at which dentries they are.
    pub(super) note: &'a mut dyn FnMut(Vec<u64>) -> io::Result<()>,
}

/// What a walk comes to.
enum Walked {
    /// Everything.
    All(Vec<Vec<Seen>>),
    /// The ring was too small: so many records would have been there on one of the file systems.
    TooMany(u64),
}

/// What the program is asked.
#[derive(Clone, Copy, Debug)]
enum Request {
    /// What is on the file system of this open file.
    Names { fd: i32 },
    /// Who has named fifos open.
    Fifos,
    /// Where the directories are that this process has open.
    Directories,
}

impl Request {
    fn bytes(self) -> [u8; REQUEST as usize] {
        let (fd, what) = match self {
            Self::Names { fd } => (fd, 0_u32),
            Self::Fifos => (-1, 1),
            Self::Directories => (-1, 2),
        };
        let mut bytes = [0; REQUEST as usize];
        bytes[..4].copy_from_slice(&fd.to_ne_bytes());
        bytes[4..].copy_from_slice(&what.to_ne_bytes());
        bytes
    }
}

/// How the walk went.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    done: u64,
    lost: u64,
}

/// The pid in a record of somebody who has a fifo open.
fn holder(bytes: &[u8]) -> Option<i32> {
    let pid = u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
    i32::try_from(pid).ok()
}

/// Where a directory of this process is: its descriptor, and the dentry.
fn directory(bytes: &[u8]) -> Option<(i32, u64)> {
    let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some((i32::try_from(word(8)?).ok()?, word(0)?))
}

fn refused(error: libbpf_rs::Error) -> ReadSetError {
    ReadSetError::Refused(error.to_string())
}

fn io_refused(error: io::Error) -> ReadSetError {
    ReadSetError::Refused(error.to_string())
}

fn map(kind: MapType, name: &str, value: u32, entries: u32) -> Result<MapHandle, ReadSetError> {
    let options = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as u64, ..Default::default() };
    let key = if kind == MapType::RingBuf { 0 } else { 4 };
    MapHandle::create(kind, Some(name), key, value, entries, &options).map_err(refused)
}

impl Walker {
    fn load(fitted: &Fitted, ring: u32) -> Result<Self, ReadSetError> {
        let records = map(MapType::RingBuf, "records", 0, ring)?;
        let scratch = map(MapType::PercpuArray, "scratch", RECORD, 1)?;
        let requests = map(MapType::Array, "requests", REQUEST, 1)?;
        let outcomes = map(MapType::Array, "outcomes", OUTCOME, 1)?;
        // In the order of `MAPS`. The program holds the ones that only it needs.
        let maps = [&records, &scratch, &requests, &outcomes].map(|map| map.as_fd().as_raw_fd());
        let load = |code: &Code| {
            let all = code.instructions(maps);
            let program = Instructions { all: &all, second: code.second, hook: code.hook };
            bpf::iterator::load(program).map_err(io_refused)
        };
        Ok(Self { program: load(&fitted.walk)?, memory: load(&fitted.memory)?, records, requests, outcomes })
    }

    /// The programs of one that another process is to use, which finds their maps by their numbers.
    pub(super) fn into_programs(self) -> [OwnedFd; 2] {
        [self.program, self.memory]
    }

    /// The kernel's numbers of its maps. They live as long as the program does.
    pub(super) fn maps(&self) -> Option<[u32; 3]> {
        let number = |map: &MapHandle| map.info().map(|info| info.info.id).ok();
        Some([number(&self.records)?, number(&self.requests)?, number(&self.outcomes)?])
    }

    /// One that another process has loaded, by its programs and the numbers of its maps.
    pub(super) fn of_programs([program, memory]: [OwnedFd; 2], maps: [u32; 3]) -> Result<Self, ReadSetError> {
        let map = |number| MapHandle::from_map_id(number).map_err(refused);
        let [records, requests, outcomes] = maps;
        Ok(Self { program, memory, records: map(records)?, requests: map(requests)?, outcomes: map(outcomes)? })
    }

    /// The processes that have memory. One whose first thread has ended is told by each of the others.
    pub(crate) fn tenants(&self) -> io::Result<Vec<Tenant>> {
        let link = bpf::iterator::over_all(self.memory.as_fd())?;
        let mut bytes = Vec::with_capacity(4096);
        bpf::iterator::run(link.as_fd())?.read_to_end(&mut bytes)?;
        Ok(Tenant::all_of_bytes(&bytes).collect())
    }

    /// The dentries of the file systems that open files of this process are on; and before that, those of the
    /// directories that have been opened, which go to `listed`.
    fn walk_all<F: AsFd>(&self, files: &[F], opened: &mut Opened<'_>) -> Result<Walked, ReadSetError> {
        let seen = RefCell::new(Vec::new());
        let places = RefCell::new(HashMap::new());
        let is_asked_for_places = Cell::new(false);
        // Attached, and the ring mapped, once: either takes longer than a short walk.
        let link = bpf::iterator::over_process(self.program.as_fd(), std::process::id()).map_err(io_refused)?;
        let mut builder = RingBufferBuilder::new();
        let keep = |bytes: &[u8]| {
            if is_asked_for_places.get() {
                places.borrow_mut().extend(directory(bytes));
            } else {
                seen.borrow_mut().extend(Seen::from_bytes(bytes));
            }
            0
        };
        builder.add(&self.records, keep).map_err(refused)?;
        let ring = builder.build().map_err(refused)?;
        loop {
            let some = (opened.read)().map_err(|error| ReadSetError::Untold(error.to_string()))?;
            if some.is_empty() {
                break;
            }
            is_asked_for_places.set(true);
            let Outcome { lost, .. } = self.run(Request::Directories, &link)?;
            ring.consume().map_err(refused)?;
            is_asked_for_places.set(false);
            let places = places.take();
            let place = |object: &OwnedFd| places.get(&object.as_raw_fd()).copied();
            let found: Option<Vec<u64>> = some.iter().map(place).collect();
            let Some(found) = found.filter(|_| lost == 0) else {
                return Err(ReadSetError::Untold("a directory that it has listed was not found again".into()));
            };
            (opened.note)(found).map_err(|error| ReadSetError::Untold(error.to_string()))?;
        }
        let mut all = Vec::new();
        for file in files {
            let lost = self.walk(file, &link)?;
            ring.consume().map_err(refused)?;
            let told = seen.take();
            if lost > 0 {
                return Ok(Walked::TooMany(lost + told.len() as u64));
            }
            all.push(told);
        }
        Ok(Walked::All(all))
    }

    /// Puts the dentries of the file system that an open file is on into the ring; for how many there was no room.
    fn walk(&self, file: impl AsFd, link: impl AsFd) -> Result<u64, ReadSetError> {
        match self.run(Request::Names { fd: file.as_fd().as_raw_fd() }, link)? {
            Outcome { done: 1, lost } => Ok(lost),
            _ => Err(ReadSetError::Untold("the walk over the names did not come to its end".into())),
        }
    }

    /// The processes that have a named fifo open, by their pids outside of all namespaces; `None` if there are more
    /// than the ring holds.
    pub(crate) fn holders_of_fifos(&self) -> Result<Option<BTreeSet<i32>>, ReadSetError> {
        let found = RefCell::new(BTreeSet::new());
        let link = bpf::iterator::over_all(self.program.as_fd()).map_err(io_refused)?;
        let outcome = self.run(Request::Fifos, &link)?;
        let keep = |bytes: &[u8]| {
            found.borrow_mut().extend(holder(bytes));
            0
        };
        let mut builder = RingBufferBuilder::new();
        builder.add(&self.records, keep).map_err(refused)?;
        builder.build().and_then(|ring| ring.consume()).map_err(refused)?;
        Ok((outcome.lost == 0).then(|| found.take()))
    }

    fn run(&self, request: Request, link: impl AsFd) -> Result<Outcome, ReadSetError> {
        self.requests.update(&ONLY, &request.bytes(), MapFlags::ANY).map_err(refused)?;
        self.outcomes.update(&ONLY, &[0; OUTCOME as usize], MapFlags::ANY).map_err(refused)?;
        // It prints nothing: reading to the end runs it for every file.
        let mut run = bpf::iterator::run(link.as_fd()).map_err(io_refused)?;
        run.read_to_end(&mut Vec::new()).map_err(io_refused)?;
        let outcome = self.outcomes.lookup(&ONLY, MapFlags::ANY).map_err(refused)?.unwrap_or_default();
        let number =
            |at: usize| outcome.get(at..at + 8).and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?)));
        let whole = number(0).zip(number(8)).map(|(done, lost)| Outcome { done, lost });
        whole.ok_or_else(|| ReadSetError::Untold("its program says nothing of how it ended".into()))
    }
}

/// Loads the program ahead, as it is first tried. What it has to be fitted to the kernel for is kept in `directory`.
pub(crate) fn load_ahead(directory: &Path) -> Option<Walker> {
    // Why it cannot be is told when it is needed.
    Fitted::kept_in(directory).and_then(|fitted| Walker::load(&fitted, RINGS[0])).ok()
}

/// The dentries of the file systems that these files are on. `walker` is the one that is loaded, if one is; it gives
/// way to one with more room.
pub(super) fn walk<F: AsFd>(
    files: &[F],
    directory: &Path,
    walker: &mut Option<Walker>,
    opened: &mut Opened<'_>,
) -> Result<Vec<Vec<Seen>>, ReadSetError> {
    let mut wanted = 0;
    for ring in RINGS {
        if u64::from(ring) < wanted {
            continue;
        }
        let loaded = match walker.take().filter(|_| wanted == 0) {
            Some(loaded) => loaded,
            None => Walker::load(&Fitted::kept_in(directory)?, ring)?,
        };
        match walker.insert(loaded).walk_all(files, opened)? {
            Walked::All(all) => return Ok(all),
            Walked::TooMany(records) => {
                wanted = records.saturating_mul(RECORD_IN_RING).min(RINGS[RINGS.len() - 1].into())
            }
        }
    }
    Err(ReadSetError::Untold("it read more names than can be kept".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_ended_or_is_the_kernels_has_no_memory() {
        let directory = tempfile::tempdir().unwrap();
        let loaded = load_ahead(directory.path()).filter(|_| pando_kernel::process::counts_as_the_kernel());
        let Some(walker) = loaded else {
            return eprintln!("skipped: this machine does not let BPF programs be loaded");
        };
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pid = ended.id().cast_signed();
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let whom = rustix::process::WaitId::Pid(rustix::process::Pid::from_raw(pid).unwrap());
        rustix::process::waitid(whom, options).unwrap();
        let told = walker.tenants().unwrap();
        ended.wait().unwrap();
        let has = |pid: i32| told.iter().any(|tenant| tenant.pid == pid);
        assert!(has(std::process::id().cast_signed()) && !has(pid) && !has(2));
    }

    #[test]
    fn what_is_asked_and_told_has_the_programs_layout() {
        assert_eq!(Request::Names { fd: 7 }.bytes(), [7_i32.to_ne_bytes(), [0; 4]].concat()[..]);
        assert_eq!(Request::Fifos.bytes()[4..], 1_u32.to_ne_bytes());
        assert_eq!(Request::Directories.bytes()[4..], 2_u32.to_ne_bytes());
        let mut record = 4242_u64.to_ne_bytes().to_vec();
        record.extend([0; 24]);
        assert_eq!(holder(&record), Some(4242));
        assert_eq!(holder(&record[..7]), None);
        let place = [4242_u64.to_ne_bytes(), 7_u64.to_ne_bytes()].concat();
        assert_eq!((directory(&place), directory(&place[..15])), (Some((7, 4242)), None));
    }
}

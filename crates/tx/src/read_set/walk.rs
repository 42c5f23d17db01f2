//! Running the BPF program that walks a dentry cache (iterators over the files of tasks, since Linux 5.8; bpf_loop, since 5.17).

use super::ReadSetError;
use super::dentries::Seen;
use libbpf_rs::{Iter, MapCore, MapFlags, Object, ObjectBuilder, RingBufferBuilder};
use std::cell::RefCell;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/read_set.bpf.o"));

/// Bytes of the ring that records come through: small at first, since it is made of memory, larger when it was too small.
const RINGS: [u32; 4] = [1 << 20, 8 << 20, 64 << 20, 512 << 20];

/// The key of maps with one element.
const ONLY: [u8; 4] = [0; 4];

/// The program, loaded.
pub(super) struct Walker {
    object: Object,
}

fn refused(error: libbpf_rs::Error) -> ReadSetError {
    ReadSetError::Refused(error.to_string())
}

impl Walker {
    fn load(ring: u32) -> Result<Self, ReadSetError> {
        // What it has to say about a refusal is in its errors as well.
        libbpf_rs::set_print(None);
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(refused)?;
        for mut map in open.maps_mut().filter(|map| map.name() == "records") {
            map.set_max_entries(ring).map_err(refused)?;
        }
        Ok(Self { object: open.load().map_err(refused)? })
    }

    fn map(&self, name: &str) -> Result<libbpf_rs::Map<'_>, ReadSetError> {
        let found = self.object.maps().find(|map| map.name() == name);
        found.ok_or_else(|| ReadSetError::Refused(format!("its program lacks {name}")))
    }

    /// The dentries of the file system that an open file of this process is on; `None` if there are more than the ring holds.
    fn walk(&self, file: impl AsFd) -> Result<Option<Vec<Seen>>, ReadSetError> {
        let request = file.as_fd().as_raw_fd().to_ne_bytes();
        self.map("requests")?.update(&ONLY, &request, MapFlags::ANY).map_err(refused)?;
        self.map("outcomes")?.update(&ONLY, &[0; 16], MapFlags::ANY).map_err(refused)?;
        let program =
            self.object.progs_mut().next().ok_or_else(|| ReadSetError::Refused("it has no program".into()))?;
        let link = program.attach_iter_with_opts(libbpf_rs::IterOpts::None).map_err(refused)?;
        let mut iterator = Iter::new(&link).map_err(refused)?;
        let io = |error: std::io::Error| ReadSetError::Refused(error.to_string());
        // It prints nothing: reading to the end runs it for every file.
        iterator.read_to_end(&mut Vec::new()).map_err(io)?;
        let seen = RefCell::new(Vec::new());
        {
            let records = self.map("records")?;
            let mut builder = RingBufferBuilder::new();
            let keep = |bytes: &[u8]| {
                seen.borrow_mut().extend(Seen::from_bytes(bytes));
                0
            };
            builder.add(&records, keep).map_err(refused)?;
            let ring = builder.build().map_err(refused)?;
            ring.poll(Duration::ZERO).map_err(refused)?;
            ring.consume().map_err(refused)?;
        }
        let outcome = self.map("outcomes")?.lookup(&ONLY, MapFlags::ANY).map_err(refused)?.unwrap_or_default();
        let number =
            |at: usize| outcome.get(at..at + 8).and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?)));
        match (number(0), number(8)) {
            (Some(1), Some(0)) => Ok(Some(seen.into_inner())),
            (Some(1), Some(_)) => Ok(None),
            _ => Err(ReadSetError::Refused("the walk over the names did not come to its end".into())),
        }
    }
}

/// The dentries of the file systems that these files are on.
pub(super) fn walk<F: AsFd>(files: &[F]) -> Result<Vec<Vec<Seen>>, ReadSetError> {
    for ring in RINGS {
        let walker = Walker::load(ring)?;
        let all: Option<Vec<_>> = files.iter().map(|file| walker.walk(file)).collect::<Result<_, _>>()?;
        if let Some(all) = all {
            return Ok(all);
        }
    }
    Err(ReadSetError::Refused("it read more names than can be kept".into()))
}

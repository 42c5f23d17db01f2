//! Starting a holder from an image on disk. Every bit of it is checked before anything is done.

use crate::aio;
use crate::check;
use crate::freeze::Frozen;
use crate::holder::Holder;
use crate::keep::{self, MEMORY, TREE, Tree};
use crate::limits;
use crate::machine::{self, Machine};
use crate::origin::{self, Origin};
use crate::plan;
use crate::planted;
use crate::powers::Powers;
use crate::refusal::FreezeError;
use crate::sheet::{BODY, Kind, Opened, SheetError};
use pando_kernel::CallError;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The longest file `tree` that is read.
pub const LONGEST_TREE: u64 = 1 << 30;

/// Why an image on disk has no holder. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThawError {
    /// A file is missing, or not as it was written.
    #[error(transparent)]
    Sheet(#[from] SheetError),
    /// It needs what is not here.
    #[error("{0}")]
    Elsewhere(String),
    /// The kernel did not do its part.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its processes cannot be made.
    #[error(transparent)]
    Unmade(#[from] FreezeError),
}

/// Reads what is in a directory that [`Frozen::keep`] filled. `root` has the files that were frozen with it.
pub fn thaw(directory: &Path, root: BorrowedFd<'_>) -> Result<Frozen, ThawError> {
    let (mut tree, memory) = open(directory)?;
    if let Some(objection) = tree.machine.objection(&Machine::here()?) {
        return Err(ThawError::Elsewhere(objection));
    }
    if let Some(objection) = machine::changed(&tree.files, &machine::mapped(&tree.image, root)?) {
        return Err(ThawError::Elsewhere(objection));
    }
    if aio::are_in(&tree.image) {
        aio::fit(&mut tree.image, machine::most_processors()?).map_err(ThawError::Elsewhere)?;
    }
    memory.check()?;
    let mut holder = Holder::start()?;
    // Of the file that was checked, whatever its name is by now.
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.file.as_fd().as_raw_fd());
    let script = plan::script(&planted::of(&tree.image), &holder.facts(Origin::File { path, start: BODY })?)?;
    limits::lift(&tree.image, holder.pid())?;
    holder.hold(script, root)?;
    let Tree { image, pause, files, .. } = tree;
    let (connections, generators) = (Vec::new(), Vec::new());
    Ok(Frozen { image, holder, pause, connections, generators, files, alike: AtomicBool::new(false) })
}

/// Looks through an image that came from elsewhere, and notes in it that it did; what its processes hold.
pub fn adopt(directory: &Path) -> Result<Powers, ThawError> {
    let (mut tree, memory) = open(directory)?;
    memory.check()?;
    tree.image.adopted = true;
    keep::rewrite(directory, &tree)?;
    Ok(Powers::of(&tree.image))
}

/// Understands the body of a file `tree`, checks all of it, and puts it anew: for a process that has no powers, which reads what others have made before anybody
/// else does.
///
/// # Errors
///
/// What is wrong with it.
pub fn put_anew(body: &[u8]) -> Result<Vec<u8>, String> {
    postcard::to_stdvec(&understood(body)?).map_err(|error| error.to_string())
}

fn understood(body: &[u8]) -> Result<Tree, String> {
    let tree: Tree = postcard::from_bytes(body).map_err(|error| format!("it cannot be read ({error})"))?;
    check::check(&tree.image)?;
    Ok(tree)
}

/// Everything but whether the memory is as it was written, which takes a while.
fn open(directory: &Path) -> Result<(Tree, Opened), ThawError> {
    let sheet = Opened::open(&directory.join(TREE), Kind::Tree)?;
    let body = sheet.body(LONGEST_TREE)?;
    let tree = understood(&body).map_err(|what| sheet.damaged(what))?;
    let memory = Opened::open(&directory.join(MEMORY), Kind::Memory)?;
    if memory.length != tree.memory || memory.length != origin::length(&tree.image) {
        return Err(memory.damaged("it is not of this image").into());
    }
    Ok((tree, memory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{
        AioRing, Area, AreaKind, Content, ContentKind, ControlGroup, ControlGroups, Descriptor, FileKind, HostNames,
        Image, Keyed, KeyedKind, MountChange, MountSource, MountSpace, NetSpace, OpenFile, Pipe, Process, Queue,
        Terminal, TerminalEnd, Thread, UnixSocket, UserSpace, Waiting,
    };
    use crate::plan::Facts;
    use crate::sheet::write_sheet;
    use proptest::prelude::*;
    use std::time::Duration;

    fn area(start: u64, kind: AreaKind) -> Area {
        let pages_are_own = matches!(kind, AreaKind::Anonymous);
        let pages = if pages_are_own { vec![(start, 4096)] } else { Vec::new() };
        Area {
            advice: vec![libc::MADV_DONTDUMP as u32],
            pages,
            guards: if pages_are_own { vec![(start + 0x3000, 0x1000)] } else { Vec::new() },
            ..Area::new(start, start + 0x4000, 3, kind)
        }
    }

    fn process(pid: i32, parent: i32) -> Process {
        let thread = |tid| Thread { tid, registers: vec![7; 25], extended: vec![0; 900], ..Thread::default() };
        Process {
            pid,
            parent,
            group: 2,
            session: 2,
            threads: vec![thread(pid), thread(pid + 100)],
            areas: vec![
                area(0x10_0000, AreaKind::Anonymous),
                area(0x20_0000, AreaKind::Private { path: "/bin/sh".into(), offset: 0 }),
                area(0x30_0000, AreaKind::Nameless { content: 0, offset: 0, shared: true, writable: true }),
                area(0x40_0000, AreaKind::Kernel { name: "[vdso]".into() }),
                area(0x50_0000, AreaKind::Segment { id: 0, writable: true }),
                area(0x60_0000, AreaKind::AioRing(AioRing { requests: 3, head: 510, events: vec![[1; 4]; 2] })),
            ],
            executable: "/bin/sh".into(),
            directory: "/".into(),
            descriptors: (0..5)
                .map(|number| Descriptor { number, file: number as usize, close_on_exec: false })
                .collect(),
            actions: vec![(2, [0; 4])],
            ..Process::default()
        }
    }

    fn image() -> Image {
        let file = |kind| OpenFile { flags: 2, position: 3, lock: None, ranges: Vec::new(), kind, mount_space: None };
        let content = Content {
            kind: ContentKind::Memory { name: "x".into(), seals: 0 },
            length: 0x8000,
            runs: vec![(0, 4096), (0x4000, 4096)],
            mode: 0o600,
            owner: (0, 0),
            holder: 2,
            path: "fd/3".into(),
            times: [1, 2, 3, 4],
        };
        let kinds = [
            FileKind::Named { path: "/etc/passwd".into() },
            FileKind::PipeEnd { pipe: 0, writes: true },
            FileKind::Nameless { content: 0 },
            FileKind::Unix { socket: 0 },
            FileKind::Terminal { terminal: 0, end: TerminalEnd::Other },
            FileKind::Namespace { kind: libc::CLONE_NEWIPC, space: Some(0) },
        ];
        let (path, from) = ("/mnt".to_owned(), MountSource { space: None, path: "/srv".into() });
        let changes = vec![
            MountChange::Gone { path: path.clone() },
            MountChange::Set { path: path.clone(), attributes: 1 },
            MountChange::Bind { path: path.clone(), from, attributes: 1 },
            MountChange::Memory { path: path.clone(), options: "size=5k".into(), attributes: 0, contents: (0, 1) },
            MountChange::Queues { path: path.clone(), space: 0, attributes: 0, device: String::new() },
            MountChange::Devices { path, space: 0, attributes: 0, device: String::new() },
        ];
        let settings = vec![("pids.max".to_owned(), "9".to_owned())];
        let group = ControlGroup { path: "/init.scope".into(), owner: (1, 1), given: Vec::new(), settings };
        let (name, waiting) = (b"\x01\0/run/x\0".to_vec(), b"with two".to_vec());
        let queue = vec![Waiting { bytes: waiting, from: Vec::new(), files: vec![0, 3] }];
        let segment = KeyedKind::Segment { length: 4096, content: vec![1; 9] };
        Image {
            processes: vec![process(2, 1), process(3, 2), process(4, 3)],
            files: kinds.into_iter().map(file).collect(),
            pipes: vec![Pipe { capacity: 4096, content: b"content".to_vec(), path: None, mount_space: Some(0) }],
            unix: vec![UnixSocket { file: 3, kind: 1, name, connected: true, queue, ..UnixSocket::default() }],
            contents: vec![content],
            terminals: vec![Terminal { number: 2, settings: vec![0; 44], session: 2, ..Terminal::default() }],
            keyed: vec![Keyed { id: 0, key: 5, mode: 0o600, owner: (0, 0), kind: segment }],
            queues: vec![Queue { name: "jobs".into(), capacity: 1, longest: 4, ..Queue::default() }],
            host_names: vec![HostNames { host: b"inner".to_vec(), domain: Vec::new() }],
            mounts: vec![MountChange::Gone { path: "/sys".into() }],
            shared_mounts: true,
            mount_spaces: vec![MountSpace { changes, ..MountSpace::default() }],
            ipc_spaces: 1,
            net_spaces: vec![NetSpace { up: true }],
            net_settings: vec![("/proc/sys/net/ipv4/ip_forward".into(), "1".into())],
            user_spaces: vec![UserSpace { users: vec![[0, 0, 1]], groups: vec![[0, 0, 1]], ..UserSpace::default() }],
            control_groups: ControlGroups {
                root: "/sys/fs/cgroup".into(),
                given: vec!["pids".into()],
                groups: vec![group],
            },
            init: 1,
            adopted: true,
        }
    }

    #[test]
    fn an_image_comes_back_as_it_was() {
        let bytes = postcard::to_stdvec(&image()).unwrap();
        let back: Image = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(back, image());
        assert_eq!(check::check(&back), Ok(()));
    }

    #[test]
    fn what_is_adopted_says_so_and_nothing_else_of_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let own = Image { adopted: false, ..image() };
        let (machine, memory) = (Machine::here().unwrap(), origin::length(&own));
        let tree = Tree { machine, files: Vec::new(), pause: Duration::ZERO, memory, image: own };
        let write = |name: &str, kind, body: &[u8]| write_sheet(&directory.path().join(name), kind, body).unwrap();
        write(TREE, Kind::Tree, &postcard::to_stdvec(&tree).unwrap());
        write(MEMORY, Kind::Memory, &vec![0; memory as usize]);
        adopt(directory.path()).unwrap();
        assert_eq!(open(directory.path()).unwrap().0.image, image());
    }

    proptest! {
        /// Whatever a file says whose checksum was put right by hand: it is refused, or a script can be written from it.
        #[test]
        fn nothing_that_is_read_leads_astray(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let mut bytes = postcard::to_stdvec(&image()).unwrap();
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            if let Ok(image) = postcard::from_bytes::<Image>(&bytes)
                && check::check(&image).is_ok()
            {
                let origin = Origin::File { path: "/x".into(), start: BODY };
                let _ = plan::script(&image, &Facts { origin, ..Facts::default() });
            }
        }
    }
}

//! A store: a directory, and the processes that work in it.

use crate::{LayerId, StoreError};
use composefs::fsverity::{Algorithm, FsVerityHashValue, Sha256HashValue};
use composefs::repository::{Repository, RepositoryConfig};
use pando_kernel::Context;
use rustix::fs::{CWD, IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags};
use std::fs::{File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the repository holds.
pub(crate) type Objects = Repository<Sha256HashValue>;

/// A store of layers and of the objects that they are made of.
///
/// ```text
///   objects/4e/67ea…   content, by digest             images/ID   a layer: where its image lies among the objects
///   farms/ID/          a layer as hard links          inodes/     what farms link to, where an object would not do
///   staging/           what is being made             lock        who works here
///   known/             files outside that did not change since they were last read
/// ```
///
/// Nobody but root may enter it: what it holds may be setuid, and secret.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

/// A promise that nothing is collected for as long as it is held: a new layer is safe under it until it is noted as in
/// use.
#[derive(Debug)]
pub struct Lease(#[allow(dead_code, reason = "held for its drop")] File);

impl Store {
    /// Opens the store in a directory, which is made if it is missing.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let store = Self { path: path.to_owned() };
        for directory in [store.path.clone(), store.staging(), store.farms(), store.inodes(), store.known()] {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(&directory).context(|| format!("making {}", directory.display()))?;
        }
        spread(&store.staging());
        let config = RepositoryConfig::new(Algorithm::for_hash::<Sha256HashValue>()).set_insecure();
        Objects::init_path(CWD, &store.path, config)
            .map_err(StoreError::repository(format!("opening the store {}", store.path.display())))?;
        for directory in [store.objects(), store.images()] {
            std::fs::create_dir_all(&directory).context(|| format!("making {}", directory.display()))?;
        }
        Ok(store)
    }

    /// The directory that the store lies in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has a layer of that name.
    pub fn has(&self, layer: &LayerId) -> bool {
        self.image(layer).exists()
    }

    /// The layers that it has, in the order of their names.
    pub fn layers(&self) -> Result<Vec<LayerId>, StoreError> {
        let images = self.images();
        let entries = std::fs::read_dir(&images).context(|| format!("reading {}", images.display()))?;
        // What else lies there is the repository's own.
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut layers: Vec<LayerId> = entries.filter_map(name).collect();
        layers.sort_unstable();
        Ok(layers)
    }

    /// Keeps the store from being collected. Waits for a collection that is under way.
    pub fn lease(&self) -> Result<Lease, StoreError> {
        let file = self.lock_file()?;
        file.lock_shared().context(|| "waiting for the store".into())?;
        Ok(Lease(file))
    }

    /// Keeps all others out; [`StoreError::Busy`] where a process holds a lease and does not let go of it within a
    /// moment: one that was killed may still be ending.
    pub(crate) fn shut(&self) -> Result<Lease, StoreError> {
        const MOMENT: Duration = Duration::from_millis(20);
        const MOMENTS: u32 = 100;
        let file = self.lock_file()?;
        for _ in 0..MOMENTS {
            match file.try_lock() {
                Ok(()) => return Ok(Lease(file)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(MOMENT),
                Err(TryLockError::Error(error)) => Err(error).context(|| "locking the store".into())?,
            }
        }
        Err(StoreError::Busy)
    }

    fn lock_file(&self) -> Result<File, StoreError> {
        let path = self.path.join("lock");
        let open = || File::options().create(true).truncate(false).write(true).open(&path);
        Ok(open().context(|| format!("opening {}", path.display()))?)
    }

    /// The repository, through its own library.
    pub(crate) fn repository(&self) -> Result<Objects, StoreError> {
        Objects::open_path(CWD, &self.path)
            .map_err(StoreError::repository(format!("opening the store {}", self.path.display())))
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.path.join("objects")
    }

    pub(crate) fn object(&self, digest: &Sha256HashValue) -> PathBuf {
        self.objects().join(digest.to_object_pathname())
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.path.join("images")
    }

    pub(crate) fn image(&self, layer: &LayerId) -> PathBuf {
        self.images().join(layer.to_string())
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.path.join("staging")
    }

    pub(crate) fn known(&self) -> PathBuf {
        self.path.join("known")
    }

    pub(crate) fn farms(&self) -> PathBuf {
        self.path.join("farms")
    }

    pub(crate) fn inodes(&self) -> PathBuf {
        self.path.join("inodes")
    }
}

/// Has ext4 put what is made in each directory below this one somewhere else, as chattr(1) says of the attribute T: it
/// does not use an inode again within a minute or five of its removal (RECENTCY_MIN and RECENTCY_DIRTY of its
/// ialloc.c), and passes over each that was removed from the same part of the disk whenever it makes a file there,
/// which took twenty times as long where a store had just been collected.
fn spread(directory: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let spread = || {
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let has = ioctl_getflags(&directory)?;
        if has.contains(IFlags::TOPDIR) { Ok(()) } else { ioctl_setflags(&directory, has | IFlags::TOPDIR) }
    };
    // Other file systems have no such attribute, and need none.
    let _: rustix::io::Result<()> = spread();
}

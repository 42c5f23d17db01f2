//! The rights of a user of the host: who he is, work that is done with exactly these rights, and a program that becomes
//! his on its way to its execution.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;

/// `SECCOMP_SET_MODE_FILTER`
const SET_MODE_FILTER: libc::c_ulong = 1;

/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// A user: his id, his group, and his other groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserIds {
    /// The id of the user.
    pub uid: u32,
    /// The id of his group.
    pub gid: u32,
    /// The other groups that he is in.
    pub groups: Vec<u32>,
}

impl UserIds {
    /// Whether he is a member of a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Does some work in a thread that has this user's rights to files, and no capability: what the kernel lets it do
    /// it would have let the user do. The thread's real user stays this process's, so that the user cannot send it
    /// signals, and it ends with the work.
    ///
    /// # Errors
    ///
    /// EPERM where this process may not take on other users' rights.
    pub fn with_rights<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let body = || {
                self.take_rights_to_files()?;
                Ok(work())
            };
            let thread = std::thread::Builder::new().name("pando-user".into()).spawn_scoped(scope, body)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread with the user's rights panicked")))
        })
    }

    /// For this thread alone, and for good.
    fn take_rights_to_files(&self) -> io::Result<()> {
        // SAFETY: the array is as long as is said and is only read; the other calls take numbers. The C library, which
        // would change every thread, is not asked.
        unsafe {
            if libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            // What they answer is the former number; that they did it is told by asking again, with a number that is
            // none.
            libc::syscall(libc::SYS_setfsgid, self.gid);
            libc::syscall(libc::SYS_setfsuid, self.uid);
            let gid = libc::syscall(libc::SYS_setfsgid, u32::MAX);
            let uid = libc::syscall(libc::SYS_setfsuid, u32::MAX);
            if (uid, gid) != (i64::from(self.uid), i64::from(self.gid)) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        if give_up_capabilities() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Whether the kernel lets this thread do something with an open object, a mere place (O_PATH) perhaps, by the rights
/// that it has now (faccessat2(2), since Linux 5.8): reading is 4, writing 2, executing or searching 1.
///
/// # Errors
///
/// EACCES where it does not; EROFS where nobody may write.
pub fn may(object: impl std::os::fd::AsFd, access: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let (object, flags) = (object.as_fd(), libc::AT_EACCESS | libc::AT_EMPTY_PATH);
    // SAFETY: the path is an empty one that ends with a zero; the rest are numbers.
    let done = unsafe { libc::syscall(libc::SYS_faccessat2, object.as_raw_fd(), c"".as_ptr(), access, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives up all capabilities of this thread.
fn give_up_capabilities() -> libc::c_long {
    // Version and pid; effective, permitted and inheritable, of two words each.
    let head = [CAPABILITY_VERSION, 0];
    let none = [0_u32; 6];
    // SAFETY: both are as large as the kernel's structures of that version, and are only read.
    unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) }
}

/// How a program becomes a user's.
#[derive(Clone, Debug)]
pub struct AsUser {
    /// The user whose it becomes.
    pub ids: UserIds,
    /// All of its environment: `NAME=value`.
    pub environment: Vec<OsString>,
    /// Its working directory, which is entered with the user's rights.
    pub directory: OsString,
    /// The bits that files are made without.
    pub umask: u32,
    /// Its nice value; none below 0.
    pub nice: i32,
    /// Its limits (getrlimit(2)) by their numbers: soft, hard.
    pub limits: Vec<(u32, u64, u64)>,
}

impl AsUser {
    /// Where it is looked for.
    pub(crate) fn path(&self) -> Option<&OsStr> {
        self.environment.iter().find_map(|pair| pair.as_bytes().strip_prefix(b"PATH=").map(OsStr::from_bytes))
    }
}

/// All that the child needs for that, made before there is one: it may not allocate.
pub(crate) struct Becoming {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    directory: CString,
    umask: u32,
    nice: i32,
    limits: Vec<(u32, [u64; 2])>,
    filter: Vec<libc::sock_filter>,
}

impl Becoming {
    pub(crate) fn new(user: &AsUser) -> io::Result<Self> {
        let AsUser { ids, directory, umask, nice, limits, .. } = user;
        let UserIds { uid, gid, groups } = ids.clone();
        if uid == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "root is no user to become"));
        }
        let directory = CString::new(directory.as_bytes())?;
        let limits = limits.iter().map(|(number, soft, hard)| (*number, [*soft, *hard])).collect();
        Ok(Self { uid, gid, groups, directory, umask: *umask, nice: *nice, limits, filter: without_namespaces() })
    }

    /// Has this process, which is about to execute a program, be the user's: a session, ids, limits and a keyring of
    /// its own, no capabilities, and no way to get more by executing. The number of an error, or 0; with [`DIRECTORY`]
    /// added if it is about the working directory.
    ///
    /// # Safety
    ///
    /// Only in a child that shares its parent's memory, which waits: system calls alone.
    pub(crate) unsafe fn become_user(&self) -> i32 {
        // SAFETY: system calls on numbers, and on memory that this value owns.
        unsafe {
            let done = |result: libc::c_long| if result < 0 { last_errno() } else { 0 };
            libc::syscall(libc::SYS_setsid);
            libc::syscall(libc::SYS_umask, self.umask);
            libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, self.nice.max(0));
            for (number, limit) in &self.limits {
                let set = libc::syscall(libc::SYS_prlimit64, 0, *number, limit.as_ptr(), std::ptr::null_mut::<u64>());
                if set < 0 {
                    return last_errno();
                }
            }
            let steps: [&dyn Fn() -> libc::c_long; 5] = [
                &|| libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()),
                &|| libc::syscall(libc::SYS_setresgid, self.gid, self.gid, self.gid),
                &|| libc::syscall(libc::SYS_setresuid, self.uid, self.uid, self.uid),
                &|| give_up_capabilities(),
                &|| libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64),
            ];
            for step in steps {
                match done(step()) {
                    0 => {}
                    errno => return errno,
                }
            }
            let joined = libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<u8>());
            if joined < 0 && last_errno() != libc::ENOSYS {
                return last_errno();
            }
            if libc::syscall(libc::SYS_chdir, self.directory.as_ptr()) < 0 {
                return last_errno() + DIRECTORY;
            }
            let program = libc::sock_fprog { len: self.filter.len() as u16, filter: self.filter.as_ptr().cast_mut() };
            done(libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0_u64, &raw const program))
        }
    }
}

/// Added to the number of an error that is about the working directory.
pub(crate) const DIRECTORY: i32 = 1 << 16;

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)
}

/// `AUDIT_ARCH_…` of the machine that this is built for, and the bit of programs of x86-64 that have short addresses.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: (u32, u32) = (0xC000_003E, 0x4000_0000);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: (u32, u32) = (0xC000_00B7, 0x4000_0000);

/// A filter with which nobody makes or enters a user namespace, in which he had capabilities over what is mounted in
/// the view, and no other namespace. What `clone3` makes no filter can see, so that there is none; the C library does
/// without. Programs for another architecture have other numbers, and are not run.
fn without_namespaces() -> Vec<libc::sock_filter> {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at: u32| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let fail = |errno: i32| op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno.unsigned_abs());
    let jump = |test: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let (architecture, short) = ARCHITECTURE;
    let is = |number: libc::c_long, jt: u8| jump(libc::BPF_JEQ, number as u32, jt, 0);
    const FLAGS: u32 = libc::CLONE_NEWUSER as u32;
    vec![
        load(4),
        jump(libc::BPF_JEQ, architecture, 0, 10),
        load(0),
        jump(libc::BPF_JGE, short, 8, 0),
        is(libc::SYS_clone3, 7),
        is(libc::SYS_setns, 7),
        is(libc::SYS_unshare, 2),
        is(libc::SYS_clone, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        // The lower half of the first argument.
        load(16),
        jump(libc::BPF_JSET, FLAGS, 2, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        fail(libc::ENOSYS),
        fail(libc::EPERM),
    ]
}

/// What /proc calls the limits, in the order of their numbers.
const LIMITS: [&str; 16] = [
    "cpu time",
    "file size",
    "data size",
    "stack size",
    "core file size",
    "resident set",
    "processes",
    "open files",
    "locked memory",
    "address space",
    "file locks",
    "pending signals",
    "msgqueue size",
    "nice priority",
    "realtime priority",
    "realtime timeout",
];

/// The limits of a process (getrlimit(2)), by their numbers: soft, hard; none higher than this process's own.
///
/// # Errors
///
/// ENOENT and ESRCH where it has gone; InvalidData where one is missing, so that none is taken for no limit.
pub fn limits_of(pid: i32) -> io::Result<Vec<(u32, u64, u64)>> {
    // What prlimit(2) says of others' processes it says to CAP_SYS_RESOURCE alone.
    let (its, own) = (super::read(pid, "limits")?, super::read(std::process::id().cast_signed(), "limits")?);
    let both = |(number, name): (u32, &&str)| {
        let of = |text: &str| limit_in(text, name).ok_or(io::ErrorKind::InvalidData);
        let ((soft, hard), (_, most)) = (of(&its)?, of(&own)?);
        Ok((number, soft.min(most), hard.min(most)))
    };
    (0..).zip(&LIMITS).map(both).collect()
}

/// A limit in the list of them: soft, hard.
fn limit_in(text: &str, name: &str) -> Option<(u64, u64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max ")?.strip_prefix(name))?;
    let mut values = line.split_ascii_whitespace();
    let mut value = || match values.next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    Some((value()?, value()?))
}

/// The user at the other end of a connected socket of this machine, as he was when he connected (SO_PEERCRED,
/// SO_PEERGROUPS, since Linux 4.13), and the pid of his process then.
///
/// # Errors
///
/// ENODATA where nobody has connected it.
pub fn peer(socket: RawFd) -> io::Result<(UserIds, i32)> {
    let (mut who, mut groups) = ([0_u32; 3], vec![0_u32; 1 << 16]);
    let ask = |what: i32, into: *mut libc::c_void, room: usize| {
        let mut length = room as libc::socklen_t;
        // SAFETY: the kernel writes no more than the room that it is told of.
        let done = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, what, into, &raw mut length) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
    };
    ask(libc::SO_PEERCRED, who.as_mut_ptr().cast(), size_of_val(&who))?;
    let length = ask(libc::SO_PEERGROUPS, groups.as_mut_ptr().cast(), groups.len() * 4)?;
    groups.truncate(length / 4);
    let [pid, uid, gid] = who;
    Ok((UserIds { uid, gid, groups }, pid.cast_signed()))
}

/// A descriptor of the process at the other end of a socket, whoever has its pid by now (SO_PEERPIDFD, since Linux
/// 6.5).
///
/// # Errors
///
/// ENOPROTOOPT before Linux 6.5; ESRCH where it has gone.
pub fn peer_process(socket: RawFd) -> io::Result<std::os::fd::OwnedFd> {
    const SO_PEERPIDFD: i32 = 77;
    let (mut process, mut length) = (-1_i32, 4 as libc::socklen_t);
    // SAFETY: the kernel writes one number.
    let done =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut process).cast(), &raw mut length) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(process) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const NOBODY: u32 = 54_321;

    #[test]
    fn work_with_a_users_rights_reads_what_he_may_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root takes on others' rights");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let path = place.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let ids = UserIds { uid: NOBODY, gid: NOBODY, groups: vec![NOBODY + 1] };
        let place_of = |flags| rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
        let object = place_of(rustix::fs::OFlags::PATH);
        let writes = |ids: &UserIds| ids.with_rights(|| may(&object, 2).is_ok()).unwrap();
        let read = |ids: &UserIds| ids.with_rights(|| std::fs::read(&path).is_ok()).unwrap();
        assert!(!read(&ids), "the directory is root's alone");
        std::os::unix::fs::chown(place.path(), None, Some(NOBODY + 1)).unwrap();
        std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
        assert!(read(&ids) && !writes(&ids), "his other group may enter, and not write");
        std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
        assert!(writes(&ids));
        assert!(!read(&UserIds { groups: Vec::new(), ..ids }));
        assert!(std::fs::read(&path).is_ok() && rustix::process::geteuid().is_root(), "this thread is as it was");
    }

    #[test]
    fn the_other_end_of_a_socket_is_known() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (ids, pid) = peer(one.as_raw_fd()).unwrap();
        assert_eq!((ids.uid, pid), (rustix::process::geteuid().as_raw(), std::process::id().cast_signed()));
        let limits = limits_of(pid).unwrap();
        assert!(limits.len() == 16 && limits.iter().all(|(_, soft, hard)| soft <= hard), "{limits:?}");
        assert_eq!(
            limit_in("Max open files            77                   unlimited            files\n", "open files"),
            Some((77, u64::MAX))
        );
    }
}

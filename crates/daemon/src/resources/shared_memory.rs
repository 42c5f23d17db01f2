//! System V shared memory: bounded by a setting of the guest's IPC namespace, which is made from inside it.

use pando_kernel::process::held::HeldProcess;
use pando_kernel::{CallError, Context};
use pando_limit::Limits;
use rustix::process::Uid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

/// What the kernel says when nobody has said anything (ipc/shm.c: ULONG_MAX less 2^24 pages).
const USUAL: u64 = u64::MAX - (1 << 24);

/// In pages, for the IPC namespace of whoever opens it.
const FILE: &str = "/proc/sys/kernel/shmall";

/// Bounds what the processes in the IPC namespace of a first process may have of it, if `limits` or the limits `before`
/// speak of it. `owner` is their root on the host.
pub(crate) fn bound(
    first: &HeldProcess,
    owner: u32,
    limits: &Limits,
    before: Option<&Limits>,
) -> Result<(), CallError> {
    let wanted = limits.memory.sysv;
    if wanted.is_none() && before.is_none_or(|before| before.memory.sysv.is_none()) {
        return Ok(());
    }
    let pages = wanted.map_or(USUAL, |bytes| bytes.div_ceil(rustix::param::page_size() as u64));
    let first = first.clone();
    let write = move || -> io::Result<()> {
        let namespace = first.namespace("ipc")?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::InterProcessCommunication))?;
        // Newer kernels let the namespace's root alone write there, older ones the host's.
        rustix::thread::set_thread_res_uid(None, Some(Uid::from_raw(owner)), None)?;
        let file = match File::options().write(true).open(FILE) {
            Ok(file) => file,
            Err(_) => {
                rustix::thread::set_thread_res_uid(None, Some(Uid::ROOT), None)?;
                File::options().write(true).open(FILE)?
            }
        };
        (&file).write_all(pages.to_string().as_bytes())
    };
    // A thread of its own, which ends in the other namespace: the daemon's stay where they are.
    let done = std::thread::spawn(write).join().unwrap_or_else(|_| Err(io::Error::other("it failed inside Pando")));
    done.context(|| format!("bounding System V shared memory to {pages} pages"))
}

//! Loading a BPF object of ours, which takes some tens of milliseconds: libbpf fits it to the running kernel.

use libbpf_rs::{Object, ObjectBuilder, OpenObject};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Loads one that has one program: it, and that.
///
/// # Errors
///
/// EPERM without CAP_BPF and CAP_PERFMON; others where the kernel has no such iterators or other structures.
pub(crate) fn load(bytes: &[u8]) -> io::Result<(Object, OwnedFd)> {
    // What it has to say about a refusal is in its errors as well.
    libbpf_rs::set_print(None);
    let object = ObjectBuilder::default().open_memory(bytes).and_then(OpenObject::load).map_err(io::Error::other)?;
    let program = object.progs().next().ok_or(io::ErrorKind::NotFound)?.as_fd().try_clone_to_owned()?;
    Ok((object, program))
}

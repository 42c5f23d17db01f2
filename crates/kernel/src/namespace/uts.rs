//! Host names of other namespaces (uts_namespaces(7)).

use crate::process::held::HeldProcess;
use crate::{CallError, Context};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Sets the host name that a process sees, which may be in a namespace of its own. This thread enters that and comes
/// back.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN over the namespace, ENAMETOOLONG for more than 64 bytes.
pub fn set_host_name(process: &HeldProcess, name: &str) -> Result<(), CallError> {
    let what = || format!("setting the host name of process {}", process.pid());
    let theirs = process.namespace("uts").context(what)?;
    inside(theirs, || rustix::system::sethostname(name.as_bytes()).map_err(Into::into)).context(what)
}

/// The host name and the NIS domain of a namespace. This thread enters it and comes back.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN over the namespace.
pub fn names(namespace: impl AsFd) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let look = || {
        let names = rustix::system::uname();
        Ok((names.nodename().to_bytes().to_vec(), names.domainname().to_bytes().to_vec()))
    };
    inside(namespace, look)
}

fn inside<T>(theirs: impl AsFd, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = File::open("/proc/thread-self/ns/uts")?;
    let kind = Some(LinkNameSpaceType::HostNameAndNISDomainName);
    move_into_link_name_space(theirs.as_fd(), kind)?;
    let done = act();
    move_into_link_name_space(own.as_fd(), kind)?;
    done
}

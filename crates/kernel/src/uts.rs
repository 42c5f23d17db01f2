//! Host names of other namespaces (uts_namespaces(7)).

use crate::{CallError, Context};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;

/// Sets the host name that a process sees, which may be in a namespace of its own. This thread enters that and comes back.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN over the namespace, ENAMETOOLONG for more than 64 bytes.
pub fn set_host_name(pid: i32, name: &str) -> Result<(), CallError> {
    let what = || format!("setting the host name of process {pid}");
    let theirs = File::open(format!("/proc/{pid}/ns/uts")).context(what)?;
    let own = File::open("/proc/thread-self/ns/uts").context(what)?;
    let kind = Some(LinkNameSpaceType::HostNameAndNISDomainName);
    move_into_link_name_space(theirs.as_fd(), kind).context(what)?;
    let set = rustix::system::sethostname(name.as_bytes()).context(what);
    move_into_link_name_space(own.as_fd(), kind).context(|| "coming back from another host name".into())?;
    set
}

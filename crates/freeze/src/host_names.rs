//! Host names of a process's own (uts_namespaces(7)): those beside the guest's, which each clone has one of for itself.

use crate::image::namespace_kind::HOST_NAMES;
use crate::image::{HostNames, Image};
use crate::namespaces::{Beside, Space};
use crate::objects::Slots;
use crate::script::Writer;
use pando_kernel::{CallError, Context, uts};
use std::fs::File;

/// Those of an image.
pub(crate) fn capture(spaces: &Beside) -> Result<Vec<HostNames>, CallError> {
    let names = |space: &Space| {
        let what = || format!("reading the host name of {}", space.at);
        let (host, domain) = uts::names(File::open(&space.at).context(what)?).context(what)?;
        Ok(HostNames { host, domain })
    };
    spaces.all().iter().map(names).collect()
}

/// Writes the maker's steps: a namespace for each, and one to go back to.
pub(crate) fn make(writer: &mut Writer, image: &Image, slots: Slots) {
    if image.host_names.is_empty() {
        return;
    }
    HOST_NAMES.keep(writer, slots.host_names(None));
    for (number, names) in image.host_names.iter().enumerate() {
        HOST_NAMES.make(writer);
        for (label, call, name) in [
            ("setting a host name", libc::SYS_sethostname, &names.host),
            ("setting a domain name", libc::SYS_setdomainname, &names.domain),
        ] {
            let bytes = writer.data(name, 1);
            writer.call(Writer::MAKING, label, call, &[bytes, name.len() as u64]);
        }
        HOST_NAMES.keep(writer, slots.host_names(Some(number)));
    }
    HOST_NAMES.enter(writer, Writer::MAKING, slots.host_names(None));
}

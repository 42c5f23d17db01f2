//! Host names of a process's own (uts_namespaces(7)): those beside the guest's, which each clone has one of for itself.

use crate::image::{Image, Process};
use crate::namespaces::HOST_NAMES;
use crate::objects::Slots;
use crate::script::{Chapter, Writer};
use pando_kernel::{CallError, uts};
use serde::{Deserialize, Serialize};

/// What such a namespace holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNames {
    /// Host name.
    pub host: Vec<u8>,
    /// NIS domain.
    pub domain: Vec<u8>,
}

/// The longest of either (`__NEW_UTS_LEN`).
pub(crate) const LONGEST: usize = 64;

/// Notes the namespaces of one process after another.
#[derive(Debug)]
pub(crate) struct Notes {
    /// As /proc/PID/ns shows them, that of the first process first.
    known: Vec<String>,
}

impl Notes {
    /// Of the processes below a first one.
    pub(crate) fn of(init: i32) -> Result<Self, CallError> {
        Ok(Self { known: vec![HOST_NAMES.of(init)?] })
    }

    /// Which names a process has, an index into [`Image::host_names`]; none of its own if those of the first process.
    pub(crate) fn note(&mut self, outer: i32, image: &mut Image) -> Result<Option<usize>, CallError> {
        let link = HOST_NAMES.of(outer)?;
        if let Some(known) = self.known.iter().position(|known| *known == link) {
            return Ok(known.checked_sub(1));
        }
        let (host, domain) = uts::names(outer)?;
        image.host_names.push(HostNames { host, domain });
        self.known.push(link);
        Ok(Some(image.host_names.len() - 1))
    }
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

/// Writes a process's entering of its own, whosever it has been forked with.
pub(crate) fn enter(writer: &mut Writer, chapter: Chapter, image: &Image, process: &Process, slots: Slots) {
    if !image.host_names.is_empty() {
        HOST_NAMES.enter(writer, chapter, slots.host_names(process.host_names));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_enters_its_own_and_nobody_where_there_is_but_one() {
        let mut image = Image { processes: vec![Process::default()], ..Image::default() };
        let steps = |image: &Image| {
            let mut writer = Writer::new();
            let slots = Slots::of(image);
            make(&mut writer, image, slots);
            enter(&mut writer, Writer::MAKING, image, &image.processes[0], slots);
            format!("{:?}", writer.finish(1, 1, 0, 0)).lines().count()
        };
        assert_eq!(steps(&image), 0);
        image.host_names.push(HostNames::default());
        assert_eq!(steps(&image), 1 + 4 + 1 + 1);
    }
}

//! Processes that were looked at when a transaction's beginning was made ahead, and wrote to no file through their
//! memory. As long as their maps are those that they were nobody need look again: on a machine with hundreds of guests
//! that would take longer than a short command.

use crate::validate::read_set::{Tenant, Walker};
use pando_kernel::{memory, process};
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Those. Copies share what is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Still(Arc<HashSet<Tenant>>);

impl Still {
    /// Looks at those who have memory now; at whom `before` knows already, no more.
    pub(crate) fn look(walker: &Walker, before: &Self) -> io::Result<Self> {
        if !process::counts_as_the_kernel() {
            return Ok(Self::default());
        }
        // What its maps were is told first: whoever changes them behind that is looked at again.
        let wrote_to_none =
            |tenant: &Tenant| memory::map::written_by(tenant.pid).is_ok_and(|written| written.is_empty());
        let tenants = walker.tenants()?.into_iter().filter(Tenant::has_known_maps);
        let still = tenants.filter(|tenant| before.has(tenant) || wrote_to_none(tenant));
        Ok(Self(Arc::new(still.collect())))
    }

    /// Whether a process is one of them, and its maps are the same.
    pub(crate) fn has(&self, tenant: &Tenant) -> bool {
        self.0.contains(tenant)
    }

    /// Writes them to a file.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::write(path, self.0.iter().flat_map(|tenant| tenant.to_bytes()).collect::<Vec<u8>>())
    }

    /// Reads what was written.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Tenant::all_of_bytes(&std::fs::read(path)?).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::read_set::load_ahead;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn whose_maps_have_changed_is_not_still_and_who_waits_is() {
        let directory = tempfile::tempdir().unwrap();
        let Some(walker) = load_ahead(directory.path()).filter(|_| process::counts_as_the_kernel()) else {
            return eprintln!("skipped: this machine does not let BPF programs be loaded");
        };
        // It says that it waits, keeps a line that needs room, says so, and executes another program, which does.
        let script = "echo; read -r line; echo; read -r next; exec cat";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.as_mut().unwrap();
        let (pid, mut said) = (child.id().cast_signed(), BufReader::new(child.stdout.take().unwrap()));
        let mut input = child.stdin.take().unwrap();
        let mut hear = || said.read_line(&mut String::new()).map(drop).unwrap();
        let tenant = || walker.tenants().unwrap().into_iter().find(|tenant| tenant.pid == pid).unwrap();
        let look = |before: &Still| Still::look(&walker, before).unwrap();
        hear();
        let first = look(&Still::default());
        assert!(tenant().has_known_maps(), "the kernel does not count changes of maps");
        assert!(first.has(&tenant()));
        let path = directory.path().join("still");
        first.write(&path).unwrap();
        assert_eq!(Still::read(&path).unwrap(), first);
        let line = [vec![b'x'; 4 << 20], b"\n".to_vec()].concat();
        input.write_all(&line).unwrap();
        hear();
        assert!(!first.has(&tenant()));
        let second = look(&first);
        assert!(second.has(&tenant()));
        input.write_all(b"\nanswer\n").unwrap();
        hear();
        assert!(!second.has(&tenant()));
        drop(input);
        child.wait().unwrap();
    }
}

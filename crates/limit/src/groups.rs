//! Where each controller acts on a set of processes: version 1 or 2, controller by controller, for a host may have
//! both.

use pando_kernel::cgroup::Seat;
use std::path::PathBuf;

/// A controller, by what it controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Processor time: weights and bounds.
    Cpu,
    /// Which processors.
    Cpuset,
    /// Memory and swap.
    Memory,
    /// Traffic with block devices.
    Io,
    /// The number of processes.
    Pids,
}

impl Controller {
    /// All controllers that Pando uses.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Cpuset, Self::Memory, Self::Io, Self::Pids];

    /// Its name in version 2.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Io => "io",
            Self::Pids => "pids",
        }
    }
}

/// The groups that a set of processes is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    seats: [Option<Seat>; 5],
    /// Where processor time is counted in version 1.
    account: Option<PathBuf>,
    /// The group of version 2 that lies within and holds the processes themselves: protection of memory has to be given
    /// on the whole way down to it, unless the hierarchy is mounted with `memory_recursiveprot`.
    inner: Option<PathBuf>,
}

impl Groups {
    /// The groups that `seat` finds: by a controller's name in version 2, and `cpuacct`. `inner` is the group of
    /// version 2, within those, that holds the processes.
    pub fn find(seat: impl Fn(&str) -> Option<Seat>, inner: Option<PathBuf>) -> Self {
        let account = seat("cpuacct").filter(|seat| !seat.unified).map(|seat| seat.group);
        Self { seats: Controller::ALL.map(|controller| seat(controller.name())), account, inner }
    }

    /// The group where a controller acts on these processes, if it is there.
    pub fn seat(&self, controller: Controller) -> Option<&Seat> {
        self.seats[controller as usize].as_ref()
    }

    /// Whether a controller is there and has version 1's files.
    pub fn is_legacy(&self, controller: Controller) -> bool {
        self.seat(controller).is_some_and(|seat| !seat.unified)
    }

    /// A file of a controller.
    pub fn file(&self, controller: Controller, name: &str) -> Option<PathBuf> {
        self.seat(controller).map(|seat| seat.group.join(name))
    }

    /// The group of version 1 that counts processor time.
    pub(crate) fn account(&self) -> Option<&PathBuf> {
        self.account.as_ref()
    }

    /// The inner group of version 2.
    pub(crate) fn inner(&self) -> Option<&PathBuf> {
        self.inner.as_ref()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Groups that all have files of one version.
    pub(crate) fn all(unified: bool) -> Groups {
        let seat = |name: &str| Some(Seat { unified, group: PathBuf::from("/none").join(name) });
        Groups::find(seat, unified.then(|| "/none/inner".into()))
    }

    #[test]
    fn a_hybrid_host_is_decided_controller_by_controller() {
        let seat = |name: &str| match name {
            "cpu" => Some(Seat { unified: false, group: "/one/cpu".into() }),
            "memory" => Some(Seat { unified: true, group: "/two".into() }),
            _ => None,
        };
        let groups = Groups::find(seat, None);
        assert!(groups.is_legacy(Controller::Cpu) && !groups.is_legacy(Controller::Memory));
        assert_eq!(groups.file(Controller::Memory, "memory.max"), Some("/two/memory.max".into()));
        assert_eq!(groups.file(Controller::Io, "io.max"), None);
    }
}

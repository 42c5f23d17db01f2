//! Processes that stand still, and who keeps them so: a task that outlives the daemon, so that they run on as they were
//! whatever becomes of that.

use crate::capture::connections::{Connected, Scope, Taken};
use crate::capture::in_flight::Flight;
use crate::image::Image;
use crate::image::connection::{Connection, Ends};
use crate::inspect::process_tree::Roots;
use crate::origin::Origin;
use crate::precheck::sockets;
use crate::refusal::FreezeError;
use crate::stop::seize::{self, Stopped};
use crate::stop::snapshot::{self, Snapshots};
use crate::subject::Subject;
use pando_kernel::trace::survivor::{SurvivorTask, Undivided};
use pando_kernel::{CallError, Context, process::pidfd};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;

/// They, and their snapshots. Dropped, they run on.
pub(crate) struct StoppedSet {
    /// The one that traces them: what is done with their threads is done there.
    tracer: SurvivorTask,
    stopped: Vec<Stopped>,
    snapshots: Option<Snapshots>,
    /// What is in flight between them, for as long as they stand still.
    flight: Option<ManuallyDrop<Flight>>,
    /// Their connections. Like all descriptors here the tracer's: whoever else dropped them would close what has those
    /// numbers elsewhere.
    connected: Option<ManuallyDrop<Connected>>,
    taken: Option<ManuallyDrop<Taken>>,
    /// How many connections wait to be accepted and have sent something.
    unheard: usize,
    /// The first process of their pid namespace, for one that is to end.
    first: Option<ManuallyDrop<OwnedFd>>,
}

fn what() -> String {
    "having the processes stand still".into()
}

impl StoppedSet {
    /// Nobody yet. `prepare` makes what is needed to look at them; its descriptors are the tracer's, and go with that.
    pub(crate) fn nobody<T>(
        prepare: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<(Self, ManuallyDrop<T>), CallError> {
        let tracer = SurvivorTask::new(c"pando-freezer").context(what)?;
        let prepared = tracer.run(|| prepare().map(ManuallyDrop::new)).context(what)??;
        let (stopped, snapshots, flight) = (Vec::new(), None, None);
        let (connected, taken, first) = (None, None, None);
        Ok((Self { tracer, stopped, snapshots, flight, connected, taken, unheard: 0, first }, prepared))
    }

    /// Stops every process below some roots, and looks at them and at what is in flight between them.
    pub(crate) fn stop<T>(
        mut self,
        roots: &Roots,
        look: impl FnOnce(&[Stopped]) -> Result<(T, Flight), FreezeError>,
    ) -> Result<(Self, T), FreezeError> {
        let outcome = self.tracer.run(|| {
            let stopped = seize::stop_all(roots)?;
            let (seen, flight) = look(&stopped)?;
            Ok::<_, FreezeError>((stopped, seen, ManuallyDrop::new(flight)))
        });
        let (stopped, seen, flight) = outcome.context(what)??;
        (self.stopped, self.flight) = (stopped, Some(flight));
        Ok((self, seen))
    }

    /// Takes snapshots of them, where that is possible.
    pub(crate) fn take_snapshots(&mut self, image: &Image) -> Result<(), CallError> {
        let stopped = &self.stopped;
        self.snapshots = self.tracer.run(|| snapshot::take(image, stopped)).context(what)?;
        Ok(())
    }

    /// What has each process's memory, if snapshots have it.
    pub(crate) fn snapshots(&self, image: &Image) -> Option<Vec<i32>> {
        let snapshots = self.snapshots.as_ref()?;
        Some(image.processes.iter().map(|process| snapshots.of(process.pid).unwrap_or(0)).collect())
    }

    /// The pid here of each of them, by that in its namespace.
    fn outer(&self) -> HashMap<i32, i32> {
        self.stopped.iter().map(|one| (one.member.pid, one.member.outer)).collect()
    }

    /// The processes as what has their memory.
    pub(crate) fn themselves(&self, subject: &Subject<'_>, image: &Image) -> Origin {
        let outer = self.outer();
        let sources = image.processes.iter().map(|process| outer.get(&process.pid).copied().unwrap_or(0)).collect();
        Origin::Processes { sources, init: subject.init, keeper: self.tracer.pid(), early: None }
    }

    /// Reads the TCP connections that they have among themselves. They have them still.
    pub(crate) fn read_connections(&mut self, image: &Image) -> Result<Vec<Connection>, FreezeError> {
        let outer = self.outer();
        let read = || {
            let found = Connected::find(image, Scope::Clones, |pid| outer.get(&pid).copied());
            (found.unheard(), found.urgent(), found.take().connections().to_vec())
        };
        let (unheard, urgent, connections) = self.tracer.run(read).context(what)?;
        self.unheard = unheard;
        unless_urgent(image, &urgent).map(|()| connections)
    }

    /// Finds the TCP connections that they have; the ends of those with others. `init` is the first process of their
    /// pid namespace.
    pub(crate) fn find_connections(&mut self, image: &Image, init: i32) -> Result<Vec<Ends>, FreezeError> {
        let outer = self.outer();
        let found = self.tracer.run(|| {
            let first = pidfd::open(init).map(ManuallyDrop::new)?;
            Ok((ManuallyDrop::new(Connected::find(image, Scope::All, |pid| outer.get(&pid).copied())), first))
        });
        let (connected, first) = found.and_then(|found| found).context(what)?;
        self.unheard = connected.unheard();
        let (ends, urgent) = (connected.outward(), self.tracer.run(|| connected.urgent()).context(what)?);
        (self.connected, self.first) = (Some(connected), Some(first));
        unless_urgent(image, &urgent).map(|()| ends)
    }

    /// How many connections were found that wait to be accepted and have sent something: clones find them reset.
    pub(crate) fn unheard(&self) -> usize {
        self.unheard
    }

    /// Reads those. From here on they send nothing, until this is dropped, by whatever becomes of the daemon, or the
    /// processes end.
    pub(crate) fn take_connections(&mut self) -> Result<Vec<Connection>, CallError> {
        let connected = &mut self.connected;
        let take = || connected.take().map(|connected| ManuallyDrop::new(ManuallyDrop::into_inner(connected).take()));
        self.taken = self.tracer.run(take).context(what)?;
        Ok(self.taken.as_ref().map_or_else(Vec::new, |taken| taken.connections().to_vec()))
    }

    /// Lets them run on. Their snapshots stay.
    pub(crate) fn let_run(&mut self) {
        let (stopped, flight) = (std::mem::take(&mut self.stopped), self.flight.take());
        // Where the tracer is gone they run already.
        let _ = self.tracer.run(|| drop((flight.map(ManuallyDrop::into_inner), stopped)));
    }

    /// Ends them, and nobody hears of it from the connections that were read; first of all the first process of their
    /// pid namespace, where that was asked for.
    pub(crate) fn end(mut self) -> Result<(), CallError> {
        let stopped = std::mem::take(&mut self.stopped);
        let (first, taken) = (self.first.as_ref(), self.taken.as_ref());
        let ended = self.tracer.run(|| {
            // One or the other: connections that stay in repair are those of processes that end, also if the daemon is
            // killed now.
            let undivided = Undivided::begin();
            let ended = first.map_or(Ok(()), |first| pidfd::send_signal(&**first, libc::SIGKILL));
            if ended.is_ok()
                && let Some(taken) = taken
            {
                taken.leave();
            }
            drop(undivided);
            ended?;
            // Who traces a thread hears of its end first. That of a process's first thread comes when all others have
            // gone. That of a pid namespace's first process comes when all others of it have gone, and it is the first
            // here.
            for thread in stopped.into_iter().rev().flat_map(|process| process.threads.into_iter().rev()) {
                thread.kill();
            }
            Ok(())
        });
        ended.and_then(|ended| ended).context(|| "ending the processes".into())
    }
}

/// Refuses connections among the processes in which urgent data waits.
fn unless_urgent(image: &Image, files: &[usize]) -> Result<(), FreezeError> {
    let refusals = sockets::urgent(image, files);
    if refusals.is_empty() { Ok(()) } else { Err(FreezeError::Refused(refusals)) }
}

impl Drop for StoppedSet {
    fn drop(&mut self) {
        let (snapshots, flight) = (self.snapshots.take(), self.flight.take());
        let stopped = std::mem::take(&mut self.stopped);
        let (connected, taken, first) = (&mut self.connected, &mut self.taken, &mut self.first);
        let _ = self.tracer.run(|| {
            // Connections are in order before anybody runs who has them.
            drop((taken.take().map(ManuallyDrop::into_inner), connected.take().map(ManuallyDrop::into_inner)));
            drop((
                flight.map(ManuallyDrop::into_inner),
                stopped,
                snapshots,
                first.take().map(ManuallyDrop::into_inner),
            ));
        });
    }
}

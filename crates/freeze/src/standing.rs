//! Processes that stand still, and who keeps them so: a task that outlives the daemon, so that they run on as they were whatever becomes of that.

use crate::freeze::Subject;
use crate::image::Image;
use crate::origin::Origin;
use crate::refusal::FreezeError;
use crate::snapshot::{self, Snapshots};
use crate::stop::{self, Stopped};
use crate::tree::Roots;
use pando_kernel::outliving::Outliving;
use pando_kernel::{CallError, Context};
use std::mem::ManuallyDrop;

/// They, and their snapshots. Dropped, they run on.
pub(crate) struct Standing {
    /// The one that traces them: what is done with their threads is done there.
    tracer: Outliving,
    stopped: Vec<Stopped>,
    snapshots: Option<Snapshots>,
}

fn what() -> String {
    "having the processes stand still".into()
}

impl Standing {
    /// Nobody yet. `prepare` makes what is needed to look at them; its descriptors are the tracer's, and go with that.
    pub(crate) fn nobody<T>(
        prepare: impl FnOnce() -> Result<T, CallError>,
    ) -> Result<(Self, ManuallyDrop<T>), CallError> {
        let tracer = Outliving::new(c"pando-freezer").context(what)?;
        let prepared = tracer.run(|| prepare().map(ManuallyDrop::new)).context(what)??;
        Ok((Self { tracer, stopped: Vec::new(), snapshots: None }, prepared))
    }

    /// Stops every process below some roots, and looks at them.
    pub(crate) fn stop<T>(
        mut self,
        roots: &Roots,
        look: impl FnOnce(&[Stopped]) -> Result<T, FreezeError>,
    ) -> Result<(Self, T), FreezeError> {
        let outcome = self.tracer.run(|| {
            let stopped = stop::stop_all(roots)?;
            let seen = look(&stopped)?;
            Ok::<_, FreezeError>((stopped, seen))
        });
        let (stopped, seen) = outcome.context(what)??;
        self.stopped = stopped;
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

    /// The pid here of one of them.
    pub(crate) fn outer(&self, pid: i32) -> Option<i32> {
        self.stopped.iter().map(|one| &one.member).find(|member| member.pid == pid).map(|member| member.outer)
    }

    /// The processes as what has their memory.
    pub(crate) fn themselves(&self, subject: &Subject<'_>, image: &Image) -> Origin {
        let sources = image.processes.iter().map(|process| self.outer(process.pid).unwrap_or(0)).collect();
        Origin::Processes { sources, init: subject.init, early: None }
    }

    /// Lets them run on. Their snapshots stay.
    pub(crate) fn let_run(&mut self) {
        let stopped = std::mem::take(&mut self.stopped);
        // Where the tracer is gone they run already.
        let _ = self.tracer.run(|| drop(stopped));
    }

    /// Ends them.
    pub(crate) fn end(mut self) {
        let stopped = std::mem::take(&mut self.stopped);
        let _ = self.tracer.run(|| {
            // Who traces a thread hears of its end first. That of a process's first thread comes when all others have gone.
            // That of a pid namespace's first process comes when all others of it have gone, and it is the first here.
            for thread in stopped.into_iter().rev().flat_map(|process| process.threads.into_iter().rev()) {
                thread.kill();
            }
        });
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let snapshots = self.snapshots.take();
        let stopped = std::mem::take(&mut self.stopped);
        let _ = self.tracer.run(|| drop((stopped, snapshots)));
    }
}

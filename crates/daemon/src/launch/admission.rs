//! A guest is admitted to the machine: it gets its limits, its note and its network, while its root is put together or its first process goes on.

use crate::init::launch_builder::{Sent, Site};
use crate::init::prewarmed::Sprout;
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::Guest;
use crate::state::record;
use crate::state::record::{EphemeralRecord, RunRecord};
use crate::{crash, failure};
use pando_api::{Fault, FaultKind, Spec};
use pando_guest::launch;
use pando_guest::root::Mounted;
use pando_kernel::mount::Tree;
use pando_limit::view::View;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::mpsc;

/// Has a guest whose root stands admitted and sends it its plan. All that is left of that is a message: another thread would take longer to be woken. One on the
/// host's network is admitted there while it takes its first steps, and goes on to its own programs when it has been told so.
pub(crate) async fn send_ahead(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    spec: &Spec,
    sprout: &Sprout,
    (mut site, tree): (Site, Tree),
    errand: bool,
) -> Result<Sent, Fault> {
    // On a private network its files tell the names of the others, which are there once it is on it.
    site.admitted = !spec.network.is_the_hosts();
    let (waits, at) = (!site.admitted, (sprout.slot, sprout.pid));
    enroll(daemon, guest, spec, sprout, errand)?;
    if !waits {
        crate::network::address::admit(daemon, guest, spec, at).await?;
    }
    crash::point("start.noted");
    site.recover(&tree)?;
    let sent = site.send(Mounted { tree, parts: Vec::new() }, daemon.resources.views.trees(&guest.name))?;
    if waits {
        crate::network::address::admit(daemon, guest, spec, at).await?;
        match launch::admit(&sent.report) {
            // One that could not take a step has said so, which is read next.
            Err(error) if matches!(error.source.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            told => told.map_err(|error| failure::call("starting the guest", guest.name.as_ref(), &error))?,
        }
    }
    Ok(sent)
}

/// What a guest needs besides its files: its limits, its note, its network.
pub(crate) async fn admit(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    spec: &Spec,
    sprout: &Sprout,
    errand: bool,
) -> Result<(), Fault> {
    let network = crate::network::address::admit(daemon, guest, spec, (sprout.slot, sprout.pid));
    enroll(daemon, guest, spec, sprout, errand)?;
    network.await?;
    crash::point("start.noted");
    Ok(())
}

/// Gives a guest its limits, and notes it.
fn enroll(daemon: &Daemon, guest: &Guest, spec: &Spec, sprout: &Sprout, errand: bool) -> Result<(), Fault> {
    daemon.resources.enter(&guest.name, spec, sprout.slot)?;
    daemon.resources.born(&guest.name, (sprout.pid, sprout.root()))?;
    note(daemon, guest, sprout.slot, errand)
}

/// Whether a guest was admitted, and what its limits make of files in /proc then.
type Admitted = Result<Vec<(View, Tree)>, Fault>;

/// What came of putting a root together beside the guest's admission.
enum Built {
    /// The guest had been admitted, and its plan was sent.
    Sent(Sent),
    /// It was not known yet whether it is: here is what can be sent then, and where that is told.
    Early(Box<(Site, Mounted)>, mpsc::Receiver<Admitted>),
}

/// Has a root put together by a thread while the guest is admitted here: either takes up to a millisecond. The plan is sent, or the root taken down, when both are
/// done. The thread does not wait for that: there are only so many, and what a guest is admitted to may need one.
pub(crate) async fn build_beside(
    daemon: &Rc<Daemon>,
    guest: &Rc<Guest>,
    site: Site,
    admission: impl Future<Output = Result<(), Fault>>,
) -> Result<Sent, Fault> {
    let root = crate::store::layers::root(&daemon.places, guest);
    let (tell, told) = mpsc::sync_channel::<Admitted>(1);
    let building = in_thread(guest, move || {
        let mounted = site.mount(&root)?;
        match told.try_recv() {
            Ok(admitted) => site.send(mounted, admitted?).map(Built::Sent),
            Err(_) => Ok(Built::Early(Box::new((site, mounted)), told)),
        }
    });
    let admitted = admission.await.map(|()| daemon.resources.views.trees(&guest.name));
    // Where the thread has failed nobody hears it.
    let _ = tell.send(admitted);
    match building.await? {
        Built::Sent(sent) => Ok(sent),
        Built::Early(early, told) => {
            // Volumes may lie where it takes long to get at them, and so may what a root that nobody gets was made of.
            let sending = in_thread(guest, move || {
                let (site, mounted) = *early;
                let unknown =
                    |_| Err(Fault::new(FaultKind::Failed, "daemon", "it is not known whether the guest is admitted"));
                site.send(mounted, told.recv().unwrap_or_else(unknown)?)
            });
            sending.await
        }
    }
}

/// Begins something of a start that may take long, in a thread.
fn in_thread<T: Send + 'static>(
    guest: &Guest,
    act: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> impl Future<Output = Result<T, Fault>> {
    let (doing, name) = (tokio::task::spawn_blocking(act), guest.name.clone());
    async move {
        doing.await.unwrap_or_else(|error| {
            let message = format!("starting guest '{name}' failed inside Pando: {error}");
            Err(Fault::new(FaultKind::Failed, name.as_ref(), message))
        })
    }
}

fn note(daemon: &Daemon, guest: &Guest, slot: u32, errand: bool) -> Result<(), Fault> {
    let ephemeral = guest.ephemeral.then(|| EphemeralRecord {
        record: guest.record.borrow().clone(),
        spec: guest.spec.borrow().clone(),
        home: guest.home.clone(),
    });
    let run = RunRecord { slot, boot: daemon.boot.clone(), started: now(), errand, log_is_kept: true, ephemeral };
    record::write_run(&daemon.places, &guest.name, &run)
        .map_err(|error| failure::call("noting that the guest starts", guest.name.as_ref(), &error))
}

//! The look at who is outside, between a transaction's beginning and its command. It takes a thread: meanwhile a view
//! is made, or it is found out whether one that was made ahead is current.

use crate::supervise::{Bystanders, Holders, Still};
use crate::validate::read_set::Walker;
use pando_kernel::{CallError, Context, process};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// One that is under way.
#[derive(Debug)]
pub(super) struct Looking {
    /// Who was there, once that is known.
    pub(super) told: Receiver<Bystanders>,
    /// Gives the program back that tells of processes, where it could be loaded.
    pub(super) walker: JoinHandle<Option<Walker>>,
}

impl Looking {
    /// Begins one, with what `load` gives. Who is `still` need not be looked at.
    pub(super) fn begin(
        load: impl FnOnce() -> Option<Walker> + Send + 'static,
        still: Still,
    ) -> Result<Self, CallError> {
        let (tell, told) = channel();
        let look = move || {
            let walker = load();
            look(walker.as_ref(), &still, &tell);
            walker
        };
        let thread = std::thread::Builder::new().name("pando-look".into()).spawn(look);
        Ok(Self { told, walker: thread.context(|| "starting a thread that looks around".into())? })
    }
}

/// What tells of processes as they are called here: it counts as the first pid namespace does.
fn who_counts_likewise(walker: Option<&Walker>) -> Option<&Walker> {
    walker.filter(|_| process::counts_as_the_kernel())
}

/// Who may have a named fifo open, as far as the kernel tells.
fn holders_of_fifos(walker: Option<&Walker>) -> Holders {
    let told = who_counts_likewise(walker).and_then(|walker| walker.holders_of_fifos().ok());
    told.flatten().map_or(Holders::Anybody, Holders::These)
}

/// Who may write to files through its memory, as far as it does.
fn writers(walker: Option<&Walker>, still: &Still) -> Option<BTreeSet<i32>> {
    let tenants = who_counts_likewise(walker)?.tenants().ok()?;
    Some(tenants.into_iter().filter(|tenant| !still.has(tenant)).map(|tenant| tenant.pid).collect())
}

fn look(walker: Option<&Walker>, still: &Still, tell: &Sender<Bystanders>) {
    let mut bystanders = Bystanders::look(None, writers(walker, still));
    let search = bystanders.search_for_fifos();
    // Where nobody listens any more the command has failed to begin.
    let _ = tell.send(bystanders);
    if let Some(search) = search {
        search.answer(holders_of_fifos(walker));
    }
}

//! Everything of a start that a thread may do: putting a root file system together, and sending a first process its
//! plan.

use crate::failure;
use crate::init::birth::step_failed;
use crate::init::handoff::HandoffParts;
use crate::init::prewarmed::PrewarmedInit;
use crate::init::program::ProgramRequest;
use crate::init::{host_name_file, hosts_file};
use crate::runtime::descriptors::owned;
use pando_api::{Fault, FaultKind, Spec};
use pando_guest::account::{self, Account};
use pando_guest::launch::{Supplies, go_on};
use pando_guest::plan::{self, Facts, Heritage, Plan, Program};
use pando_guest::root::{self, LayerStore, Mounted, Owner, Root};
use pando_guest::shim::read_report;
use pando_guest::{slot, volume};
use pando_kernel::cgroup::Hierarchies;
use pando_kernel::file::operator_path::{OperatorPath, Shared};
use pando_kernel::mount::Tree;
use pando_kernel::{CallError, Context};
use pando_limit::view::View;
use pando_tx::StateDirectory;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// Where programs on this host read their limits in version 1: a hierarchy with controllers stays mounted as long as
/// the machine runs.
pub(crate) static LEGACY: LazyLock<Vec<(&str, String)>> =
    LazyLock::new(|| pando_kernel::mount::mounts().map(|mounts| Hierarchies::readable(&mounts)).unwrap_or_default());

/// Everything that a thread needs to put a guest's first process together.
pub(crate) struct LaunchBuilder {
    name: String,
    spec: Spec,
    store: Arc<LayerStore>,
    owner: Option<(OwnedFd, u32)>,
    pub(crate) stdio: Vec<OwnedFd>,
    pub(crate) request: Option<SendableProgram>,
    report: OwnedFd,
    heritage: Heritage,
    /// Whether its layers are unified.
    unified: bool,
    pub(crate) names: Option<(PathBuf, PathBuf)>,
    /// The program that makes the first process one of an image.
    pub(crate) restorer: Option<OwnedFd>,
    /// Where the first process says that the command has ended, for who waits for that.
    pub(crate) word: Option<OwnedFd>,
    /// Where transactions in it are kept, if there are any.
    pub(crate) transactions: Option<StateDirectory>,
    /// Whether the guest is on its network when the plan is sent.
    pub(crate) admitted: bool,
    /// Whether the guest has never run before.
    pub(crate) first_run: bool,
    /// The directories in which guests can put a link, on the way to its volumes.
    pub(crate) shared: Vec<Shared>,
}

/// A request without what cannot go to another thread.
pub(crate) struct SendableProgram {
    request: Program,
    user: String,
    program: Option<OwnedFd>,
}

impl SendableProgram {
    pub(crate) fn of(request: ProgramRequest) -> Result<Self, Fault> {
        let program = request.program.as_ref().map(|fd| owned(fd.as_fd())).transpose()?;
        Ok(Self { user: request.user.clone().unwrap_or_default(), request: request.program(Account::root()), program })
    }
}

/// What was sent to a first process, where its report comes, and what the root was put together from, to be closed
/// later.
pub(crate) struct Sent {
    pub(crate) plan: Plan,
    pub(crate) report: OwnedFd,
    pub(crate) parts: Vec<Tree>,
}

impl LaunchBuilder {
    /// That of a prewarmed init, with nothing to run yet. The store is said with whether layers are unified in it.
    pub(crate) fn of(
        init: &PrewarmedInit,
        name: &str,
        spec: Spec,
        (store, unified): (&Arc<LayerStore>, bool),
        heritage: Heritage,
    ) -> Result<Self, Fault> {
        let namespace = init.namespace.as_ref().map(|fd| owned(fd.as_fd())).transpose()?;
        Ok(Self {
            name: name.to_owned(),
            spec,
            store: Arc::clone(store),
            unified,
            owner: namespace.map(|fd| (fd, slot::first_id(init.slot))),
            stdio: Vec::new(),
            request: None,
            report: owned(init.report.as_fd())?,
            heritage,
            names: None,
            restorer: None,
            word: None,
            transactions: None,
            admitted: true,
            first_run: false,
            shared: Vec::new(),
        })
    }

    fn owner(&self) -> Option<Owner<'_>> {
        self.owner.as_ref().map(|(fd, first_id)| Owner { namespace: fd.as_fd(), first_id: *first_id })
    }

    fn fault(&self, error: &CallError) -> Fault {
        failure::call(&format!("starting guest '{}'", self.name), &self.name, error)
    }

    /// Gives the first process what it needs to become one of an image.
    pub(crate) fn hand_off(&mut self, parts: HandoffParts) {
        (self.stdio, self.restorer) = (parts.stdio, Some(parts.program));
    }

    /// Puts a root file system together, and finishes what transactions in it were at. Blocking.
    pub(crate) fn mount(&self, root: &Root) -> Result<Mounted, Fault> {
        root::prepare(&root.files).map_err(|error| self.fault(&error))?;
        let mounted = match self.transactions {
            Some(_) => crate::init::transactions::mount(root, self.owner(), &self.store),
            None => root.mount(self.owner(), &self.store),
        };
        let mounted =
            mounted.map_err(|error| failure::store(&format!("starting guest '{}'", self.name), &self.name, &error))?;
        self.recover(&mounted.tree)?;
        self.name_itself(&mounted.tree).map_err(|error| self.fault(&error))?;
        self.name_others(&mounted.tree)?;
        Ok(mounted)
    }

    /// Tells an init of the guest's own its host name: the one that was asked for, always; that of the guest only
    /// before its first run, since it is the guest's to change.
    fn name_itself(&self, tree: &Tree) -> Result<(), CallError> {
        let asked = self.spec.hostname.as_ref().or(self.first_run.then_some(&self.name));
        match asked.filter(|_| self.spec.init.is_some() && self.heritage == Heritage::None) {
            Some(name) => host_name_file::write(tree.as_fd(), self.owner().map(|owner| owner.first_id), name),
            None => Ok(()),
        }
    }

    /// Writes the names that it is to know into its /etc/hosts, where that is its own. Blocking.
    pub(crate) fn name_others(&self, tree: &Tree) -> Result<(), Fault> {
        if self.names.is_some() || self.heritage != Heritage::None {
            return Ok(());
        }
        let written = hosts_file::write(tree.as_fd(), self.owner().map(|owner| owner.first_id), &self.spec.add_host);
        written.map_err(|error| self.fault(&error))
    }

    /// Finishes what transactions in the guest were at. Blocking.
    pub(crate) fn recover(&self, tree: &Tree) -> Result<(), Fault> {
        let Some(home) = &self.transactions else { return Ok(()) };
        crate::init::transactions::recover(home, &self.name, tree, self.owner().map_or(0, |owner| owner.first_id))
    }

    /// Sends everything off, with what the guest's limits make of files in /proc.
    pub(crate) fn send(mut self, mounted: Mounted, views: Vec<(View, Tree)>) -> Result<Sent, Fault> {
        let Mounted { tree, parts } = mounted;
        let program = self.request.take().map(|request| self.resolve(request, &tree)).transpose()?;
        let (program, sent) = program.map_or((None, None), |(program, sent)| (Some(program), sent));
        let volume_sources = self.volume_sources().map_err(|error| self.fault(&error))?;
        let facts = self.facts(&views, &volume_sources).map_err(|error| self.fault(&error))?;
        let plan = plan::of_init(&self.spec, &facts, program.as_ref()).map_err(|error| {
            let message = format!("guest '{}' cannot be started as asked: {error}", self.name);
            Fault::new(FaultKind::BadRequest, self.name.as_str(), message)
        })?;
        let mut supplies = Supplies {
            volumes: &self.spec.volumes,
            volume_sources: &volume_sources,
            owner: self.owner(),
            root: Some(tree),
            stdio: &self.stdio,
            program: sent.as_ref().or(self.restorer.as_ref()),
            word: self.word.as_ref(),
            views,
            names: self.names.as_ref().map(|(hosts, resolver)| (hosts.as_path(), resolver.as_path())),
            ..Supplies::default()
        };
        match go_on(&self.report, &plan, &mut supplies) {
            Ok(()) => Ok(Sent { plan, report: self.report, parts }),
            // A prewarmed init that did not get to where it waits has left word.
            Err(error) => Err(match read_report(&self.report) {
                Ok(Some(report)) => step_failed(&self.name, &plan, report),
                _ => self.fault(&error),
            }),
        }
    }

    /// What the paths of its volumes lead to, each looked up this once.
    fn volume_sources(&self) -> Result<Vec<OperatorPath>, CallError> {
        self.spec.volumes.iter().map(|one| volume::find(one, &self.shared)).collect()
    }

    fn facts(&self, views: &[(View, Tree)], sources: &[OperatorPath]) -> Result<Facts, CallError> {
        let mut file_volumes = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            let what = || format!("looking at the volume {}", source.path().display());
            if !source.is_directory().context(what)? {
                file_volumes.push(number);
            }
        }
        let views = views.iter().map(|(view, _)| *view).collect();
        let (unified, awaited, admitted) = (self.unified, self.word.is_some(), self.admitted);
        let (name, legacy, heritage) = (self.name.clone(), LEGACY.clone(), self.heritage);
        Ok(Facts { name, unified, legacy, file_volumes, heritage, views, awaited, admitted })
    }

    /// Looks the program's user up in the guest's own files.
    fn resolve(&self, request: SendableProgram, tree: &Tree) -> Result<(Program, Option<OwnedFd>), Fault> {
        let wanted = if request.user.is_empty() { self.spec.user.clone().unwrap_or_default() } else { request.user };
        let account = find_account(&self.name, (&wanted, &self.spec.group_add), tree.as_fd())?;
        Ok((Program { account, ..request.request }, request.program))
    }
}

/// The user that a process is to run as. `root` is the guest's root directory.
pub(crate) fn find_account(
    name: &str,
    (wanted, further): (&str, &[String]),
    root: BorrowedFd<'_>,
) -> Result<Account, Fault> {
    if Account::is_plain_root(wanted) && further.is_empty() {
        return Ok(Account::root());
    }
    let read = |path: &str| {
        root::read_inside(root, path, account::LONGEST)
            .map(Option::unwrap_or_default)
            .map_err(|error| failure::io(&format!("reading /{path} of guest '{name}'"), name, &error))
    };
    let (passwd, group) = (read("etc/passwd")?, read("etc/group")?);
    let wanted = if wanted.is_empty() { "root" } else { wanted };
    let found = match Account::is_plain_root(wanted) {
        true => Ok(Account::root()),
        false => Account::resolve(wanted, &passwd, &group),
    };
    found
        .and_then(|mut account| account.join(further, &group).map(|()| account))
        .map_err(|error| failure::bad(wanted, format!("in guest '{name}': {error}")))
}

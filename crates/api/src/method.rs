//! The calls of the interface and their replies.

use crate::{
    Address, Collection, Event, GuestStatus, GuestUse, ImageInspection, ImageStatus, Inspection, MachineUse,
    NamedNetwork, NamedVolume, ProcessEntry, PulledImage, Reclaimed, Security, Spec, StoreUsage, Unification,
    Verification, WatchdogState, WrittenDirectory,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A process to start in a guest, and how it is tied to the caller.
///
/// The call carries file descriptors: without `terminal` three, the process's standard input, output and error; with it
/// one, a socket on which the master of a terminal of the guest's own arrives. One that is part of a transaction and is
/// supervised has another behind these: a socket on which arrives, from the process itself, the number of its
/// descriptor that its system calls wait at for answers (`SECCOMP_RET_USER_NOTIF`): the caller takes it
/// (pidfd_getfd(2)), and sends a byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// The command and its arguments. Empty: the spec's command, for `Run`.
    pub command: Vec<String>,
    /// Added to the guest's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where it starts. Default: the guest's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Who runs it. Default: the guest's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether nobody stands for it: what a command of `Run` prints goes into the guest's log, what one of `Exec`
    /// prints goes nowhere, and there is no input. The call carries no descriptors then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// Whether it gets a terminal.
    pub terminal: bool,
    /// How many rows that terminal has.
    pub rows: u16,
    /// How many columns that terminal has.
    pub columns: u16,
    /// The transaction that it is part of, for `Exec`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<PartOf>,
}

/// A transaction in a guest that a process is part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartOf {
    /// Its name. Its processes are in the control group `tx-NAME` beside the guest's own.
    pub name: String,
    /// The host pid of the process that is in its view of the guest's files.
    pub holder: i32,
    /// When that started, in clock ticks since boot: a later one may have its pid. 0 where that is not known.
    pub holder_started: u64,
    /// Whether the caller answers the calls by which it would reach outside.
    pub supervised: bool,
    /// Whether sockets to other machines are among these.
    pub refuse_network: bool,
}

/// What becomes of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressChange {
    /// The guest gets it too.
    Add,
    /// The guest loses the address.
    Del,
    /// The guest gets it, and all others lose it.
    Move,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Copying {
    /// A tar stream is read from the call's file descriptor and unpacked inside the guest.
    In,
    /// A tar stream of the guest's path is written to the call's file descriptor.
    Out,
}

/// A call. The wire form is varlink's: `{"method": "org.pando.Guests.NAME", "parameters": {…}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", content = "parameters")]
#[allow(missing_docs)] // The description file says what each does.
pub enum Method {
    #[serde(rename = "org.pando.Guests.Version")]
    Version {},
    #[serde(rename = "org.pando.Guests.Quit")]
    Quit {},
    #[serde(rename = "org.pando.Guests.Reload")]
    Reload {},
    #[serde(rename = "org.pando.Guests.Run")]
    Run { name: Option<String>, source: Option<String>, spec: Spec, process: Process },
    #[serde(rename = "org.pando.Guests.Exec")]
    Exec { name: String, process: Process },
    #[serde(rename = "org.pando.Guests.Signal")]
    Signal { name: String, pid: i32, signal: i32 },
    #[serde(rename = "org.pando.Guests.Create")]
    Create { name: String, source: Option<String>, spec: Spec, start: bool },
    #[serde(rename = "org.pando.Guests.Start")]
    Start { name: String },
    #[serde(rename = "org.pando.Guests.Stop")]
    Stop { name: String, signal: Option<String>, grace: Option<u32> },
    #[serde(rename = "org.pando.Guests.Restart")]
    Restart { name: String, grace: Option<u32> },
    #[serde(rename = "org.pando.Guests.Pause")]
    Pause { name: String },
    #[serde(rename = "org.pando.Guests.Unpause")]
    Unpause { name: String },
    #[serde(rename = "org.pando.Guests.Reclaim")]
    Reclaim { name: Option<String> },
    #[serde(rename = "org.pando.Guests.Rename")]
    Rename { name: String, to: String },
    #[serde(rename = "org.pando.Guests.Wait")]
    Wait { name: String },
    #[serde(rename = "org.pando.Guests.Kill")]
    Kill { name: String, signal: Option<String> },
    #[serde(rename = "org.pando.Guests.Remove")]
    Remove { name: String, force: bool },
    #[serde(rename = "org.pando.Guests.Repair")]
    Repair { name: String },
    #[serde(rename = "org.pando.Guests.List")]
    List {},
    #[serde(rename = "org.pando.Guests.Inspect")]
    Inspect { name: String },
    #[serde(rename = "org.pando.Guests.Security")]
    Security { name: String },
    #[serde(rename = "org.pando.Guests.Processes")]
    Processes { name: Option<String>, host: bool },
    #[serde(rename = "org.pando.Guests.Set")]
    Set { name: String, assignments: Vec<String> },
    #[serde(rename = "org.pando.Guests.Address")]
    Address { name: String, change: AddressChange, address: Address },
    #[serde(rename = "org.pando.Guests.Stats")]
    Stats { name: Option<String>, history: bool },
    #[serde(rename = "org.pando.Guests.Watchdog")]
    Watchdog { policy: Option<String> },
    #[serde(rename = "org.pando.Guests.Events")]
    Events {},
    #[serde(rename = "org.pando.Guests.Log")]
    Log { name: String },
    #[serde(rename = "org.pando.Guests.Input")]
    Input { name: String },
    #[serde(rename = "org.pando.Guests.TakeSpare")]
    TakeSpare {},
    #[serde(rename = "org.pando.Guests.BeginTransaction")]
    BeginTransaction {},
    #[serde(rename = "org.pando.Guests.CommitTransaction")]
    CommitTransaction { durable: bool },
    #[serde(rename = "org.pando.Guests.AbortTransaction")]
    AbortTransaction {},
    #[serde(rename = "org.pando.Guests.Copy")]
    Copy { name: String, path: String, direction: Copying },
    #[serde(rename = "org.pando.Guests.Freeze")]
    Freeze {
        name: String,
        image: Option<String>,
        stop: bool,
        memory: bool,
        wait: bool,
        /// Whether no clone of it is compared with what was frozen.
        #[serde(default)]
        unchecked: bool,
    },
    #[serde(rename = "org.pando.Guests.Clone")]
    Clone {
        image: String,
        names: Vec<String>,
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        addresses: Vec<Address>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        signal: Option<String>,
        /// By what is decided whether there is room: `always`, `learned` or `reserved`; without it as pando.toml says.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        admit: Option<String>,
        /// How often the same memory is given away, as `3x`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        overbook: Option<String>,
    },
    #[serde(rename = "org.pando.Guests.Move")]
    Move { pids: Vec<i32>, to: String },
    #[serde(rename = "org.pando.Guests.Restore")]
    Restore { image: String, replace: bool },
    #[serde(rename = "org.pando.Guests.Images")]
    Images {},
    #[serde(rename = "org.pando.Guests.RemoveImage")]
    RemoveImage { image: String },
    #[serde(rename = "org.pando.Guests.ReleaseImage")]
    ReleaseImage { image: String },
    #[serde(rename = "org.pando.Guests.InspectImage")]
    InspectImage { image: String },
    #[serde(rename = "org.pando.Guests.PullImage")]
    PullImage {
        /// Its name, in full or as one writes it: `nginx` is `docker.io/library/nginx:latest`.
        reference: String,
        /// Whether one that is here is good enough, whatever the registry has by now.
        #[serde(default)]
        missing: bool,
    },
    #[serde(rename = "org.pando.Guests.PushImage")]
    PushImage {
        /// An image that is here.
        image: String,
        /// What it is to be called in the registry. Default: as it is called here.
        #[serde(default)]
        to: Option<String>,
    },
    #[serde(rename = "org.pando.Guests.Commit")]
    Commit { name: String, image: String },
    #[serde(rename = "org.pando.Guests.TagImage")]
    TagImage {
        /// An image of a registry that is here.
        image: String,
        /// The name that it gets besides.
        to: String,
    },
    #[serde(rename = "org.pando.Guests.PulledImages")]
    PulledImages {},
    #[serde(rename = "org.pando.Guests.PrunePulledImages")]
    PrunePulledImages {
        /// Seconds for which nothing was made of an image that goes.
        #[serde(default)]
        unused_for: Option<i64>,
    },
    #[serde(rename = "org.pando.Guests.ExportImage")]
    ExportImage {
        image: String,
        /// Whether a signature is to follow what is written: the caller makes it.
        #[serde(default)]
        sign: bool,
    },
    #[serde(rename = "org.pando.Guests.ImportImage")]
    ImportImage {
        /// Default: the name that it had.
        image: Option<String>,
        /// What it may want of this machine beyond what every guest has: `volumes`, `network`, `devices`, `userns`,
        /// `caps`, `seccomp`, `profile`, `freeze`, `limits`, `resources` or `all`.
        #[serde(default)]
        allow: Vec<String>,
        /// Whether it has to be signed by one of the signers in the second file that comes with the call.
        #[serde(default)]
        verify: bool,
    },
    #[serde(rename = "org.pando.Guests.Usage")]
    Usage {},
    #[serde(rename = "org.pando.Guests.Verify")]
    Verify { repair: bool, places: Vec<String> },
    #[serde(rename = "org.pando.Guests.Collect")]
    Collect {},
    #[serde(rename = "org.pando.Guests.CreateVolume")]
    CreateVolume { name: String },
    #[serde(rename = "org.pando.Guests.Volumes")]
    Volumes {},
    #[serde(rename = "org.pando.Guests.RemoveVolume")]
    RemoveVolume { name: String },
    #[serde(rename = "org.pando.Guests.CreateNetwork")]
    CreateNetwork {
        name: String,
        /// Its addresses, such as `10.50.0.0/24`. Default: some that nobody has.
        #[serde(default)]
        subnet: Option<String>,
        /// Whether nothing leads out of it.
        #[serde(default)]
        internal: bool,
    },
    #[serde(rename = "org.pando.Guests.Networks")]
    Networks {},
    #[serde(rename = "org.pando.Guests.RemoveNetwork")]
    RemoveNetwork { name: String },
    #[serde(rename = "org.pando.Guests.WrittenDirectories")]
    WrittenDirectories {},
    #[serde(rename = "org.pando.Guests.Unify")]
    Unify { dry_run: bool },
}

/// A call as it comes off the wire: any method, parameters not looked at yet, so that a wrong one can be answered by
/// name.
#[derive(Clone, Debug, Deserialize)]
pub struct MethodCall {
    /// The method's full name, its interface included.
    pub method: String,
    /// Its parameters; varlink clients may leave them out where a method takes none.
    #[serde(default)]
    pub parameters: serde_json::Value,
}

impl MethodCall {
    /// The call, typed; the error is serde's, and names the field.
    pub fn typed(self) -> Result<Method, serde_json::Error> {
        let parameters = match self.parameters {
            serde_json::Value::Null => serde_json::Value::Object(serde_json::Map::new()),
            given => given,
        };
        serde_json::from_value(serde_json::json!({ "method": self.method, "parameters": parameters }))
    }
}

/// How a long call gets on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done, for people.
    pub stage: String,
    /// How much of it is done, in the stage's own unit.
    pub done: i64,
    /// How much there is, where that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<i64>,
}

/// What becomes of a process that `Run`, `Exec` or `Copy` started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessNotice {
    /// The guest it is in.
    pub guest: String,
    /// Its host pid, or that of the guest's first process for `Run`: what `Signal` takes.
    pub pid: i32,
    /// Whether it has ended; the notices before say that it runs.
    pub exited: bool,
    /// Its exit code, 128 + signal for a death by signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What has to be known, in a sentence: before the end what the guest has not that its user may count on, with
    /// the end what explains the exit code, such as that the kernel killed for want of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Microseconds inside the daemon, from reading the request to knowing of the exit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micros: Option<i64>,
}

/// What came of a transaction that a program has asked to be committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransactionOutcome {
    /// Whether it is committed. Otherwise it is gone, and has changed nothing.
    pub committed: bool,
    /// How many paths it has changed.
    pub paths: i64,
    /// What others have changed, where that was in its way and is known by a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Why it is not committed, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The parameters of a reply. Which one a method answers with stands in the description.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
#[allow(clippy::large_enum_variant, reason = "one exists at a time, for as long as it takes to write it out")]
pub enum Reply {
    Version { version: String, pid: i32, root: String },
    Guests { guests: Vec<GuestStatus> },
    Image { image: ImageStatus },
    Exported { statement: Option<String> },
    Restored { name: String },
    Repaired { done: Vec<String> },
    Reloaded { applied: Vec<String>, at_next_daemon: Vec<String>, problems: Vec<String> },
    Moved { from: String, processes: i64, threads: i64, pause_us: i64 },
    Images { images: Vec<ImageStatus> },
    Pulled { pulled: PulledImage, changed: bool },
    PulledImages { pulled_images: Vec<PulledImage> },
    Pruned { removed: Vec<String> },
    ImageInspection { image: ImageInspection },
    Inspection { guest: Inspection },
    Security { security: Security },
    Processes { processes: Vec<ProcessEntry> },
    Applied { applied: Vec<String>, at_next_start: Vec<String> },
    Stats { machine: MachineUse, guests: Vec<GuestUse> },
    Reclaimed { reclaimed: Vec<Reclaimed> },
    Watchdog { watchdog: WatchdogState },
    Event { event: Event },
    Progress { progress: Option<Progress>, warnings: Option<Vec<String>> },
    Notice { notice: ProcessNotice },
    Usage { usage: StoreUsage },
    Verification { verification: Verification },
    Collection { collection: Collection },
    Unification { unification: Unification },
    Volumes { volumes: Vec<NamedVolume> },
    Networks { networks: Vec<NamedNetwork> },
    WrittenDirectories { directories: Vec<WrittenDirectory> },
    Spare { spare: Option<String> },
    Transaction { outcome: TransactionOutcome },
    Done {},
}

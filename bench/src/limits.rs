//! `./x bench limits`: what limits add to a guest's start, each kind by itself and all together; and what a disk of its
//! own adds to its creation.

use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use crate::{busybox_root, interrupt};
use anyhow::Context;
use pando_api::{Amount, CpuRequest, DiskRequest, IoRequest, MemoryRequest, Method, Spec};
use std::time::{Duration, Instant};

/// Between two samples: see `./x bench start`.
const PAUSE: Duration = Duration::from_millis(300);

/// What all limits but the disk may add to a start, and a disk to a creation, in milliseconds.
const MOST_OF_START: f64 = 1.0;
const MOST_OF_DISK: f64 = 15.0;

/// The row that the others are held against, and the one that has everything.
const NONE: &str = "start without limits";
const ALL: &str = "start with all limits but the disk";

/// Limits of a kind.
struct Kind {
    name: &'static str,
    spec: Spec,
}

fn amount(text: &str) -> Option<Amount> {
    Some(Amount::from(text))
}

fn kinds() -> Vec<Kind> {
    let cpu = CpuRequest { reserve: amount("5%"), share: amount("50"), limit: amount("0.5"), cpus: amount("0") };
    let memory =
        MemoryRequest { limit: amount("64M"), reserve: amount("8M"), swap: amount("0"), ..MemoryRequest::default() };
    let each = MemoryRequest {
        locked: amount("1M"),
        anonymous: amount("256M"),
        virtual_size: amount("1G"),
        ..MemoryRequest::default()
    };
    let shared = MemoryRequest { sysv: amount("8M"), shm: amount("8M"), ..MemoryRequest::default() };
    let io = IoRequest {
        read_rate: amount("500M"),
        write_rate: amount("500M"),
        read_ops: amount("50k"),
        ..IoRequest::default()
    };
    let (pids, files) = (amount("200"), amount("512"));
    let all = Spec {
        cpu: cpu.clone(),
        memory: MemoryRequest {
            limit: memory.limit.clone(),
            reserve: memory.reserve.clone(),
            swap: memory.swap.clone(),
            sysv: shared.sysv.clone(),
            shm: shared.shm.clone(),
            ..each.clone()
        },
        io: io.clone(),
        pids: pids.clone(),
        files: files.clone(),
        files_total: amount("2000"),
        ..Spec::default()
    };
    let kind = |name, spec| Kind { name, spec };
    let none = Spec::default;
    vec![
        kind(NONE, none()),
        kind("start with processor limits", Spec { cpu, ..none() }),
        kind("start with memory limits", Spec { memory, ..none() }),
        kind("start with limits of each process", Spec { memory: each, files, ..none() }),
        kind("start with limits of shared memory", Spec { memory: shared, ..none() }),
        kind("start with limits of processes and open files", Spec { pids, files_total: amount("2000"), ..none() }),
        kind("start with limits of traffic", Spec { io, ..none() }),
        kind(ALL, all),
    ]
}

/// Takes every sample and judges them.
pub(crate) fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let mut report = Report::new("limits");
    let pando = OwnPando::start(&settings.pando)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    let source = Some(root.to_string_lossy().into_owned());
    let mut client = pando.connect()?;
    let mut kinds = kinds();
    for (number, kind) in kinds.iter_mut().enumerate() {
        let create = |spec: &Spec| Method::Create {
            name: name(number),
            source: source.clone(),
            spec: spec.clone(),
            start: false,
        };
        if let Err(error) = client.call(&create(&kind.spec)) {
            // On a file system without a block device traffic cannot be bounded.
            report.note(format!("{}: without bounds on traffic: {error:#}", kind.name));
            kind.spec.io = IoRequest::default();
            client.call(&create(&kind.spec)).with_context(|| format!("in '{}'", kind.name))?;
        }
    }
    let samples = settings.samples(30, 4);
    for round in 0..=samples {
        for number in 0..kinds.len() {
            let number = (number + round) % kinds.len();
            interrupt::pause(PAUSE)?;
            let milliseconds = start(&mut client, &name(number))?;
            if round > 0 {
                report.add(kinds[number].name, "ms", milliseconds);
            }
        }
    }
    disks(&mut client, source.as_ref(), settings.samples(10, 2), &mut report)?;
    judge(&mut report, &kinds);
    Ok(report)
}

fn name(number: usize) -> String {
    format!("limits-{number}")
}

fn start(client: &mut Client, name: &str) -> anyhow::Result<f64> {
    let begin = Instant::now();
    client.call(&Method::Start { name: name.to_owned() })?;
    let milliseconds = begin.elapsed().as_secs_f64() * 1000.0;
    client.call(&Method::Stop { name: name.to_owned(), signal: None, grace: Some(0) })?;
    Ok(milliseconds)
}

fn disks(client: &mut Client, source: Option<&String>, samples: usize, report: &mut Report) -> anyhow::Result<()> {
    for _ in 0..samples {
        for (row, size) in [(PLAIN, None), (DISK, amount("2G"))] {
            interrupt::pause(PAUSE)?;
            let spec = Spec { disk: DiskRequest { size, inodes: None }, ..Spec::default() };
            let name = "disk".to_owned();
            let create = Method::Create { name: name.clone(), source: source.cloned(), spec, start: false };
            let begin = Instant::now();
            client.call(&create)?;
            report.add(row, "ms", begin.elapsed().as_secs_f64() * 1000.0);
            client.call(&Method::Remove { name, force: true })?;
        }
    }
    Ok(())
}

const PLAIN: &str = "create without a disk of its own";
const DISK: &str = "create with a disk of 2 GB";

fn judge(report: &mut Report, kinds: &[Kind]) {
    let none = report.median(NONE);
    let added = |one: Option<f64>, other: Option<f64>| Some((one? - other?).max(0.0));
    for kind in &kinds[1..] {
        if let Some(part) = added(report.median(kind.name), none) {
            report.note(format!("{}: {part:.2} ms more", kind.name));
        }
    }
    report.hold("what all limits but the disk add to a start", added(report.median(ALL), none), MOST_OF_START, "ms");
    let disk = added(report.median(DISK), report.median(PLAIN));
    report.hold("what a disk of its own adds to a creation", disk, MOST_OF_DISK, "ms");
}

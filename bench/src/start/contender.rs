//! Who takes part: a name, and a way to run once.

use crate::own_pando::OwnPando;
use crate::start::{EXEC, INSIDE, INSIDE_HOST, RUN, RUN_HOST};
use crate::varlink::Client;
use anyhow::{Context, bail};
use pando_api::{Method, Network, Process, Spec};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// One row of the table.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    /// Runs once; milliseconds.
    pub(crate) run: Box<dyn FnMut() -> anyhow::Result<f64> + 'a>,
    /// Whether it has failed, and is left out from then on.
    pub(crate) failed: bool,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(name: &'static str, run: impl FnMut() -> anyhow::Result<f64> + 'a) -> Self {
        Self { name, run: Box::new(run), failed: false }
    }
}

/// The whole process: from before it is spawned until its exit is seen. Milliseconds.
pub(crate) fn timed(command: &mut Command) -> anyhow::Result<f64> {
    let errors = tempfile::tempfile()?;
    command.stdout(Stdio::piped()).stderr(errors.try_clone()?);
    let since = Instant::now();
    let status = command.status();
    let elapsed = since.elapsed();
    let status = status.with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("it ended with {status}: {}", said(errors).unwrap_or_default().trim());
    }
    Ok(elapsed.as_secs_f64() * 1e3)
}

fn said(mut file: File) -> std::io::Result<String> {
    use std::io::{Read, Seek};
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// Pando's own rows, and the floor: the same command with no isolation at all.
pub(crate) fn of_pando<'a>(pando: &'a OwnPando, root: &'a Path) -> anyhow::Result<Vec<Contender<'a>>> {
    const GUEST: &str = "bench";
    let source = root.to_string_lossy().into_owned();
    let spec = Spec::default();
    let mut client = pando.connect()?;
    client.call(&Method::Create { name: GUEST.to_owned(), source: Some(source.clone()), spec, start: true })?;
    let run = |network: &'static str| {
        let source = source.clone();
        move || {
            timed(pando.command().args(["run", "--net", network, "--from", &source, "--", "true"]).stdin(Stdio::null()))
        }
    };
    let mut rows = vec![
        Contender::new("busybox true, no isolation", || {
            timed(Command::new(root.join("bin/true")).stdin(Stdio::null()))
        }),
        Contender::new(RUN, run("none")),
        Contender::new(RUN_HOST, run("host")),
        Contender::new(EXEC, || timed(pando.command().args(["exec", GUEST, "--", "true"]).stdin(Stdio::null()))),
    ];
    for (name, network) in [(INSIDE, Network::None), (INSIDE_HOST, Network::Host)] {
        let (mut client, source) = (pando.connect()?, source.clone());
        rows.push(Contender::new(name, move || inside(&mut client, &source, Spec { network, ..Spec::default() })));
    }
    Ok(rows)
}

/// What the daemon says that a guest for `true` took, from reading the request to knowing of the exit. Milliseconds.
pub(crate) fn inside(client: &mut Client, source: &str, spec: Spec) -> anyhow::Result<f64> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let spec = Spec { command: vec!["true".to_owned()], ..spec };
    let method = Method::Run { name: None, source: Some(source.to_owned()), spec, process: Process::default() };
    let answer = client.call_with(&method, &[null.as_fd(), null.as_fd(), null.as_fd()])?;
    let notice = &answer["notice"];
    match (notice["exit_code"].as_i64(), notice["micros"].as_f64()) {
        (Some(0), Some(micros)) => Ok(micros / 1e3),
        _ => bail!("the daemon answered {answer}"),
    }
}

//! Clones of servers that serve, each beside a cold start of the same server in a guest of its own.

use super::{PAUSE, milliseconds, remove};
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::varlink::Client;
use anyhow::{Context, ensure};
use pando_api::{Method, Network, Spec};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What Debian calls them.
const SOURCE: &str = "debian:bookworm+redis-server,redis-tools,nginx-light,postgresql,python3,nodejs,sysbench";

/// The guest with the installed system, which others are copies of.
const INSTALLED: &str = "programs";

/// The script that a guest runs, in the guest.
const SERVE: &str = "/var/tmp/serve";

/// How long a server may take until it answers.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a cold start is beside: it takes a hundred times as long as a clone.
const COLD: usize = 5;

/// A server: its row, and the most milliseconds that a clone of it may take.
struct Program {
    name: &'static str,
    most: f64,
    user: &'static str,
    /// Once, in a guest that has never run it.
    prepare: &'static str,
    serve: &'static str,
    /// Succeeds when it answers.
    answers: &'static str,
}

const PYTHON: Program = Program {
    name: "python3",
    most: 6.0,
    user: "root",
    prepare: r#"cat >/root/serve.py <<'END'
import socketserver, threading
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"yes\n")
for _ in range(2):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
socketserver.ThreadingTCPServer(("127.0.0.1", 7000), Handler).serve_forever()
END"#,
    serve: "exec python3 /root/serve.py",
    answers: "bash -c 'read -r said </dev/tcp/127.0.0.1/7000 && [ $said = yes ]'",
};

const NGINX: Program = Program {
    name: "nginx, 2 workers",
    most: 6.0,
    user: "root",
    prepare: "sed -i 's/^worker_processes.*/worker_processes 2;/' /etc/nginx/nginx.conf && echo yes >/var/www/html/word",
    serve: "exec nginx -g 'daemon off;'",
    answers: r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET /word HTTP/1.0\r\n\r\n' >&3; grep -q yes <&3""#,
};

/// Its data are on its disk, as those of a redis are that is started again.
const REDIS: Program = Program {
    name: "redis, 100 MiB",
    most: 6.0,
    user: "redis",
    prepare: "cd /var/lib/redis && { redis-server --port 0 --unixsocket /tmp/fill --enable-debug-command yes --dir /var/lib/redis & } && \
              until redis-cli -s /tmp/fill ping; do sleep 0.1; done && redis-cli -s /tmp/fill debug populate 95000 key 1000 && \
              redis-cli -s /tmp/fill save && redis-cli -s /tmp/fill shutdown nosave && wait",
    serve: "exec redis-server --bind 127.0.0.1 --dir /var/lib/redis",
    answers: "redis-cli dbsize | grep -q 95000",
};

const POSTGRES: Program = Program {
    name: "postgres, shared_buffers 128 MB",
    most: 30.0,
    user: "postgres",
    prepare: "export PATH=$PATH:/usr/lib/postgresql/15/bin; initdb -A trust -D /var/lib/postgresql/own && \
              pg_ctl -w -D /var/lib/postgresql/own -o '-k /tmp -h 127.0.0.1' start && \
              /usr/lib/postgresql/15/bin/pgbench -h /tmp -i -q -s 1 postgres && pg_ctl -w -D /var/lib/postgresql/own stop",
    serve: "exec /usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/own -k /tmp -h 127.0.0.1 -c shared_buffers=128MB",
    answers: "psql -h 127.0.0.1 -U postgres -Atc 'select count(*) from pgbench_accounts' postgres | grep -q 100000",
};

const NODE: Program = Program {
    name: "node",
    most: 10.0,
    user: "root",
    prepare: r#"cat >/root/serve.js <<'END'
require("net").createServer((socket) => socket.end("yes\n")).listen(7000, "127.0.0.1");
END"#,
    serve: "exec node /root/serve.js",
    answers: PYTHON.answers,
};

const PROGRAMS: [&Program; 5] = [&PYTHON, &NGINX, &REDIS, &POSTGRES, &NODE];

impl Program {
    fn clone_row(&self) -> String {
        format!("{}: clone", self.name)
    }

    /// The name of its guest, and of its image.
    fn guest(&self) -> String {
        self.name.split([' ', ',']).next().unwrap_or(self.name).to_owned()
    }
}

/// Makes the guest that has all the programs.
pub(super) fn install(pando: &OwnPando, settings: &Settings) -> anyhow::Result<String> {
    let tree = settings.trees.first().map(|tree| tree.to_string_lossy().into_owned());
    let done = pando.command().args(["create", INSTALLED, "--from", tree.as_deref().unwrap_or(SOURCE)]).output()?;
    ensure!(done.status.success(), "installing the programs failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(format!("guest:{INSTALLED}"))
}

/// Measures all of them, in turn.
pub(super) fn measure(
    pando: &OwnPando,
    client: &mut Client,
    settings: &Settings,
    source: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut frozen = Vec::new();
    for program in PROGRAMS {
        match freeze(pando, client, program, source) {
            Ok(()) => frozen.push(program),
            Err(error) => report.note(format!("{} could not be measured: {error:#}", program.name)),
        }
    }
    let samples = settings.samples(50, 3);
    for round in 0..=samples {
        for program in &frozen {
            interrupt::pause(PAUSE)?;
            let took = clone(client, program)?;
            if round > 0 {
                report.add(&program.clone_row(), "ms", took);
            } else {
                // It is what it was frozen as.
                wait_until(pando, "clone", program, program.answers)?;
            }
            remove(client, "clone")?;
        }
        if round % samples.div_ceil(COLD) == 1 || samples <= COLD && round > 0 {
            for program in &frozen {
                let cold = cold_start(pando, client, program)?;
                report.add(&format!("{}: cold start until it answers", program.name), "ms", cold);
            }
        }
    }
    for program in PROGRAMS {
        let row = program.clone_row();
        report.hold(row.clone(), report.median(&row), program.most, "ms");
    }
    frozen.iter().try_for_each(|program| remove(client, &program.guest()).map(drop))
}

/// Prepares and starts a server, and freezes its guest when it answers. The guest lives on.
fn freeze(pando: &OwnPando, client: &mut Client, program: &Program, source: &str) -> anyhow::Result<()> {
    let name = program.guest();
    let user = Some(program.user.to_owned());
    let spec = Spec { network: Network::None, user, ..Spec::default() };
    client.call(&Method::Create { name: name.clone(), source: Some(source.to_owned()), spec, start: true })?;
    let keep = format!("cat >{SERVE} <<'END'\n{}\nEND\n{}", program.serve, program.prepare);
    inside(pando, &name, program, &keep).context("preparing it failed")?;
    client.call(&Method::Set { name: name.clone(), assignments: vec![format!("command=sh {SERVE}")] })?;
    cold_start(pando, client, program)?;
    let image = Some(name.clone());
    client.call(&Method::Freeze { name, image, stop: false, memory: true, wait: false, unchecked: false })?;
    Ok(())
}

/// From the request until it answers. Milliseconds.
fn cold_start(pando: &OwnPando, client: &mut Client, program: &Program) -> anyhow::Result<f64> {
    let name = program.guest();
    client.call(&Method::Stop { name: name.clone(), signal: Some("TERM".into()), grace: None })?;
    interrupt::pause(PAUSE)?;
    let since = Instant::now();
    client.call(&Method::Start { name: name.clone() })?;
    wait_until(pando, &name, program, program.answers)?;
    Ok(milliseconds(since))
}

fn clone(client: &mut Client, program: &Program) -> anyhow::Result<f64> {
    let since = Instant::now();
    client.call(&Method::Clone {
        image: program.guest(),
        names: vec!["clone".into()],
        addresses: Vec::new(),
        signal: None,
        admit: None,
        overbook: None,
    })?;
    Ok(milliseconds(since))
}

fn inside(pando: &OwnPando, guest: &str, program: &Program, script: &str) -> anyhow::Result<()> {
    let mut command = pando.command();
    command.args(["exec", "-u", program.user, guest, "--", "sh", "-c", script]).stdin(Stdio::null());
    let done = command.output()?;
    ensure!(done.status.success(), "'{script}' failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}

fn wait_until(pando: &OwnPando, guest: &str, program: &Program, script: &str) -> anyhow::Result<()> {
    const MOMENT: Duration = Duration::from_millis(5);
    let since = Instant::now();
    while let Err(error) = inside(pando, guest, program, script) {
        ensure!(since.elapsed() < PATIENCE, "guest '{guest}' does not answer: {error:#}");
        interrupt::pause(MOMENT)?;
    }
    Ok(())
}

//! Programs that people use every day, on the host's own root.

use crate::case::{Case, skip};
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::patience::{comes_true, eventually};
use crate::sandbox::Sandbox;
use std::path::{Path, PathBuf};

const VIM: &[Need] = &[Need::Root, Need::Program("tmux", "tmux"), Need::Program("vim", "vim")];
const APT: &[Need] = &[Need::Root, Need::Program("apt-get", "apt")];

pub(crate) const CASES: &[Case] = &[
    Case::new("programs::python_with_threads_a_database_and_children", python),
    Case::new("programs::node_serves_and_fetches", node),
    Case::new("programs::gcc_makes_a_program_that_runs", gcc),
    Case::new("programs::a_long_pipeline", pipeline),
    Case::new("programs::apt_reaches_the_hosts_archive", apt).needs(APT),
    Case::new("programs::vim_in_a_terminal_that_changes_its_size", vim).needs(VIM),
];

/// Skips the test where guests have no such program. The caller's PATH says nothing: it may lead into a home, which
/// guests do not see.
#[track_caller]
fn wants(sandbox: &Sandbox, program: &str) {
    if sandbox.pando(["run", "--", "sh", "-c", &format!("command -v {program}")]).run().code() != 0 {
        skip(format!("it needs {program} in one of the system's directories"));
    }
}

fn on_host(sandbox: &Sandbox, command: &[&str]) -> Ended {
    sandbox.pando(["run", "--"]).args(command).run()
}

const PYTHON: &str = r#"
import sqlite3, subprocess, tempfile, threading
path = tempfile.mkdtemp() + "/numbers"
sqlite3.connect(path).execute("create table numbers (value integer)").connection.commit()
lock = threading.Lock()
def add(start):
    with lock:
        base = sqlite3.connect(path)
        base.executemany("insert into numbers values (?)", ((n,) for n in range(start, start + 100)))
        base.commit()
threads = [threading.Thread(target=add, args=(100 * n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sqlite3.connect(path).execute("select count(*), sum(value) from numbers").fetchone())
print(subprocess.run(["tr", "a-z", "A-Z"], input="child", capture_output=True, text=True).stdout)
"#;

fn python(sandbox: &Sandbox) {
    wants(sandbox, "python3");
    on_host(sandbox, &["python3", "-c", PYTHON]).succeeded().says("(800, 319600)\nCHILD\n");
}

const NODE: &str = r#"
const http = require("http"), { Worker } = require("worker_threads");
const server = http.createServer((request, response) => response.end("served " + request.url));
server.listen(0, "127.0.0.1", () => http.get({ port: server.address().port, host: "127.0.0.1", path: "/page" }, (response) => {
    response.on("data", (data) => console.log(String(data)));
    response.on("end", () => {
        server.close();
        const worker = new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true });
        worker.on("message", (number) => console.log(number));
    });
}));
"#;

fn node(sandbox: &Sandbox) {
    wants(sandbox, "node");
    on_host(sandbox, &["node", "-e", NODE]).succeeded().says("served /page\n42\n");
}

fn gcc(sandbox: &Sandbox) {
    wants(sandbox, "gcc");
    let source = r#"
#include <pthread.h>
#include <stdio.h>
static void *twice(void *number) { return (void *)(2 * (long)number); }
int main(void) {
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, twice, (void *)21) || pthread_join(thread, &result)) return 1;
    printf("%ld\n", (long)result);
    return 7;
}
"#;
    let script = "cd /tmp && cat >a.c && gcc -O2 -Wall -Werror -pthread -o a a.c && exec ./a";
    sandbox.pando(["run", "--", "sh", "-c", script]).input(source).run().ended_with(7).says("42\n");
}

fn pipeline(sandbox: &Sandbox) {
    wants(sandbox, "bash");
    let script = "set -o pipefail; seq 100000 | sort -rn | grep 7 | tee >(wc -l >/tmp/count) | gzip | gunzip | head -c 600000 | sort -n | tail -n 1; \
                  until [ -s /tmp/count ]; do sleep 0.05; done; cat /tmp/count; find /usr/share -maxdepth 1 -type d | xargs -n 1 basename | grep -c .";
    let told = on_host(sandbox, &["bash", "-c", script]).succeeded().out();
    let lines: Vec<&str> = told.lines().map(str::trim).collect();
    assert_eq!(lines[..2], ["99997", "40951"], "{told}");
    assert!(lines[2].parse::<u32>().is_ok_and(|count| count > 1), "{told}");
}

/// A host whose own apt does not get there says nothing about guests.
fn apt(sandbox: &Sandbox) {
    const STRICT: [&str; 4] = ["-qq", "update", "-o", "APT::Update::Error-Mode=any"];
    let guest = sandbox.pando(["run", "--net", "host", "--", "apt-get"]).args(STRICT).limit(180).run();
    if guest.code() == 0 {
        return;
    }
    let lists = sandbox.scratch().join("lists");
    std::fs::create_dir_all(lists.join("partial")).expect("a directory");
    let option = format!("Dir::State::lists={}", lists.display());
    let host = Line::new("apt-get").args(STRICT).args([
        "-o",
        &option,
        "-o",
        "Dir::Cache::pkgcache=",
        "-o",
        "Dir::Cache::srcpkgcache=",
    ]);
    if host.limit(180).run().code() != 0 {
        skip("the host's own apt-get does not reach its archive");
    }
    guest.succeeded();
}

/// A tmux server of the test's own, which goes with this value.
struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    fn start(socket: PathBuf, command: &str) -> Self {
        let tmux = Self { socket };
        tmux.does(&["new-session", "-d", "-x", "80", "-y", "24", command]);
        tmux
    }

    fn line(&self) -> Line {
        Line::new("tmux").args([Path::new("-S"), &self.socket]).args(["-f", "/dev/null"])
    }

    #[track_caller]
    fn does(&self, words: &[&str]) -> String {
        self.line().args(words).ok()
    }

    #[track_caller]
    fn types(&self, text: &str) {
        self.does(&["send-keys", "-l", text]);
    }

    #[track_caller]
    fn presses(&self, key: &str) {
        self.does(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        self.line().args(["capture-pane", "-p"]).run().out()
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        assert!(comes_true(|| self.screen().contains(text)), "tmux never showed {text:?}: {}", self.screen());
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.line().args(["kill-server"]).run();
    }
}

fn vim(sandbox: &Sandbox) {
    wants(sandbox, "vim");
    let work = sandbox.scratch().join("work");
    std::fs::create_dir_all(&work).expect("a directory");
    let (program, root) = (sandbox.program().display(), sandbox.root().display());
    let command =
        format!("'{program}' --root '{root}' run -t -v '{}:/work' -- vim -N -u NONE /work/text", work.display());
    let tmux = Tmux::start(sandbox.scratch().join("tmux"), &command);
    // What it says of the file goes when it draws anew, as it does if it learns of the window's size late.
    tmux.shows("~\n~\n~");
    tmux.types("iwritten in a guest");
    tmux.presses("Escape");
    tmux.shows("written in a guest");
    tmux.does(&["resize-window", "-x", "101", "-y", "31"]);
    let size = || {
        tmux.types(":call writefile([&columns . ' ' . &lines], '/work/size')");
        tmux.presses("Enter");
        std::fs::read_to_string(work.join("size")).unwrap_or_default()
    };
    eventually("vim follows the window's size", || size() == "101 31\n");
    tmux.types(":wq");
    tmux.presses("Enter");
    eventually("vim ends, and its guest", || sandbox.pando(["ls", "-q"]).ok().is_empty());
    assert_eq!(std::fs::read_to_string(work.join("text")).expect("vim wrote it"), "written in a guest\n");
}

//! Servers in a guest of their own, without an init: each as its own user, started by name.

use crate::case::{Case, Tag};
use crate::debian_image::tarball;
use crate::line::Started;
use crate::need::Need;
use crate::sandbox::Sandbox;
use rustix::process::Signal;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap")];

pub(crate) const CASES: &[Case] = &[
    Case::new("servers::postgres_redis_and_nginx_each_in_the_foreground", each_in_the_foreground).needs(NEEDS),
    Case::new("servers::eight_postgreses_with_system_v_memory_on_one_port", eight_with_system_v_memory)
        .needs(NEEDS)
        .tags(&[Tag::Slow]),
];

fn each_in_the_foreground(sandbox: &Sandbox) {
    let image = tarball(sandbox);
    sandbox.pando(["create", "deb", "--from", &image]).limit(300).ok();
    sandbox.pando(["start", "deb"]).ok();
    postgres(sandbox);
    redis(sandbox);
    nginx(sandbox);
}

fn server(sandbox: &Sandbox, user: &str, command: &[&str]) -> Started {
    sandbox.pando(["exec", "-u", user, "deb", "--"]).args(command).start()
}

#[track_caller]
fn asks(sandbox: &Sandbox, script: &str, answer: &str) {
    sandbox
        .exec_sh("deb", &format!("until {script} >/tmp/answer 2>/dev/null; do sleep 0.1; done; cat /tmp/answer"))
        .run()
        .succeeded()
        .says(answer);
}

/// A server that is told to end does so by itself, not by being killed.
#[track_caller]
fn ends(server: Started) {
    server.signal(Signal::TERM);
    server.wait().ended_with(0);
}

fn postgres(sandbox: &Sandbox) {
    let programs = "/usr/lib/postgresql/15/bin";
    let make = format!("{programs}/initdb -D /var/lib/postgresql/own >/dev/null && install -d /tmp/sockets");
    sandbox.pando(["exec", "-u", "postgres", "deb", "--", "sh", "-c", &make]).ok();
    let program = format!("{programs}/postgres");
    let running = server(
        sandbox,
        "postgres",
        &[&program, "-D", "/var/lib/postgresql/own", "-k", "/tmp/sockets", "-h", "127.0.0.1"],
    );
    asks(sandbox, "psql -h 127.0.0.1 -U postgres -Atc 'select sum(n) from generate_series(1, 1000) n'", "500500\n");
    ends(running);
}

fn redis(sandbox: &Sandbox) {
    let running = server(
        sandbox,
        "redis",
        &["redis-server", "--bind", "127.0.0.1", "--dir", "/var/lib/redis", "--appendonly", "yes"],
    );
    asks(sandbox, "redis-cli ping | grep -x PONG", "PONG\n");
    asks(sandbox, "redis-cli set word kept", "OK\n");
    ends(running);
    let running = server(
        sandbox,
        "redis",
        &["redis-server", "--bind", "127.0.0.1", "--dir", "/var/lib/redis", "--appendonly", "yes"],
    );
    asks(sandbox, "redis-cli ping | grep -x PONG", "PONG\n");
    asks(sandbox, "redis-cli get word", "kept\n");
    ends(running);
}

fn nginx(sandbox: &Sandbox) {
    let running = server(sandbox, "root", &["nginx", "-g", "daemon off;"]);
    sandbox.exec_sh("deb", "echo a page >/var/www/html/page").run().succeeded();
    let get = r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET /page HTTP/1.0\r\n\r\n' >&3; sed '1,/^.$/d' <&3 | grep page""#;
    asks(sandbox, get, "a page\n");
    ends(running);
}

/// Linux-VServer's own test of its IPC isolation (section 3.3 of the paper): what each guest's ipcs shows is its own,
/// whatever port, path and key.
fn eight_with_system_v_memory(sandbox: &Sandbox) {
    const GUESTS: usize = 8;
    const DATA: &str = "/var/lib/postgresql/own";
    let image = tarball(sandbox);
    let programs = "/usr/lib/postgresql/15/bin";
    let names: Vec<String> = (0..GUESTS).map(|number| format!("db{number}")).collect();
    sandbox.pando(["create", &names[0], "--from", &image]).limit(300).ok();
    sandbox.pando(["start", &names[0]]).ok();
    let make = format!("{programs}/initdb -D {DATA} >/dev/null");
    sandbox.pando(["exec", "-u", "postgres", &names[0], "--", "sh", "-c", &make]).limit(120).ok();
    sandbox.pando(["stop", &names[0]]).ok();
    for name in &names[1..] {
        sandbox.pando(["create", name, "--from", &format!("guest:{}", names[0])]).limit(120).ok();
    }
    let line = format!("exec {programs}/postgres -D {DATA} -p 5432 -k /tmp -h 127.0.0.1 -c shared_memory_type=sysv");
    let start = |name: &String| {
        sandbox.pando(["start", name]).ok();
        sandbox.pando(["exec", "-u", "postgres", name, "--", "sh", "-c", &line]).limit(120).start()
    };
    let servers: Vec<Started> = names.iter().map(start).collect();
    let ask = |name: &String, script: &str| sandbox.exec_sh(name, script).run().succeeded().out();
    for (number, name) in names.iter().enumerate() {
        let query = format!("psql -h 127.0.0.1 -U postgres -Atc 'select {number}'");
        let answer = ask(name, &format!("until {query} 2>/dev/null; do sleep 0.2; done"));
        assert_eq!(answer, format!("{number}\n"), "each is asked for its own number");
    }
    for name in &names {
        // PostgreSQL's one segment with a key, which is the same in copies of one guest; every segment was made by a
        // process of this guest.
        let keys = ask(name, "ipcs -m | awk '$1 ~ /^0x/ && $1 != \"0x00000000\" { print $1 }'");
        assert_eq!(keys.lines().count(), 1, "{name} sees {keys}");
        let strangers =
            "ipcs -mp | awk '$1 ~ /^[0-9]+$/ { print $3 }' | while read pid; do [ -e /proc/$pid ] || echo $pid; done";
        assert_eq!(ask(name, strangers), "", "{name} sees segments of others");
    }
    servers.into_iter().for_each(ends);
}

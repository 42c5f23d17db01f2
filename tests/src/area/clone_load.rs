//! Clones that are made of servers while these are under load: each answers, and has all or nothing of what was under
//! way.

use crate::case::{Case, Tag};
use crate::debian_image::tarball_with;
use crate::need::Need;
use crate::sandbox::Sandbox;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap")];

const fn case(name: &'static str, show: fn(&Sandbox)) -> Case {
    Case::new(name, show).needs(NEEDS).tags(&[Tag::Slow])
}

pub(crate) const CASES: &[Case] = &[
    case("clone_load::redis_under_its_benchmark", |sandbox| clones_answer(sandbox, &REDIS)),
    case("clone_load::postgres_under_pgbench", |sandbox| clones_answer(sandbox, &POSTGRES)),
    case("clone_load::nginx_under_wrk", |sandbox| clones_answer(sandbox, &NGINX)),
    case("clone_load::a_program_with_a_hundred_threads", |sandbox| clones_answer(sandbox, &THREADS)),
];

/// Servers, and what keeps them busy.
const PACKAGES: &[&str] = &["nginx", "postgresql", "procps", "python3", "redis-server", "wrk"];

/// Clones of each, so many of an image.
const CLONES: usize = 50;
const OF_AN_IMAGE: usize = 5;

/// A server under load, in shell scripts.
struct Busy {
    user: &'static str,
    /// Before it starts.
    prepare: &'static str,
    /// The server, in the foreground.
    serve: &'static str,
    /// Succeeds once it serves.
    ready: &'static str,
    /// What keeps it busy, over and over.
    load: &'static str,
    /// Succeeds while the source is busy.
    busy: &'static str,
    /// Succeeds in a clone, and in the source, when it answers rightly.
    right: &'static str,
}

/// A transaction sets two keys to the same; who finds them different has half of one.
const REDIS: Busy = Busy {
    user: "redis",
    prepare: r#"cat >/tmp/pairs <<'END'
import socket
client = socket.create_connection(("127.0.0.1", 6379)).makefile("rw", newline="\r\n")
number = 0
while True:
    number += 1
    client.write(f"MSET one {number} two {number}\r\n")
    client.flush()
    assert client.readline() == "+OK\r\n"
END"#,
    serve: "redis-server --bind 127.0.0.1 --dir /var/lib/redis --save '' --appendonly yes",
    ready: "redis-cli ping",
    load: "redis-benchmark -q -c 20 -n 20000 -t set,get,incr,lpush & python3 /tmp/pairs & wait",
    busy: "a=$(redis-cli get one); sleep 0.1; [ $(redis-cli get one) -gt $a ]",
    right: "[ $(redis-cli eval 'return redis.call(\"get\", \"one\") == redis.call(\"get\", \"two\") and 7' 0) = 7 ] && \
            redis-cli set word mine && [ $(redis-cli get word) = mine ]",
};

/// Each transaction of pgbench changes an account, a teller and a branch by the same, and writes that down: the four
/// sums are equal at any instant.
const POSTGRES: Busy = Busy {
    user: "postgres",
    prepare: "/usr/lib/postgresql/15/bin/initdb -D /var/lib/postgresql/own && install -d /tmp/sockets && \
              cd /usr/lib/postgresql/15/bin && ./pg_ctl -w -D /var/lib/postgresql/own -o '-k /tmp/sockets' start && \
              ./pgbench -h /tmp/sockets -i -q -s 2 postgres && ./pg_ctl -w -D /var/lib/postgresql/own stop",
    serve: "/usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/own -k /tmp/sockets -h 127.0.0.1",
    ready: "psql -h 127.0.0.1 -c 'select 1' postgres",
    load: "/usr/lib/postgresql/15/bin/pgbench -n -h 127.0.0.1 -c 8 -j 2 -T 2 postgres",
    busy: "n() { psql -h /tmp/sockets -Atc 'select count(*) from pgbench_history' postgres; }; a=$(n); sleep 0.3; [ $(n) -gt $a ]",
    right: "[ $(psql -h /tmp/sockets -Atc 'select a = b and b = t and t = h from \
            (select coalesce(sum(abalance), 0) a from pgbench_accounts) a, (select sum(bbalance) b from pgbench_branches) b, \
            (select sum(tbalance) t from pgbench_tellers) t, (select coalesce(sum(delta), 0) h from pgbench_history) h' postgres) = t ] && \
            /usr/lib/postgresql/15/bin/pgbench -n -h 127.0.0.1 -c 2 -t 5 postgres && \
            ! grep -E 'PANIC|invalid page|checksum' /tmp/server.log",
};

const NGINX: Busy = Busy {
    user: "root",
    prepare: "sed -i 's/^worker_processes.*/worker_processes 2;/' /etc/nginx/nginx.conf; seq 20000 >/var/www/html/page; \
              md5sum </var/www/html/page >/root/sum",
    serve: "nginx -g 'daemon off;'",
    ready: "bash -c '</dev/tcp/127.0.0.1/80'",
    load: "wrk -t 2 -c 40 -d 2 http://127.0.0.1/page",
    busy: "n() { stat -c %s /var/log/nginx/access.log; }; a=$(n); sleep 0.3; [ $(n) -gt $a ]",
    right: r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET /page HTTP/1.0\r\n\r\n' >&3; sed '1,/^.$/d' <&3 | md5sum | cmp - /root/sum""#,
};

/// Each thread writes a number to a file of its own, and keeps it: what it finds there is what it wrote last, or its
/// files are of another instant than its memory. Pairs of them pass numbers to and fro, and none may be lost. It is its
/// own load.
const THREADS: Busy = Busy {
    user: "root",
    prepare: r#"mkdir /root/own; cat >/root/threads.py <<'END'
import os, queue, socketserver, threading
wrong, turns, THREADS = [], [0] * 100, 100
def says(number, mine, others):
    kept = 0
    path = f"/root/own/{number}"
    file = open(path, "w+")
    while not wrong:
        if kept:
            file.seek(0)
            found = int(file.read() or 0)
            if found != kept:
                wrong.append(f"{number}: {found} instead of {kept}")
        file.seek(0)
        file.write(f"{kept + 1:9}")
        file.flush()
        kept += 1
        others.put(kept)
        got = mine.get()
        if got != kept:
            wrong.append(f"{number}: the other is at {got} instead of {kept}")
        turns[number] = kept
        threading.Event().wait(0.02)
def guarded(number, mine, others):
    try:
        says(number, mine, others)
    except BaseException as error:
        wrong.append(f"{number}: {error!r}")
for number in range(0, THREADS, 2):
    one, other = queue.SimpleQueue(), queue.SimpleQueue()
    threading.Thread(target=guarded, args=(number, one, other), daemon=True).start()
    threading.Thread(target=guarded, args=(number + 1, other, one), daemon=True).start()
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(f"{min(turns)} {wrong[:1] or 'right'}\n".encode())
socketserver.ThreadingTCPServer(("127.0.0.1", 7000), Handler).serve_forever()
END"#,
    serve: "python3 /root/threads.py",
    ready: "bash -c '</dev/tcp/127.0.0.1/7000'",
    load: "sleep 1",
    busy: "true",
    right: r#"bash -c 'said() { head -n 1 <>/dev/tcp/127.0.0.1/7000; }; first=$(said); sleep 0.5; last=$(said); echo "$first, $last"
              [ "${first#* }" = right ] && [ "${last#* }" = right ] && [ ${last% *} -gt ${first% *} ]'"#,
};

fn clones_answer(sandbox: &Sandbox, server: &Busy) {
    let image = tarball_with(sandbox, PACKAGES);
    sandbox.pando(["create", "deb", "--from", &image]).limit(300).ok();
    sandbox.pando(["start", "deb"]).ok();
    let inside = |guest: &str, script: &str| {
        sandbox.pando(["exec", "-u", server.user, guest, "--", "sh", "-c", script]).limit(180).run()
    };
    let background = |script: &str| format!("cd /; setsid sh -c '{script}' </dev/null >>/tmp/server.log 2>&1 &");
    inside("deb", server.prepare).succeeded();
    let quoted = |script: &str| script.replace('\'', r"'\''");
    inside("deb", &background(&format!("exec {}", quoted(server.serve)))).succeeded();
    inside("deb", &format!("until {} >/dev/null 2>&1; do sleep 0.1; done", server.ready)).succeeded();
    inside("deb", &background(&format!("while :; do {}; done", quoted(server.load)))).succeeded();
    for round in 0..CLONES / OF_AN_IMAGE {
        inside("deb", &format!("until {}; do sleep 0.1; done", server.busy)).succeeded();
        let name = format!("hot-{round}");
        let said = sandbox.pando(["freeze", "deb", &name, "--memory"]).limit(120).ok();
        println!("     {}", said.trim());
        let names = sandbox.pando(["clone", &name, "-n", &OF_AN_IMAGE.to_string()]).limit(120).ok();
        let clones: Vec<&str> = names.lines().collect();
        assert_eq!(clones.len(), OF_AN_IMAGE);
        for clone in &clones {
            inside(clone, server.right).succeeded();
        }
        sandbox.pando([&["rm", "--force"], &clones[..]].concat()).limit(120).ok();
        sandbox.pando(["image", "rm", &name]).ok();
        inside("deb", server.right).succeeded();
    }
}

//! Servers as Debian has them, frozen while they serve and cloned: each clone gets a word of its own, and all read back theirs.

use crate::case::{Case, Tag};
use crate::debian_image::tarball;
use crate::need::Need;
use crate::sandbox::Sandbox;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap")];

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_programs::redis", |sandbox| clones_serve(sandbox, &REDIS)).needs(NEEDS).tags(&[Tag::Slow]),
    Case::new("clone_programs::nginx_with_workers", |sandbox| clones_serve(sandbox, &NGINX))
        .needs(NEEDS)
        .tags(&[Tag::Slow]),
    Case::new("clone_programs::postgres_with_all_its_processes", |sandbox| clones_serve(sandbox, &POSTGRES))
        .needs(NEEDS)
        .tags(&[Tag::Slow]),
    Case::new("clone_programs::sshd", |sandbox| clones_serve(sandbox, &SSHD)).needs(NEEDS).tags(&[Tag::Slow]),
];

/// A server, in shell scripts. `$1` is the word.
struct Server {
    user: &'static str,
    /// Before it starts.
    prepare: &'static str,
    /// The server, in the foreground.
    serve: &'static str,
    /// Succeeds once it serves.
    ready: &'static str,
    write: &'static str,
    /// Prints the word, through the server.
    read: &'static str,
}

const REDIS: Server = Server {
    user: "redis",
    prepare: "true",
    serve: "redis-server --bind 127.0.0.1 --dir /var/lib/redis",
    ready: "redis-cli ping",
    write: "redis-cli set word $1",
    read: "redis-cli get word",
};

const NGINX: Server = Server {
    user: "root",
    prepare: "sed -i 's/^worker_processes.*/worker_processes 2;/' /etc/nginx/nginx.conf",
    serve: "nginx -g 'daemon off;'",
    ready: "bash -c '</dev/tcp/127.0.0.1/80'",
    write: "echo $1 >/var/www/html/word",
    read: r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET /word HTTP/1.0\r\n\r\n' >&3; tail -n 1 <&3""#,
};

const POSTGRES: Server = Server {
    user: "postgres",
    prepare: "/usr/lib/postgresql/15/bin/initdb -D /var/lib/postgresql/own && install -d /tmp/sockets",
    serve: "/usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/own -k /tmp/sockets -h 127.0.0.1",
    ready: "psql -h 127.0.0.1 -U postgres -c 'select 1'",
    write: "psql -h 127.0.0.1 -U postgres -c \"create table words as select '$1' as word\"",
    read: "psql -h /tmp/sockets -U postgres -Atc 'select word from words'",
};

const SSHD: Server = Server {
    user: "root",
    prepare: "install -d /run/sshd; ssh-keygen -q -t ed25519 -N '' -f /root/key; install -d -m 700 /root/.ssh; \
              cp /root/key.pub /root/.ssh/authorized_keys",
    serve: "/usr/sbin/sshd -D -o UsePAM=no",
    ready: "bash -c '</dev/tcp/127.0.0.1/22'",
    write: "echo $1 >/root/word",
    read: "ssh -i /root/key -o StrictHostKeyChecking=no -o LogLevel=ERROR root@127.0.0.1 cat /root/word",
};

const CLONES: usize = 10;

fn clones_serve(sandbox: &Sandbox, server: &Server) {
    let image = tarball(sandbox);
    sandbox.pando(["create", "deb", "--from", &image]).limit(300).ok();
    sandbox.pando(["start", "deb"]).ok();
    let inside = |guest: &str, script: &str| {
        sandbox.pando(["exec", "-u", server.user, guest, "--", "sh", "-c", script, "sh", guest]).limit(120).ok()
    };
    inside("deb", server.prepare);
    // Nothing of it may hang on to who started it.
    inside("deb", &format!("cd /; setsid {} </dev/null >/tmp/server.log 2>&1 &", server.serve));
    inside("deb", &format!("until {} >/dev/null 2>&1; do sleep 0.1; done", server.ready));
    sandbox.pando(["freeze", "deb", "warm"]).ok();
    let names = sandbox.pando(["clone", "warm", "-n", &CLONES.to_string()]).limit(120).ok();
    let guests: Vec<&str> = names.lines().chain(["deb"]).collect();
    assert_eq!(guests.len(), CLONES + 1);
    for guest in &guests {
        inside(guest, server.write);
    }
    for guest in &guests {
        assert_eq!(inside(guest, server.read).trim(), *guest);
        assert_eq!(inside(guest, "hostname").trim(), *guest);
    }
}

//! Servers as Debian has them, frozen while they serve and cloned: each clone gets a word of its own, and all read back
//! theirs.

use crate::case::{Case, Tag};
use crate::debian_image::{tarball, tarball_with};
use crate::need::Need;
use crate::sandbox::Sandbox;
use std::time::Duration;

const NEEDS: &[Need] = &[Need::Root, Need::Program("mmdebstrap", "mmdebstrap")];

const fn case(name: &'static str, show: fn(&Sandbox)) -> Case {
    Case::new(name, show).needs(NEEDS).tags(&[Tag::Slow])
}

pub(crate) const CASES: &[Case] = &[
    case("clone_programs::redis", |sandbox| clones_serve(sandbox, &REDIS, &tarball(sandbox))),
    case("clone_programs::nginx_with_workers", |sandbox| clones_serve(sandbox, &NGINX, &tarball(sandbox))),
    case("clone_programs::postgres_with_all_its_processes", |sandbox| {
        clones_serve(sandbox, &POSTGRES, &tarball(sandbox));
    }),
    case("clone_programs::mariadb_with_asynchronous_input_and_output", |sandbox| {
        clones_serve(sandbox, &MARIADB, &tarball_with(sandbox, DATABASES));
    }),
    case("clone_programs::mariadb_in_clones_of_clones", |sandbox| {
        clones_of_clones_serve(sandbox, &MARIADB, &tarball_with(sandbox, DATABASES));
    }),
    case("clone_programs::postgres_in_clones_of_clones", |sandbox| {
        clones_of_clones_serve(sandbox, &POSTGRES, &tarball(sandbox));
    }),
    case("clone_programs::sshd", |sandbox| clones_serve(sandbox, &SSHD, &tarball(sandbox))),
    case("clone_programs::shell_in_a_terminal", |sandbox| clones_serve(sandbox, &SHELL, &tarball(sandbox))),
    case("clone_programs::python", |sandbox| clones_serve(sandbox, &PYTHON, &tarball_with(sandbox, ENGINES))),
    case("clone_programs::node", |sandbox| clones_serve(sandbox, &NODE, &tarball_with(sandbox, ENGINES))),
    case("clone_programs::java", |sandbox| clones_serve(sandbox, &JAVA, &tarball_with(sandbox, ENGINES))),
    case("clone_programs::chromium", |sandbox| clones_serve(sandbox, &CHROMIUM, &tarball_with(sandbox, BROWSERS))),
];

const DATABASES: &[&str] = &["mariadb-server"];

const BROWSERS: &[&str] = &["chromium"];

/// What runs programs that bring a machine of their own along.
const ENGINES: &[&str] = &["default-jdk-headless", "nodejs", "procps", "python3"];

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

/// Its tables take more than it keeps in memory, so that it writes and reads them by a context of its own
/// (io_setup(2)), which it has by the time it is ready.
const MARIADB: Server = Server {
    user: "mysql",
    prepare: "mariadb-install-db --no-defaults --force --datadir=/var/lib/mysql/own --auth-root-authentication-method=normal >/dev/null",
    serve: "mariadbd --no-defaults --datadir=/var/lib/mysql/own --socket=/tmp/mariadb.sock --skip-networking \
            --innodb-buffer-pool-size=6M --innodb-log-file-size=8M \
            --innodb-use-native-aio=1 --innodb-linux-aio=aio --innodb-flush-method=O_DIRECT",
    ready: "mariadb -u root -S /tmp/mariadb.sock -e 'select 1' && grep -q '/\\[aio\\]' /proc/$(pidof mariadbd)/maps",
    write: "mariadb -u root -S /tmp/mariadb.sock -D test -e \
            \"create table words as select '$1' as word, repeat('x', 4000) as rest from seq_1_to_4000\"",
    read: "mariadb -u root -S /tmp/mariadb.sock -D test -N -e 'select distinct word from words where length(rest) = 4000'",
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

/// A shell that reads what is typed at a terminal of its own, from a named pipe, and has the word in a variable. What
/// is typed and not read yet is no part of an image, so one that is ready has read all of it: a line that is typed once
/// more for each look would be cut in two by the freeze.
const SHELL: Server = Server {
    user: "root",
    prepare: "mkfifo /run/keys",
    serve: "sh -c 'exec 3<>/run/keys; exec script -qfc bash /dev/null <&3'",
    ready: "sh -c '[ -e /run/typed ] || echo touch /run/up >/run/keys; touch /run/typed; test -e /run/up'",
    write: "echo word=$1 >/run/keys",
    read: "rm -f /run/said; echo 'echo $word >/run/saying; tty >/run/tty; mv /run/saying /run/said' >/run/keys; \
           until [ -e /run/said ]; do sleep 0.05; done; grep -q ^/dev/pts/ /run/tty && cat /run/said",
};

/// Without its own sandbox, which is namespaces within the guest's. Each word is a page of its own, made by a process
/// that runs in the clone only.
const CHROMIUM: Server = Server {
    user: "root",
    prepare: "true",
    serve: "chromium --headless --no-sandbox --disable-gpu --remote-debugging-port=9222 --user-data-dir=/root/own about:blank",
    ready: "bash -c '</dev/tcp/127.0.0.1/9222'",
    write: r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/9222; printf 'PUT /json/new?about:blank%%23$1 HTTP/1.1\r\nHost: localhost\r\n\r\n' >&3
              grep -m1 $1 <&3""#,
    read: r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/9222; printf 'GET /json/list HTTP/1.1\r\nHost: localhost\r\n\r\n' >&3
             grep -m1 -o 'about:blank.[a-z0-9-][a-z0-9-]*' <&3 | cut -c13-""#,
};

/// Of the three that follow: each keeps the word in memory, and serves it.
const PUT: &str = r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/7000; echo put $1 >&3; head -n 1 <&3""#;
const GET: &str = r#"bash -c "exec 3<>/dev/tcp/127.0.0.1/7000; echo get >&3; head -n 1 <&3""#;
const UP: &str = "bash -c '</dev/tcp/127.0.0.1/7000'";

const PYTHON: Server = Server {
    user: "root",
    prepare: r#"cat >/root/word.py <<'END'
import socketserver, threading
words = {"word": b"none\n"}
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline()
        if line.startswith(b"put "):
            words["word"] = line[4:]
        self.wfile.write(words["word"])
for _ in range(2):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
socketserver.ThreadingTCPServer(("127.0.0.1", 7000), Handler).serve_forever()
END"#,
    serve: "python3 /root/word.py",
    ready: UP,
    write: PUT,
    read: GET,
};

const NODE: Server = Server {
    user: "root",
    prepare: r#"cat >/root/word.js <<'END'
let word = "none\n";
require("net").createServer((socket) => {
  socket.on("error", () => {});
  socket.on("data", (line) => {
    const text = line.toString();
    if (text.startsWith("put ")) word = text.slice(4);
    socket.end(word);
  });
}).listen(7000, "127.0.0.1");
END"#,
    serve: "node /root/word.js",
    ready: UP,
    write: PUT,
    read: GET,
};

/// It is warm when it is frozen: what it does over and over has been compiled.
const JAVA: Server = Server {
    user: "root",
    prepare: r#"cat >/root/Word.java <<'END'
import java.io.*;
import java.net.*;
public class Word {
  static volatile String word = "none";
  static long warm(long rounds) {
    long sum = 0;
    for (long round = 0; round < rounds; round++) sum = sum * 31 + Long.toString(round).hashCode();
    return sum;
  }
  public static void main(String[] given) throws Exception {
    System.out.println(warm(5_000_000));
    ServerSocket server = new ServerSocket(7000, 50, InetAddress.getByName("127.0.0.1"));
    while (true) {
      try (Socket socket = server.accept()) {
        String line = new BufferedReader(new InputStreamReader(socket.getInputStream())).readLine();
        if (line != null && line.startsWith("put ")) word = line.substring(4);
        socket.getOutputStream().write((word + "\n").getBytes());
      } catch (IOException gone) {
      }
    }
  }
}
END
cd /root && javac Word.java"#,
    serve: "java -cp /root Word",
    ready: UP,
    write: PUT,
    read: GET,
};

const CLONES: usize = 10;

/// How long they live on before they are asked.
const LATER: Duration = Duration::from_secs(60);

impl Server {
    /// What a script prints in a guest, to which its first word is the guest's name.
    fn inside(&self, sandbox: &Sandbox, guest: &str, script: &str) -> String {
        sandbox.pando(["exec", "-u", self.user, guest, "--", "sh", "-c", script, "sh", guest]).limit(120).ok()
    }

    /// Has it serve in the guest `deb`.
    fn start(&self, sandbox: &Sandbox, image: &str) {
        sandbox.pando(["create", "deb", "--from", image]).limit(300).ok();
        sandbox.pando(["start", "deb"]).ok();
        self.inside(sandbox, "deb", self.prepare);
        // Nothing of it may hang on to who started it.
        self.inside(sandbox, "deb", &format!("cd /; setsid {} </dev/null >/tmp/server.log 2>&1 &", self.serve));
        self.inside(sandbox, "deb", &format!("until {} >/dev/null 2>&1; do sleep 0.1; done", self.ready));
    }
}

/// Each is frozen while it serves: the source, its clone twice, and the clone of that.
fn clones_of_clones_serve(sandbox: &Sandbox, server: &Server, image: &str) {
    server.start(sandbox, image);
    for (from, to) in [("deb", "one"), ("one", "two"), ("one", "two-later"), ("two", "three")] {
        let image = format!("for-{to}");
        sandbox.pando(["freeze", from, &image]).ok();
        sandbox.pando(["clone", &image, to]).ok();
        server.inside(sandbox, to, server.ready);
    }
    let guests = ["deb", "one", "two", "two-later", "three"];
    for guest in guests {
        server.inside(sandbox, guest, server.write);
    }
    for guest in guests {
        assert_eq!(server.inside(sandbox, guest, server.read).trim(), guest);
    }
    // What each has written is in its files, whatever becomes of the others.
    sandbox.pando(["rm", "--force", "deb", "two"]).ok();
    for guest in ["one", "two-later", "three"] {
        assert_eq!(server.inside(sandbox, guest, server.read).trim(), guest);
    }
}

fn clones_serve(sandbox: &Sandbox, server: &Server, image: &str) {
    server.start(sandbox, image);
    let inside = |guest: &str, script: &str| server.inside(sandbox, guest, script);
    sandbox.pando(["freeze", "deb", "warm"]).ok();
    let names = sandbox.pando(["clone", "warm", "-n", &CLONES.to_string()]).limit(120).ok();
    let guests: Vec<&str> = names.lines().chain(["deb"]).collect();
    assert_eq!(guests.len(), CLONES + 1);
    for guest in &guests {
        inside(guest, server.write);
    }
    std::thread::sleep(LATER);
    for guest in &guests {
        assert_eq!(inside(guest, server.read).trim(), *guest);
        assert_eq!(inside(guest, "hostname").trim(), *guest);
    }
}

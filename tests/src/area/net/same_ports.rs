//! Servers of everyday on identical ports in five guests and on the host, each reached at its own address and nowhere
//! else.

use super::addresses::wire;
use super::wire::Wire;
use crate::case::{Case, Tag};
use crate::debian_image::tarball;
use crate::line::Started;
use crate::need::Need;
use crate::patience::{comes_true, eventually};
use crate::process;
use crate::sandbox::Sandbox;
use std::path::Path;

pub(crate) const CASES: &[Case] =
    &[Case::new("network::everybody_has_the_same_ports", everybody).needs(NEEDS).tags(&[Tag::Slow])];

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("ip", "iproute2"),
    Need::Program("python3", "python3"),
    Need::Program("nsenter", "util-linux"),
    Need::Program("mmdebstrap", "mmdebstrap"),
    Need::Linux(6, 6),
];

const GUESTS: usize = 5;

/// Starts all of them, each on ANY, as whoever `$1` is; what each says tells that.
const SERVERS: &str = r#"
set -e
who=$1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
echo "$who" >/var/www/html/who
nginx
postgres=/usr/lib/postgresql/15/bin
install -d -o postgres /var/lib/postgresql /var/lib/postgresql/own
su postgres -s /bin/sh -c "$postgres/initdb -A trust -D /var/lib/postgresql/own >/dev/null && $postgres/pg_ctl -w -o '-h \* -k /tmp -c cluster_name=$who' \
    -D /var/lib/postgresql/own -l /tmp/postgres.log start >/dev/null"
su postgres -s /bin/sh -c "echo 'host all all all trust' >>/var/lib/postgresql/own/pg_hba.conf; $postgres/pg_ctl -D /var/lib/postgresql/own reload >/dev/null"
redis-server --daemonize yes --bind '*' --protected-mode no --dir /tmp >/dev/null
redis-cli -h 127.0.0.1 set who "$who" >/dev/null
install -d /run/sshd
ssh-keygen -A >/dev/null
echo "Banner /etc/who" >>/etc/ssh/sshd_config
echo "$who" >/etc/who
/usr/sbin/sshd
dnsmasq --user=root --conf-file=/dev/null --no-resolv --no-hosts $2 --txt-record=who.test,"$who" --pid-file=/tmp/dnsmasq.pid
exec python3 -c "$3" "$who" "$4"
"#;

/// Answers every datagram with its words.
const DATAGRAMS: &str = "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[2], 9999)); print('ready', flush=True)
while True: s.sendto(sys.argv[1].encode(), s.recvfrom(99)[1])";

/// Asks all of them at an address, and tells who answered what.
const ASK: &str = r#"
import re, socket, struct, sys
ip = sys.argv[1]
def tcp(port, send, most=4096, stop=None):
    with socket.create_connection((ip, port), timeout=5) as s:
        s.settimeout(5)
        got = b""
        for part in send:
            s.sendall(part)
        while stop is None or stop not in got:
            more = s.recv(most)
            if not more: break
            got += more
        return got
def udp(port, send):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        # Not connected: who has two addresses may answer from the first, as a machine does.
        s.settimeout(5); s.sendto(send, (ip, port))
        return s.recv(4096)
def nginx():
    return tcp(80, [b"GET /who HTTP/1.0\r\n\r\n"]).split(b"\r\n\r\n")[1]
def redis():
    return tcp(6379, [b"GET who\r\nQUIT\r\n"]).split(b"\r\n")[1]
def postgres():
    start = struct.pack("!I", 196608) + b"user\0postgres\0database\0postgres\0\0"
    query = b"show cluster_name\0"
    got = tcp(5432, [struct.pack("!I", len(start) + 4) + start, b"Q" + struct.pack("!I", len(query) + 4) + query], stop=b"SHOW\0")
    row = got[got.index(b"D\0\0\0"):]
    return row[11:11 + struct.unpack("!I", row[7:11])[0]]
def sshd():
    # The banner is told after keys are exchanged: by the program, which asks for it.
    import subprocess
    words = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-o", "LogLevel=INFO", "nobody@" + ip, "true"]
    said = subprocess.run(words, capture_output=True, timeout=20).stderr
    return next((line for line in said.splitlines() if re.fullmatch(rb"host|guest\d", line)), said)
def dns(by_tcp):
    query = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\3who\4test\0" + struct.pack("!HH", 16, 1)
    answer = tcp(53, [struct.pack("!H", len(query)) + query], stop=b"\xc0\x0c") if by_tcp else udp(53, query)
    text = answer[answer.rindex(b"\xc0\x0c") + 12:]
    return text[1:1 + text[0]]
for name, ask in (("nginx", nginx), ("postgres", postgres), ("redis", redis), ("sshd", sshd), ("dnsmasq", lambda: dns(False)), ("dnsmasq by tcp", lambda: dns(True)),
                  ("datagrams", lambda: udp(9999, b"?"))):
    try: print(name, ask().decode().strip())
    except (OSError, ValueError, IndexError) as error: print(name, repr(error))
"#;

fn everybody(sandbox: &Sandbox) {
    let image = tarball(sandbox);
    // It may have been made just now, by a daemon that is elsewhere.
    sandbox.end_daemon();
    let wire = wire(sandbox);
    wire.pando(sandbox, ["host-mode", "on"]).ok();
    let address = |number: usize| format!("10.9.0.{}", 10 + number);
    for number in 0..GUESTS {
        let (name, own) = (format!("guest{number}"), address(number));
        let source = if number == 0 { image.as_str() } else { "guest:guest0" };
        sandbox.pando(["create", &name, "--from", source, "--address", &own]).limit(300).ok();
    }
    let start = |number: usize| {
        let name = format!("guest{number}");
        sandbox.pando(["start", &name]).ok();
        let words = ["exec", &name, "--", "sh", "-c", SERVERS, "sh", &name, "", DATAGRAMS, "0.0.0.0"];
        sandbox.pando(words).limit(600).start()
    };
    let _guests: Vec<Started> = (0..GUESTS).map(start).collect();
    let host = Host::start(sandbox, &wire, &image);
    let is_served = |ip: &str, who: &str| {
        let names = ["nginx", "postgres", "redis", "sshd", "dnsmasq", "dnsmasq by tcp", "datagrams"];
        let expected: String = names.iter().map(|name| format!("{name} {who}\n")).collect();
        let mut told = String::new();
        let right = comes_true(|| {
            told = wire.outside(["python3", "-c", ASK, ip]).limit(120).ok();
            told == expected
        });
        assert!(right, "{ip} is not {who}'s alone:\n{told}");
    };
    (0..GUESTS).for_each(|number| is_served(&address(number), &format!("guest{number}")));
    is_served("10.9.0.1", "host");
    // What is asked of one is not asked of another, also when an address moves while it is.
    let moved = address(0);
    sandbox.pando(["address", "move", "guest1", &moved]).ok();
    is_served(&moved, "guest1");
    is_served("10.9.0.1", "host");
    host.stop();
    eventually("host mode leaves nothing once its servers are gone", || {
        wire.pando(sandbox, ["host-mode", "off"]).ok();
        sandbox.pando(["rm", "--force"]).args((0..GUESTS).map(|number| format!("guest{number}"))).run();
        !sandbox.places().run().join("bpf").exists()
    });
}

/// The host's own servers: the same system, in a root directory and a pid namespace, and otherwise the host's.
struct Host {
    running: Started,
}

impl Host {
    #[track_caller]
    fn start(sandbox: &Sandbox, wire: &Wire, image: &str) -> Self {
        let tree = sandbox.scratch().join("host");
        std::fs::create_dir_all(&tree).expect("a directory");
        crate::line::Line::new("tar").args(["-xpf", image, "-C"]).args([tree.as_os_str()]).limit(300).ok();
        Self { running: Self::servers(wire, &tree) }
    }

    /// Datagrams are no affair of host mode: those servers listen on the host's address.
    fn servers(wire: &Wire, tree: &Path) -> Started {
        let script = "mkdir -p \"$0/dev/shm\"; mount -t proc proc \"$0/proc\"; mount -t tmpfs tmpfs \"$0/dev/shm\"; \
            for node in null zero urandom random; do [ -c \"$0/dev/$node\" ] || { : >\"$0/dev/$node\"; mount --bind /dev/$node \"$0/dev/$node\"; }; done; \
            exec chroot \"$0\" sh -c \"$@\"";
        let line = wire.host(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", script]);
        let bound = "--bind-interfaces --listen-address=10.9.0.1";
        line.args([tree.as_os_str()]).args([SERVERS, "sh", "host", bound, DATAGRAMS, "10.9.0.1"]).limit(600).start()
    }

    fn stop(self) {
        process::kill(self.running.pid());
        self.running.wait();
    }
}

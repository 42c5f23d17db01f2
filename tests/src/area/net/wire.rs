//! Two machines on a wire: network namespaces of the test's own. In the one Pando runs, the other is outside.

use crate::line::{Line, Started};
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::ffi::OsStr;

/// The machine outside.
pub(super) const OUTSIDE: [&str; 2] = ["10.9.0.100", "fd00:9::100"];

/// What the near machine has where Pando runs.
pub(super) const HOST: [&str; 2] = ["10.9.0.1/24", "fd00:9::1/64"];

/// What listens there.
const MIRROR: &str = include_str!("mirror.py");

/// The two, and what answers outside. All of it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Wire {
    host: Started,
    outside: Started,
    _mirror: Started,
}

impl Wire {
    /// A wire whose near end has these addresses, with the lengths of their networks' prefixes.
    #[track_caller]
    pub(super) fn new(addresses: &[&str]) -> Self {
        let (host, outside) = (namespace(), namespace());
        let setup = |at: &Started, script: &str| within(at, ["sh", "-euc", script]).ok();
        plug(&host, &outside, "h0", "o0");
        for address in addresses {
            setup(&host, &add("h0", address));
        }
        for (address, prefix) in OUTSIDE.iter().zip([24, 64]) {
            setup(&outside, &add("o0", &format!("{address}/{prefix}")));
        }
        let mirror = within(&outside, ["python3", "-c", MIRROR]).start();
        let wire = Self { host, outside, _mirror: mirror };
        eventually("the machine outside answers", || {
            wire.host(["python3", "-c", &format!("import socket; socket.create_connection(('{}', 7))", OUTSIDE[0])])
                .run()
                .code()
                == 0
        });
        wire
    }

    /// One more wire between the two, with a device of these names at either end.
    #[track_caller]
    pub(super) fn plug(&self, near: &str, far: &str) {
        plug(&self.host, &self.outside, near, far);
    }

    /// A command on the near machine.
    pub(super) fn host<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Line {
        within(&self.host, words)
    }

    /// A command outside.
    pub(super) fn outside<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Line {
        within(&self.outside, words)
    }

    /// `pando` on the near machine: a daemon that it starts lives there.
    pub(super) fn pando<W: AsRef<OsStr>>(&self, sandbox: &Sandbox, words: impl IntoIterator<Item = W>) -> Line {
        let program = [sandbox.program().as_os_str(), OsStr::new("--root"), sandbox.root().as_os_str()];
        within(&self.host, program).args(words)
    }

    /// What the outside is answered at an address and port, by its first line.
    pub(super) fn knock(&self, ip: &str, port: u16) -> String {
        let script = "import socket, sys; s = socket.create_connection((sys.argv[1], sys.argv[2]), timeout=10); print(s.recv(100).decode(), end='')";
        let ended = self.outside(["python3", "-c", script, ip, &port.to_string()]).run();
        if ended.code() == 0 { ended.out() } else { ended.err().lines().last().unwrap_or_default().to_owned() }
    }

    /// The addresses and links of the near machine, a line each.
    pub(super) fn links(&self) -> String {
        self.host(["ip", "-brief", "address"]).ok()
    }
}

#[track_caller]
fn plug(host: &Started, outside: &Started, near: &str, far: &str) {
    let pair = format!("ip link add {near} type veth peer name {far} netns {}; {}", outside.pid(), quiet(near));
    within(host, ["sh", "-euc", &pair]).ok();
    within(outside, ["sh", "-euc", &quiet(far)]).ok();
}

/// A process in a network namespace of its own, which lives as long as it does.
fn namespace() -> Started {
    let started = Line::new("unshare").args(["--net", "sleep", "100000"]).limit(600).start();
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let ours = of("self");
    eventually("a network namespace is made", || of(&started.pid().to_string()).is_some_and(|its| Some(its) != ours));
    started
}

fn within<W: AsRef<OsStr>>(at: &Started, words: impl IntoIterator<Item = W>) -> Line {
    Line::new("nsenter").args([format!("--net=/proc/{}/ns/net", at.pid())]).args(words)
}

/// Up at once, with errors told as often as they happen.
fn quiet(device: &str) -> String {
    format!(
        "echo 0 >/proc/sys/net/ipv6/conf/{device}/accept_dad; echo 0 >/proc/sys/net/ipv4/icmp_ratelimit; \
         echo 0 >/proc/sys/net/ipv6/icmp/ratelimit; ip link set lo up; ip link set {device} up"
    )
}

fn add(device: &str, address: &str) -> String {
    let quickly = if address.contains(':') { "nodad" } else { "" };
    format!("ip address add {address} dev {device} {quickly}")
}

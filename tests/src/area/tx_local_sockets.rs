//! What a transaction sends to servers of this machine, and takes from its other processes.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::fs;

pub(crate) const CASES: &[Case] = &[
    Case::new("tx::servers_of_this_machine_cannot_be_undone", local_servers),
    Case::new("tx::datagrams_to_servers_of_this_machine_cannot_be_undone", local_datagrams),
    Case::new("tx::messages_with_addresses_are_looked_at_one_by_one", messages),
    Case::new("tx_local_sockets::mounts_of_its_own_are_no_way_around", own_mounts).needs(&[
        Need::Root,
        Need::Program("unshare", "util-linux"),
        Need::Program("python3", "python3"),
    ]),
    Case::new("tx_local_sockets::a_server_may_be_called_anything", any_names)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx::what_others_have_open_is_not_taken", descriptors_of_others),
];

/// A server outside; one of the transaction's own is its own matter, and so is one that nobody listens on.
fn local_servers(sandbox: &Sandbox) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let directory = sandbox.scratch();
    let _server = UnixListener::bind(directory.join("server")).expect("a socket can be bound");
    let name = format!("pando-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("it is a name");
    let _nameless = UnixListener::bind_addr(&address).expect("a socket can be bound");
    let connects = |to: &str| format!("import socket; socket.socket(socket.AF_UNIX).connect({to})");
    let python = |options: &[&str], script: &str| {
        let line = sandbox.pando(["tx", "run"]).args(options).args(["--", "python3", "-c", script]);
        line.directory(&directory).run()
    };
    let by_path = connects("'server'");
    python(&[], &by_path).ended_with(125).complains_of(&["connect by process", "of socket server, cannot be a part"]);
    python(&["--unsupported=warn"], &by_path).succeeded().complains_of(&["socket server", "it was done"]);
    let by_name = connects(&format!("'\\0{name}'"));
    python(&[], &by_name).ended_with(125).complains_of(&[&format!("socket @{name}")]);
    let own = "import socket; new = lambda: socket.socket(socket.AF_UNIX)\n\
               for at in ['own', '\\0own']: s = new(); s.bind(at); s.listen(); new().connect(at)";
    python(&[], own).succeeded();
    python(&[], "import socket; assert socket.socket(socket.AF_UNIX).connect_ex('nobody')").succeeded();
}

/// In mounts of its own a process finds the servers of the host where they were; what it mounts there itself is its own
/// matter.
fn own_mounts(sandbox: &Sandbox) {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let directory = sandbox.scratch();
    let _server = UnixListener::bind(directory.join("server")).expect("a socket can be bound");
    let name = format!("pando-test-mounts-{}", std::process::id());
    let _nameless =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("it is a name")).expect("it is bound");
    let python = |options: &[&str], script: &str| {
        let line = sandbox.pando(["tx", "run", "--net=refuse"]).args(options);
        let line = line.args(["--", "unshare", "--mount", "--propagation", "private", "python3", "-c", script]);
        line.directory(&directory).run()
    };
    let by_path = "import socket; socket.socket(socket.AF_UNIX).connect('server')";
    python(&[], by_path).ended_with(125).complains_of(&["connect by process", "of socket server, cannot be a part"]);
    let by_name = format!("import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')");
    python(&[], &by_name).ended_with(125).complains_of(&[&format!("socket @{name}")]);
    let own = "import os, socket; os.mkdir('own'); assert os.system('mount -t tmpfs none own') == 0\n\
               new = lambda: socket.socket(socket.AF_UNIX)\n\
               for at in ['own/one', '\\0own']: s = new(); s.bind(at); s.listen(); new().connect(at)";
    python(&[], own).succeeded();
}

/// A name without a file may hold any bytes, zeros among them: some programs fill it up with those.
fn any_names(sandbox: &Sandbox) {
    let name = format!("pando-test-{}", std::process::id());
    let names = [format!("b'\\0{name}\\0\\0\\0'"), format!("b'\\0{name} \\xff\\n x'")];
    let listen = format!(
        "import socket, time; all = []\nfor name in [{}]: s = socket.socket(socket.AF_UNIX); s.bind(name); s.listen(); all.append(s)\n\
         print('ready', flush=True); time.sleep(1000)",
        names.join(", ")
    );
    let server = Line::new("python3").args(["-c", &listen]).start();
    // A socket has its name before it listens, which its flags say.
    let is_one = |line: &[u8]| {
        let has = |part: &[u8]| line.windows(part.len()).any(|one| one == part);
        has(name.as_bytes()) && has(b" 00010000 ")
    };
    let listening = || {
        fs::read("/proc/net/unix")
            .is_ok_and(|text| text.split(|byte| *byte == b'\n').filter(|line| is_one(line)).count() == names.len())
    };
    eventually("they listen", listening);
    let all = |script: &str| sandbox.pando(["tx", "run", "--net=refuse", "--", "python3", "-c", script]).run();
    for name in &names {
        let script = format!("import socket; socket.socket(socket.AF_UNIX).connect({name})");
        all(&script).ended_with(125).complains_of(&["connect by process", "of socket @pando-test-"]);
    }
    crate::process::kill(server.pid());
    let _ = server.wait();
}

/// A datagram needs no connection; one to a socket of the transaction's own, or through a connected one, is its own
/// matter.
fn local_datagrams(sandbox: &Sandbox) {
    use std::os::unix::net::UnixDatagram;
    let directory = sandbox.scratch();
    let server = UnixDatagram::bind(directory.join("server")).expect("a socket can be bound");
    server.set_nonblocking(true).expect("a socket can be told not to wait");
    let python = |options: &[&str], script: &str| {
        let start = "import socket; new = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n";
        let line =
            sandbox.pando(["tx", "run"]).args(options).args(["--", "python3", "-c", &format!("{start}{script}")]);
        line.directory(&directory).run()
    };
    let send = "new().sendto(b'word', 'server')";
    let said = ["sendto by process", "of socket server, cannot be a part"];
    python(&[], send).ended_with(125).complains_of(&said);
    let mut word = [0; 8];
    assert_eq!(server.recv(&mut word).map_err(|error| error.kind()), Err(std::io::ErrorKind::WouldBlock));
    python(&["--unsupported=warn"], send).succeeded().complains_of(&["socket server", "it was done"]);
    assert_eq!(server.recv(&mut word).expect("it was sent"), 4);
    let own = "s = new(); s.bind('own'); new().sendto(b'word', 'own'); assert s.recv(9) == b'word'\n\
               a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.send(b'x'); assert b.recv(9) == b'x'";
    python(&[], own).succeeded();
}

/// `send(WORD, SERVER or nothing, …)`: several messages in one call of sendmmsg(2).
const SEND_SEVERAL: &str = r#"
import ctypes
def send(socket, *messages):
    kept, heads = [], b""
    def held(data):
        kept.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(kept[-1])
    for word, to in messages:
        address = b"\x01\0" + to + b"\0" if to else b""
        place = held(address) if address else 0
        numbers = [place, len(address), held(held(word).to_bytes(8, "little") + len(word).to_bytes(8, "little")), 1, 0, 0, 0, 0]
        heads += b"".join(number.to_bytes(8, "little") for number in numbers)
    return ctypes.CDLL(None).sendmmsg(socket.fileno(), ctypes.c_void_p(held(heads)), len(messages), 0)
"#;

/// By sendmsg(2) and sendmmsg(2), of which the address lies in a structure in memory; most messages have none.
fn messages(sandbox: &Sandbox) {
    use std::os::unix::net::UnixDatagram;
    let directory = sandbox.scratch();
    let server = UnixDatagram::bind(directory.join("server")).expect("a socket can be bound");
    server.set_nonblocking(true).expect("a socket can be told not to wait");
    let python = |options: &[&str], script: &str| {
        let start = "import socket; new = lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)";
        let script = format!("{start}\n{SEND_SEVERAL}\n{script}");
        let line = sandbox.pando(["tx", "run"]).args(options).args(["--", "python3", "-c", &script]);
        line.directory(&directory).run()
    };
    let one = "new().sendmsg([b'word'], [], 0, 'server')";
    let several = "s = new(); s.bind('own'); send(new(), (b'word', b'own'), (b'word', b'server'))";
    let mut word = [0; 8];
    for (call, script) in [("sendmsg", one), ("sendmmsg", several)] {
        let said = [&format!("{call} by process"), "of socket server, cannot be a part"];
        python(&[], script).ended_with(125).complains_of(&said);
        assert_eq!(server.recv(&mut word).map_err(|error| error.kind()), Err(std::io::ErrorKind::WouldBlock));
        python(&["--unsupported=warn"], script).succeeded().complains_of(&["socket server", "it was done"]);
        assert_eq!(server.recv(&mut word).expect("it was sent"), 4);
    }
    let own = "s = new(); s.bind('mine'); assert send(new(), (b'one', b'mine'), (b'two', b'mine')) == 2\n\
               assert [s.recv(9), s.recv(9)] == [b'one', b'two']\n\
               a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendmsg([b'x']); assert b.recv(9) == b'x'\n\
               assert send(a, (b'y', None), (b'z', None)) == 2 and b.recv(9) + b.recv(9) == b'yz'";
    python(&[], own).succeeded();
    // Another machine's address, by each of the calls.
    let far = "far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); far.sendmsg([b'x'], [], 0, ('127.0.0.1', 9))";
    python(&[], far).succeeded().complains_of(&["1 connection had passed: 127.0.0.1:9"]);
}

/// By pidfd_getfd(2) a process gets what another has open, which leads to the live tree.
fn descriptors_of_others(sandbox: &Sandbox) {
    let directory = sandbox.scratch();
    let take = |pid: &str, end: &str| {
        format!(
            "import ctypes, os; call = ctypes.CDLL(None).syscall\n\
             fd = call(438, os.pidfd_open({pid}), 1, 0)\n\
             assert fd >= 0; os.write(fd, b'taken'); {end}"
        )
    };
    let outside = Line::new("sh").args(["-c", "exec sleep 1000 >log"]).directory(&directory).start();
    eventually("it has its output", || directory.join("log").exists());
    let pid = outside.pid();
    let script = take(&pid.to_string(), "");
    let python = |script: &str| sandbox.pando(["tx", "run", "--", "python3", "-c", script]).directory(&directory).run();
    python(&script).ended_with(125).complains_of(&["pidfd_getfd by process", &format!("of process {pid}")]);
    assert_eq!(fs::read(directory.join("log")).expect("it is there"), b"");
    crate::process::kill(pid);
    let _ = outside.wait();
    python(&take("os.getpid()", "")).succeeded().says("taken");
}

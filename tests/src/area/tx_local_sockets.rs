//! What a transaction sends to servers of this machine, and takes from its other processes.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    Case::new("tx_local_sockets::no_path_leads_around", no_path_around)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx_local_sockets::what_pando_cannot_read_fails", secret_memory)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx_local_sockets::a_servers_socket_stays_as_it_is", kept_as_it_is)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx_local_sockets::who_hears_of_a_descriptor_is_inside", owners)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx_local_sockets::no_call_passes_for_want_of_descriptors", no_descriptors)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("tx::what_others_have_open_is_not_taken", descriptors_of_others),
    Case::new("tx_local_sockets::a_callers_socket_is_carried", callers_socket),
    Case::new("tx_local_sockets::a_slow_caller_has_all_of_it_at_the_end", slow_caller),
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

/// Links of /proc lead a process to what it has itself; a server is known by what it is, and not by a name or a link.
fn no_path_around(sandbox: &Sandbox) {
    use std::os::unix::net::UnixListener;
    let directory = sandbox.scratch();
    let server = UnixListener::bind(directory.join("server")).expect("a socket can be bound");
    server.set_nonblocking(true).expect("a socket can be told not to wait");
    let python = |script: &str| {
        let prologue = "import os, socket; new = lambda: socket.socket(socket.AF_UNIX); here = os.getcwd()\n\
                        os.dup2(os.open('.', os.O_PATH), 9); os.dup2(os.open('server', os.O_PATH), 8)\n\
                        pid = os.getpid(); os.symlink('/proc/self/cwd', 'link'); os.symlink(here + '/server', 'other')\n";
        let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "python3", "-c", &format!("{prologue}{script}")]);
        line.directory(&directory).run()
    };
    let ways = [
        "'/proc/self/root' + here + '/server'",
        "'/proc/self/cwd/server'",
        "'/proc/self/fd/9/server'",
        "'/proc/self/fd/8'",
        "'/proc/thread-self/fd/9/server'",
        "f'/proc/{pid}/cwd/server'",
        "f'/proc/self/task/{pid}/../task/{pid}/cwd/server'",
        "'link/server'",
        "'other'",
        "'../' + os.path.basename(here) + '/other'",
    ];
    for way in ways {
        let said = ["connect by process", "of socket ", "cannot be a part of a transaction"];
        python(&format!("new().connect({way})")).ended_with(125).complains_of(&said);
        let heard = server.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(heard, Err(std::io::ErrorKind::WouldBlock), "{way}");
    }
    // What is called as a log of the system's is none.
    let called = "os.makedirs('/run/nscd', exist_ok=True)\n\
                  try: os.symlink(here + '/server', '/run/nscd/socket')\n\
                  except FileExistsError: raise SystemExit(125)\n\
                  new().connect('/run/nscd/socket')";
    python(called).ended_with(125);
    assert!(server.accept().is_err());
    let own = "s = new(); s.bind('own'); s.listen(9)\n\
               for at in ['/proc/self/cwd/own', '/proc/thread-self/fd/9/own', f'/proc/{pid}/root{here}/own', 'link/own']:\n    \
               new().connect(at)\n\
               assert new().connect_ex('/proc/self/cwd/nobody') == 2 and new().connect_ex('/proc/self/fd/77/x') == 2";
    python(own).succeeded();
}

/// An address, a path and a message in memory that the kernel reads and nobody else (memfd_secret(2)).
const SECRETS: &str = r#"
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(447, 0)
if fd < 0: raise SystemExit(77)
os.ftruncate(fd, 8192)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_size_t(8192), 3, 1, fd, ctypes.c_long(0))
def secret(data, place=0): ctypes.memmove(at + place, data, len(data)); return ctypes.c_void_p(at + place)
def errno(result): return ctypes.get_errno() if result < 0 else 0
"#;

fn secret_memory(sandbox: &Sandbox) {
    use std::os::unix::net::{UnixDatagram, UnixListener};
    let directory = sandbox.scratch();
    let server = UnixListener::bind(directory.join("server")).expect("a socket can be bound");
    server.set_nonblocking(true).expect("a socket can be told not to wait");
    let datagrams = UnixDatagram::bind(directory.join("datagrams")).expect("a socket can be bound");
    datagrams.set_nonblocking(true).expect("a socket can be told not to wait");
    if Line::new("python3").args(["-c", SECRETS]).run().code() == 77 {
        crate::case::skip("this kernel has no memfd_secret(2)");
    }
    let python = |script: &str| {
        let script = format!("{SECRETS}\n{script}");
        let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "python3", "-c", &script]).directory(&directory);
        line.run().succeeded()
    };
    let begin = "s = socket.socket(socket.AF_UNIX, kind); to = b'\\1\\0' + name + b'\\0'\n";
    python(&format!(
        "kind, name = socket.SOCK_STREAM, b'server'\n{begin}\
         assert errno(libc.connect(s.fileno(), secret(to), len(to))) == 14"
    ));
    python(&format!(
        "kind, name = socket.SOCK_DGRAM, b'datagrams'\n{begin}\
         assert errno(libc.sendto(s.fileno(), b'x', 1, 0, secret(to), len(to))) == 14\n\
         head = secret(to).value.to_bytes(8, 'little') + len(to).to_bytes(8, 'little') + bytes(40)\n\
         assert errno(libc.sendmsg(s.fileno(), secret(head, 4096), 0)) == 14"
    ));
    // The second half of a path.
    python(
        "at += 4096 - 5; path = secret(b'/tmp/../dev/null\\0'); where = b'here\\0'; os.mkdir('here')\n\
         assert errno(libc.unshare(0x20000)) == 0\n\
         assert errno(libc.mount(path, where, b'ext4', 0, None)) == 14\n\
         assert errno(libc.mount(b'none', where, secret(b'cgroup2\\0'), 0, None)) == 14\n\
         assert errno(libc.mount(None, secret(b'here\\0'), None, 0x1020, None)) == 14",
    );
    assert!(server.accept().is_err() && datagrams.recv(&mut [0; 8]).is_err());
}

/// The owner of a descriptor gets a signal of choice when something comes (F_SETOWN, F_SETSIG): at once, whatever
/// becomes of the transaction.
fn owners(sandbox: &Sandbox) {
    let outside = Line::new("sleep").args(["1000"]).start();
    let pid = outside.pid();
    let python = |script: &str| {
        let begin = "import array, fcntl, os, socket, struct; r, w = os.pipe(); a, b = socket.socketpair()\n\
                     fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); fcntl.fcntl(r, 10, 9); fcntl.fcntl(a, 10, 9)\n";
        let line = sandbox.pando(["tx", "run", "--retry", "0", "--", "python3", "-c", &format!("{begin}{script}")]);
        line.directory(sandbox.scratch()).run()
    };
    for (call, set) in [
        ("fcntl", format!("fcntl.fcntl(r, 8, {pid})")),
        ("fcntl", format!("fcntl.fcntl(r, 15, struct.pack('ii', 1, {pid}))")),
        ("fcntl", format!("fcntl.fcntl(r, 15, struct.pack('ii', 0, {pid}))")),
        ("fcntl", format!("fcntl.fcntl(r, 8, -os.getpgid({pid}))")),
        ("ioctl", format!("fcntl.ioctl(a, 0x8901, array.array('i', [{pid}]))")),
        ("ioctl", format!("fcntl.ioctl(a, 0x8902, array.array('i', [{pid}]))")),
    ] {
        let ended = python(&format!("{set}; os.write(w, b'x')"));
        ended.ended_with(125).complains_of(&[&format!("{call} by process"), "cannot be a part of a transaction"]);
    }
    let own = "import signal; heard = []; signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))\n\
               me = os.getpid(); fcntl.fcntl(r, 10, 10); fcntl.fcntl(r, 8, 0); fcntl.fcntl(r, 8, me)\n\
               fcntl.fcntl(r, 15, struct.pack('ii', 1, me)); os.setpgid(0, 0); fcntl.fcntl(r, 8, -me)\n\
               fcntl.ioctl(a, 0x8901, array.array('i', [me])); fcntl.fcntl(r, 15, struct.pack('ii', 0, me))\n\
               os.write(w, b'x'); assert heard and fcntl.fcntl(r, 3) & os.O_ASYNC\n\
               assert fcntl.fcntl(r, fcntl.F_GETFD) == 1";
    python(own).succeeded();
    crate::process::kill(pid);
    let _ = outside.wait();
}

/// Its mode, owner and times are those of the live tree, and are not changed there. Who may connect still may.
fn kept_as_it_is(sandbox: &Sandbox) {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;
    let directory = sandbox.scratch();
    let path = directory.join("server");
    let _server = UnixListener::bind(&path).expect("a socket can be bound");
    let state = || fs::metadata(&path).map(|found| (found.mode(), found.uid(), found.mtime())).expect("it is there");
    let before = state();
    let script = "import os, socket\n\
                  for change in [lambda: os.chmod('server', 0o600), lambda: os.chown('server', 1, 1), lambda: os.utime('server', (1, 1))]:\n    \
                  try: change()\n    \
                  except OSError as error: assert error.errno == 30\n    \
                  else: raise SystemExit(4)\n\
                  socket.socket(socket.AF_UNIX).connect('server')";
    let line = sandbox.pando(["tx", "run", "--retry", "0", "--unsupported=warn", "--", "python3", "-c", script]);
    line.directory(&directory).run().succeeded().complains_of(&["socket server", "it was done"]);
    assert_eq!(state(), before);
}

/// Signals that are held take a descriptor each; when there are no more, nothing is let through unseen.
fn no_descriptors(sandbox: &Sandbox) {
    use std::os::unix::net::UnixListener;
    let directory = sandbox.scratch();
    let server = UnixListener::bind(directory.join("server")).expect("a socket can be bound");
    server.set_nonblocking(true).expect("a socket can be told not to wait");
    let outside = Line::new("sleep").args(["1000"]).start();
    let script = format!(
        "import os, signal, socket\nfor _ in range(400):\n    try: os.kill({}, signal.SIGURG)\n    except OSError: break\n\
         else: raise SystemExit(3)\n\
         for _ in range(100): socket.socket(socket.AF_UNIX).connect_ex('server')",
        outside.pid()
    );
    let line = Line::new("sh").args(["-c", "ulimit -n 256; exec \"$@\"", "sh"]).args([sandbox.program()]);
    let line = line.args(["--root".as_ref(), sandbox.root().as_os_str()]);
    let line = line.args(["tx", "run", "--retry", "0", "--", "python3", "-c", &script]);
    let ended = line.directory(&directory).run();
    crate::process::kill(outside.pid());
    let _ = outside.wait();
    ended.ended_with(125).complains_of(&["cannot be a part of a transaction"]);
    assert!(server.accept().is_err());
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

/// By a connection that is its input, output or error a command could reach whomever it likes.
fn callers_socket(sandbox: &Sandbox) {
    let script =
        "read line; echo \"$line\"; for number in 0 1 2; do readlink /proc/self/fd/$number; done; echo error >&2";
    for network in ["--net=pass", "--net=refuse"] {
        for retries in ["0", "3"] {
            let (mine, mut peer) = UnixStream::pair().expect("a pair of sockets");
            let mut command = Command::new(sandbox.program());
            command.arg("--root").arg(sandbox.root());
            command.args(["tx", "run", network, "--retry", retries, "--", "sh", "-c", script]);
            let copy = || OwnedFd::from(mine.try_clone().expect("a descriptor can be copied"));
            let mut child = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn().expect("the command starts");
            drop((command, mine));
            peer.write_all(b"hello\n").expect("the command reads");
            let mut printed = String::new();
            peer.read_to_string(&mut printed).expect("the command prints, and ends");
            assert!(child.wait().expect("it was started").success(), "{network}: {printed}");
            let lines: Vec<&str> =
                printed.lines().map(|line| line.split([':', ';']).next().unwrap_or_default()).collect();
            assert_eq!(lines[..5], ["hello", "pipe", "pipe", "pipe", "error"], "{network}");
            assert!(lines[5].starts_with("pando"), "{network}: {printed}");
        }
    }
}

/// A socket that is read slowly, and one that does not wait for its reader besides.
fn slow_caller(sandbox: &Sandbox) {
    for waits in [true, false] {
        let (mine, peer) = UnixStream::pair().expect("a pair of sockets");
        mine.set_nonblocking(!waits).expect("a socket can be told so");
        let mut command = Command::new(sandbox.program());
        command.arg("--root").arg(sandbox.root()).args(["tx", "run", "-q", "--", "seq", "1", "200000"]);
        let mut child = command.stdout(OwnedFd::from(mine)).spawn().expect("the command starts");
        drop(command);
        let ended = AtomicBool::new(false);
        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut read, mut piece) = (Vec::new(), vec![0; 64 << 10]);
                while !ended.load(Ordering::SeqCst) {
                    let count = (&peer).read(&mut piece).expect("the command prints");
                    read.extend_from_slice(&piece[..count]);
                    std::thread::sleep(Duration::from_millis(20));
                }
                read
            });
            assert!(child.wait().expect("it was started").success(), "it waits: {waits}");
            ended.store(true, Ordering::SeqCst);
            reader.join().expect("the reader ends")
        });
        // What was printed is here, or in the socket.
        peer.set_nonblocking(true).expect("a socket can be told so");
        let mut rest = Vec::new();
        let _ = (&peer).read_to_end(&mut rest);
        let all = String::from_utf8([read, rest].concat()).expect("numbers");
        assert_eq!(all.lines().next_back(), Some("200000"), "it waits: {waits}");
    }
}

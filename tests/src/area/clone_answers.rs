//! Programs that are asked in a guest, and again in a clone of it and where it is restored, what the kernel answers
//! them: that is the same.

use crate::busybox_root::with_python;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use crate::teardown::tear_down;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const PYTHON: &[Need] = &[Need::Root, Need::Program("python3", "python3")];

const fn case(name: &'static str, show: fn(&Sandbox)) -> Case {
    Case::new(name, show).needs(PYTHON)
}

pub(crate) const CASES: &[Case] = &[
    case("clone_answers::who_is_at_the_other_end_of_a_unix_socket", who_is_at_the_other_end),
    case("clone_answers::who_sent_what_waits", who_sent_what_waits),
    case("clone_answers::whom_pipes_and_sockets_belong_to", whom_they_belong_to),
    case("clone_answers::what_was_sent_to_who_has_not_accepted", what_was_sent_to_who_has_not_accepted),
    case("clone_answers::what_comes_with_descriptors_is_accepted_first", what_comes_with_descriptors),
    case("clone_answers::what_becomes_of_connections_that_are_half_open", half_open),
    case("clone_answers::urgent_data_is_refused_until_it_is_received", urgent_data),
    case("clone_answers::watches_that_have_fired_stay_so", watches_that_have_fired),
    case("clone_answers::who_has_locked_ranges_of_mapped_files", who_has_locked_ranges),
    case("clone_answers::what_was_written_through_a_mapping_by_a_bind_mount", written_by_a_bind_mount),
    case("clone_answers::directories_that_are_half_listed_are_refused", half_listed),
];

fn tree(sandbox: &Sandbox) -> PathBuf {
    let tree = sandbox.scratch().join("tree");
    with_python(Path::new(sandbox.busybox()), &tree).expect("a tree with python3 can be made");
    tree
}

/// Starts a guest that runs a program.
fn guest(sandbox: &Sandbox, tree: &Path, name: &str, program: &str) {
    guest_with(sandbox, tree, name, program, &[]);
}

fn guest_with(sandbox: &Sandbox, tree: &Path, name: &str, program: &str, options: &[&str]) {
    let whole = [include_str!("../../fixtures/answers.py"), program].concat();
    std::fs::write(tree.join(format!("root/{name}.py")), whole).expect("a file");
    let program = format!("/root/{name}.py");
    let command = ["--start", "--", "/usr/bin/python3", "-E", "-s", &program];
    let create = ["create", name, "--from", &tree.to_string_lossy()];
    sandbox.pando(create).args(options).args(command).limit(120).ok();
    eventually("it is up", || sandbox.exec_sh(name, "test -s /tmp/up").run().code() == 0);
}

/// What a guest's program is answered, when asked by a word that it was not asked by before.
#[track_caller]
fn said(sandbox: &Sandbox, name: &str, word: &str) -> Value {
    sandbox.exec_sh(name, &format!("touch /tmp/ask.{word}")).ok();
    eventually("it has answered", || sandbox.exec_sh(name, &format!("test -e /tmp/said.{word}")).run().code() == 0);
    serde_json::from_str(&sandbox.exec_sh(name, &format!("cat /tmp/said.{word}")).ok()).expect("an answer")
}

/// What is other than it was, by name.
fn other(is: &Value, was: &Value) -> Vec<String> {
    let (is, was) = (is.as_object().expect("answers"), was.as_object().expect("answers"));
    let differs = |(name, value): (&String, &Value)| {
        (is.get(name) != Some(value)).then(|| format!("{name}: {:?} instead of {value}", is.get(name)))
    };
    was.iter().filter_map(differs).collect()
}

/// What a program is answered in a clone, in the guest that was frozen, and, from the disk, in that again.
fn answers(sandbox: &Sandbox, program: &str) -> [Value; 3] {
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", program);
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["freeze", "source", "cold", "--stop"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let in_clone = said(sandbox, "one", "clone");
    sandbox.end_daemon();
    sandbox.pando(["restore", "cold"]).ok();
    let restored = said(sandbox, "source", "restored");
    guest(sandbox, &tree, "never-frozen", program);
    [in_clone, restored, said(sandbox, "never-frozen", "as-it-is")]
}

fn who_is_at_the_other_end(sandbox: &Sandbox) {
    let [in_clone, restored, was] = answers(sandbox, include_str!("../../fixtures/peer_credentials.py"));
    assert_eq!(was["accepted 1000 1000"], json!([1000, 1000, [7, 9]]), "{was}");
    assert_eq!(was["client after"][0], 33, "{was}");
    assert_eq!(other(&in_clone, &was), Vec::<String>::new(), "the clone is another, and nobody says so");
    assert_eq!(other(&restored, &was), Vec::<String>::new(), "the restored guest is another, and nobody says so");
}

fn who_sent_what_waits(sandbox: &Sandbox) {
    let [in_clone, restored, was] = answers(sandbox, include_str!("../../fixtures/senders.py"));
    assert_eq!(was["box"][2], json!(["one", "theirs", 1000, 50]), "{was}");
    assert_eq!(other(&in_clone, &was), Vec::<String>::new(), "the clone is another, and nobody says so");
    assert_eq!(other(&restored, &was), Vec::<String>::new(), "the restored guest is another, and nobody says so");
}

fn whom_they_belong_to(sandbox: &Sandbox) {
    let [in_clone, restored, was] = answers(sandbox, include_str!("../../fixtures/owners.py"));
    assert_eq!(was["pipe, read"], json!([1000, 7]), "{was}");
    assert_eq!(was["opened"], json!(["opened", "opened", "Permission denied"]), "{was}");
    assert_eq!(other(&in_clone, &was), Vec::<String>::new(), "the clone is another, and nobody says so");
    assert_eq!(other(&restored, &was), Vec::<String>::new(), "the restored guest is another, and nobody says so");
}

/// No descriptor leads to where that is.
fn what_was_sent_to_who_has_not_accepted(sandbox: &Sandbox) {
    if !tells_what_waits() {
        return untold(sandbox);
    }
    let [in_clone, restored, was] = answers(sandbox, include_str!("../../fixtures/unaccepted.py"));
    let (stream, packets) = (&was["stream"], &was["packets"]);
    assert_eq!((stream.as_array().map(Vec::len), packets.as_array().map(Vec::len)), (Some(5), Some(5)), "{was}");
    assert_eq!(stream[3], json!([["gone"], null, [1000, 50], rustix::io::Errno::PIPE.raw_os_error()]), "{was}");
    assert_eq!((&packets[1][0][1], &packets[2][0]), (&json!("of all"), &json!(["last words"])), "{was}");
    assert_eq!(other(&in_clone, &was), Vec::<String>::new(), "the clone is another, and nobody says so");
    assert_eq!(other(&restored, &was), Vec::<String>::new(), "the restored guest is another, and nobody says so");
}

/// Whether the kernel tells what waits at a listener: since Linux 6.12.
fn tells_what_waits() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// Where it does not, that is said before the guest is ended.
fn untold(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", include_str!("../../fixtures/unaccepted.py"));
    for more in [&[][..], &["--stop"]] {
        let refused = sandbox.pando(["freeze", "source", "early"]).args(more).run().ended_with(125);
        refused.complains_of(&["connections that nobody has accepted", "let the program accept them first"]);
    }
}

/// Only data can be read where it waits.
fn what_comes_with_descriptors(sandbox: &Sandbox) {
    const PROGRAM: &str = "listener = socket.socket(socket.AF_UNIX)
listener.bind('\\0carried')
listener.listen(9)
client = socket.socket(socket.AF_UNIX)
client.connect('\\0carried')
socket.send_fds(client, [b'x'], [0])
kept = []
def answers():
    if not kept:
        kept.append(listener.accept()[0])
        return {'said': len(socket.recv_fds(kept[0], 9, 9)[1])}
    return {'said': 'nothing'}
answer(answers)
";
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", PROGRAM);
    let refused = sandbox.pando(["freeze", "source", "early", "--stop"]).run().ended_with(125);
    refused.complains_of(&["descriptor", "connections that nobody has accepted", "let the program accept them first"]);
    assert_eq!(said(sandbox, "source", "then"), json!({"said": 1}));
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    assert_eq!(said(sandbox, "one", "clone"), json!({"said": "nothing"}));
}

/// One that is being opened is reset, one that has ended in one direction goes on; one that has ended in both is
/// refused until all of it is read.
fn half_open(sandbox: &Sandbox) {
    const SYN_SENT: u8 = 2;
    let [in_clone, restored, was] = answers(sandbox, include_str!("../../fixtures/half_open.py"));
    let errors = [rustix::io::Errno::AGAIN, rustix::io::Errno::CONNRESET].map(rustix::io::Errno::raw_os_error);
    // TCP_FIN_WAIT2 and TCP_CLOSE_WAIT.
    assert_eq!((&was["before"]["opening"], &was["before"]["half"]), (&json!(SYN_SENT), &json!([5, 8])), "{was}");
    assert_eq!(was["opening"], json!([errors[0]]), "{was}");
    both_ended(sandbox);
    for told in [&in_clone, &restored] {
        assert_eq!(told["opening"], json!([errors[1]]), "{told}");
        let different = other(told, &was);
        assert_eq!(different.len(), 1, "only what is being opened is another: {different:?}");
    }
}

fn both_ended(sandbox: &Sandbox) {
    const PROGRAM: &str = "listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.shutdown(socket.SHUT_WR)
server.send(b'unread')
server.close()
def answers():
    return {'said': client.recv(100).decode()}
answer(answers)
";
    let tree = tree(sandbox);
    guest(sandbox, &tree, "both-ended", PROGRAM);
    let refused = sandbox.pando(["freeze", "both-ended", "early"]).run().ended_with(125);
    refused.complains_of(&["descriptor", "a TCP connection that has ended in both directions, with something unread"]);
    assert_eq!(said(sandbox, "both-ended", "then"), json!({"said": "unread"}));
    sandbox.pando(["freeze", "both-ended", "late"]).ok();
}

fn urgent_data(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", include_str!("../../fixtures/urgent_data.py"));
    let refused = |image: &str, words: &[&str]| {
        sandbox.pando(["freeze", "source", image]).run().ended_with(125).complains_of(words);
        sandbox.pando(["freeze", "source", image, "--stop"]).run().ended_with(125).complains_of(words);
    };
    // Where the kernel has urgent data for unix sockets, these come first.
    refused("early", &["urgent data waits (MSG_OOB)", "let the program receive it first"]);
    let whole = said(sandbox, "source", "unix")["said"].clone();
    assert!(["abcdef", "abc!def"].contains(&whole.as_str().unwrap_or_default()), "{whole}");
    refused("later", &["a TCP connection in which urgent data waits"]);
    assert_eq!(said(sandbox, "source", "inline"), json!({"said": "abc!def"}));
    refused("last", &["a TCP connection in which urgent data waits"]);
    assert_eq!(said(sandbox, "source", "tcp"), json!({"said": "abcdef"}));
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    for name in ["one", "source"] {
        assert_eq!(said(sandbox, name, "then"), json!({"said": "moremoremore"}), "{name}");
    }
}

fn watches_that_have_fired(sandbox: &Sandbox) {
    let program = include_str!("../../fixtures/fired_watches.py");
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", program);
    let refused = sandbox.pando(["freeze", "source", "early"]).run().ended_with(125);
    refused.complains_of(&["(EPOLLONESHOT) of a file that is ready for none", "when the program watches that again"]);
    said(sandbox, "source", "armed");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["freeze", "source", "cold", "--stop"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    let in_clone = said(sandbox, "one", "clone");
    sandbox.end_daemon();
    sandbox.pando(["restore", "cold"]).ok();
    let restored = said(sandbox, "source", "restored");
    guest(sandbox, &tree, "never-frozen", program);
    said(sandbox, "never-frozen", "armed");
    let was = said(sandbox, "never-frozen", "as-it-is");
    assert_eq!((was["at first"].as_array().map(Vec::len), &was["then"]), (Some(1), &json!([])), "{was}");
    assert_eq!(other(&in_clone, &was), Vec::<String>::new(), "the clone is another, and nobody says so");
    assert_eq!(other(&restored, &was), Vec::<String>::new(), "the restored guest is another, and nobody says so");
}

fn half_listed(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    guest(sandbox, &tree, "source", include_str!("../../fixtures/half_listed.py"));
    let refused = sandbox.pando(["freeze", "source", "early"]).run().ended_with(125);
    refused.complains_of(&["a directory in memory, half of which is listed (/dev/shm)", "try again"]);
    let whole = said(sandbox, "source", "whole");
    assert!(whole["new"].as_u64() > Some(100) && whole["twice"] == 0 && whole["missing"] == 0, "{whole}");
    sandbox.pando(["freeze", "source", "warm"]).ok();
    sandbox.pando(["clone", "warm", "one"]).ok();
    for name in ["one", "source"] {
        assert_eq!(said(sandbox, name, "then"), json!({"new": 0, "twice": 0, "missing": 0, "behind": 0}), "{name}");
    }
}

/// close(2) of any descriptor of a file gives up the locks that a process has on it, and what a clone maps it opens and
/// closes.
fn who_has_locked_ranges(sandbox: &Sandbox) {
    let [in_clone, restored, was] = answers(sandbox, include_str!("../../fixtures/mapped_locks.py"));
    let (write_locked, unlocked) = (json!([1, true]), json!([2, false]));
    assert_eq!((&was["/tmp/ranges 205"], &was["/tmp/ranges 0"]), (&write_locked, &unlocked), "{was}");
    assert_eq!(other(&in_clone, &was), Vec::<String>::new(), "the clone is another, and nobody says so");
    assert_eq!(other(&restored, &was), Vec::<String>::new(), "the restored guest is another, and nobody says so");
}

/// Writing to a page that is dirty already shows in no time of the file, in memory to any page; and the file has
/// another path in the guest than among the guest's own files.
fn written_by_a_bind_mount(sandbox: &Sandbox) {
    let tree = tree(sandbox);
    let directory = tempfile::Builder::new().prefix("pando-test-").tempdir_in("/dev/shm").expect("a directory");
    let in_memory = sandbox.beside(TemporaryDirectory::of(directory.keep()));
    let program = include_str!("../../fixtures/bound_mapping.py");
    guest_with(&in_memory, &tree, "source", program, &["--profile", "system"]);
    in_memory.pando(["freeze", "source", "warm"]).ok();
    in_memory.pando(["clone", "warm", "one"]).ok();
    let lost = said(&in_memory, "one", "clone");
    tear_down(in_memory).expect("nothing is left");
    assert_eq!(lost, json!({"lost": 0}));
}

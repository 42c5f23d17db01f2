//! What becomes of each kind of thing that processes have, in a clone: the table of docs/clones.md is made of this
//! list, and every refusal in this crate has a row of it.

/// What becomes of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// A clone has it as it was.
    Kept,
    /// A clone has none, or another one.
    Lost,
    /// Who has it is not frozen.
    Refused,
}

/// A kind.
struct Kind {
    what: &'static str,
    fate: Fate,
    /// What else there is to say.
    more: &'static str,
    /// How refusals of it begin.
    said: &'static [&'static str],
    /// The test that tries it.
    test: &'static str,
}

const fn kept(what: &'static str, more: &'static str, test: &'static str) -> Kind {
    Kind { what, fate: Fate::Kept, more, said: &[], test }
}

const fn lost(what: &'static str, more: &'static str, test: &'static str) -> Kind {
    Kind { what, fate: Fate::Lost, more, said: &[], test }
}

const fn refused(what: &'static str, said: &'static [&'static str], test: &'static str) -> Kind {
    Kind { what, fate: Fate::Refused, more: "", said, test }
}

const CHECKER: &str = "clone_checker::no_kind_is_silently_other";

const KINDS: &[Kind] = &[
    kept(
        "processes in trees of any depth, orphans, zombies with their status",
        "not whether there was a core dump",
        "clone_objects::the_dead_have_died_of_what_they_died_of",
    ),
    kept("groups and sessions, also without a leader", "", "clone_trees::groups_without_a_leader_are_groups"),
    kept(
        "processes that a signal has stopped",
        "by SIGSTOP, whichever it was",
        "clone_trees::who_is_stopped_stays_so_until_it_is_to_go_on",
    ),
    kept("threads: registers, names, robust futexes, restartable sequences", "", "freeze::threads_run_on"),
    kept(
        "processors that a thread may run on",
        "as far as there are such",
        "freeze::threads_keep_where_they_run_and_what_they_wait_for",
    ),
    kept(
        "sleeps and waits with a time limit",
        "with what was left",
        "frozen_again::calls_that_were_interrupted_twice_go_on",
    ),
    kept("signals: handlers, masks, queues", "", "freeze::signals_keep_handlers_masks_and_queues"),
    kept("interval and POSIX timers", "with what was left", "freeze::timers_tick_on"),
    kept(
        "timerfds",
        "absolute ones of the wall clock run out at their time",
        "clone_objects::a_time_of_the_wall_clock_stays_that_time",
    ),
    kept("users, groups, capabilities, limits, umask", "", "freeze::credentials_limits_and_names_are_kept"),
    kept(
        "root directories of processes (chroot), mount namespaces with another root (pivot_root)",
        "",
        "freeze::roots_of_their_own_are_roots_again",
    ),
    kept("settings of processes (see below)", "", "frozen_settings::all_of_them_are_kept"),
    kept("system-call filters", "", "clone_filters::ordinary_ones_are_kept"),
    kept(
        "private memory, mappings of files",
        "rights, advice, locks, reservations too",
        "clone_memory::what_was_asked_of_mappings_holds",
    ),
    kept("what forks share", "once, until it is written to", "clone_memory::what_forks_share_is_there_once"),
    kept("guards and sealed memory", "", "freeze::memory_stays_guarded_and_sealed"),
    kept(
        "shared memory, memory files with seals, deleted files",
        "each clone's own",
        "freeze::shared_memory_is_shared_within_a_clone_and_not_between",
    ),
    kept(
        "a mapped file whose name is gone, with another in that directory",
        "one file",
        "clone_objects::a_file_mapped_by_a_lost_name_is_one_on_the_disk",
    ),
    kept(
        "files in memory (/dev/shm and the like): names, links, times",
        "",
        "clone_objects::files_in_memory_keep_their_names_and_times",
    ),
    kept(
        "System V memory, semaphores, messages",
        "with numbers and keys",
        "freeze::system_v_objects_keep_numbers_and_contents",
    ),
    kept("POSIX message queues", "", "freeze::message_queues_keep_what_waits_in_them"),
    kept(
        "programs that were deleted or replaced since they were started",
        "copies of each clone's own",
        "clone_objects::programs_that_were_deleted_run_on",
    ),
    kept("an open file whose name is gone, with another in that directory", "by the name that it has", CHECKER),
    kept("open files: positions, flags, who shares them", "", "freeze::files_keep_positions_flags_and_sharing"),
    kept("locks of flock(2), fcntl(2), open files", "", "freeze::locks_are_held_on"),
    kept("descriptors of links (O_PATH)", "", "freeze::descriptors_of_links_lead_to_links"),
    kept("files of /proc of a process's own", "", "freeze::what_only_processes_themselves_know_is_kept"),
    kept("pipes and named pipes with what is in them", "", "freeze::pipes_keep_what_is_in_them"),
    kept("eventfds, signalfds", "", "freeze::event_descriptors_keep_counts_and_watches"),
    kept("epoll", "also what it watches by a number that was closed since", CHECKER),
    kept(
        "inotify: watches and their numbers",
        "what happened and was not read is lost",
        "freeze::watches_of_files_keep_their_numbers",
    ),
    kept(
        "pressure stall information that wakes a program",
        "asked for as systemd does",
        "systemd::is_cloned_with_its_services",
    ),
    kept(
        "pseudo-terminals made inside",
        "what was typed and not read is lost",
        "freeze::terminals_keep_numbers_settings_and_sessions",
    ),
    kept("asynchronous input and output (io_setup)", "what is done is waited for", "aio::contexts_come_along"),
    kept(
        "descriptors of processes (pidfd)",
        "of the clone's own; of one that is gone not how it ended",
        "freeze::descriptors_of_processes_lead_to_the_clones_own",
    ),
    kept(
        "unix sockets: names, peers, what waits, what waits to be accepted",
        "their files where they are now, also renamed or linked ones",
        "freeze::unix_sockets_keep_names_peers_and_queues",
    ),
    kept(
        "user and groups of who connected a unix socket (SO_PEERCRED, SO_PEERGROUPS)",
        "of what waits to be accepted nobody's, where users differ who could have connected it",
        "clone_answers::who_is_at_the_other_end_of_a_unix_socket",
    ),
    kept(
        "who sent what waits in a unix socket (SCM_CREDENTIALS)",
        "of a process that is gone another number",
        "clone_answers::who_sent_what_waits",
    ),
    kept(
        "unix connections that nobody has accepted, with what they have sent, also closed ones",
        "where the kernel tells what waits at a listener (Linux 6.12); else refused",
        "clone_answers::what_was_sent_to_who_has_not_accepted",
    ),
    kept("descriptors in flight (SCM_RIGHTS)", "", "freeze::descriptors_in_flight_arrive"),
    kept(
        "TCP and UDP listeners, bound and connected UDP sockets, netlink",
        "an address that a clone lacks is any that it gets; unread datagrams are lost",
        "freeze::listeners_listen_on_and_connections_are_reset",
    ),
    kept(
        "TCP connections of a guest with itself",
        "by IPv4, IPv6 and both; half-closed ones, and not yet accepted ones with what they have sent",
        "inner_connections::",
    ),
    kept("TCP connections with others, of a guest that is restored", "", "network::connections_last_through_a_restore"),
    kept("host names of a process's own", "", "freeze::host_names_of_their_own_are_kept"),
    kept(
        "mounts of a process's own",
        "copies of the clone's, and what differed",
        "freeze::mount_namespaces_of_their_own_are_made_again",
    ),
    kept("ipc namespaces with nothing in them", "", "freeze::ipc_namespaces_with_nothing_in_them_are_made_again"),
    kept(
        "network namespaces with the loopback device and sockets",
        "",
        "freeze::network_namespaces_with_sockets_are_made_again",
    ),
    kept("user namespaces in the guest's own", "", "freeze::user_namespaces_of_their_own_are_made_again"),
    kept("descriptors of namespaces", "of the clone's own", "freeze::descriptors_of_namespaces_lead_to_the_clones_own"),
    kept("control groups that an init has made", "", "clone_inits::services_have_mounts_of_their_own"),
    kept("raw and ping sockets, packet filters of sockets (SO_ATTACH_FILTER)", "", CHECKER),
    kept("leases (F_SETLEASE), deleted directories", "", CHECKER),
    kept(
        "what a guest has mounted itself: tmpfs, binds, /proc; what it unmounted or remounted",
        "one over the other, as they were",
        "clone_mounts::",
    ),
    kept("what it has set below /proc/sys/net of its own network", "", "clone_networks::"),
    kept(
        "what is set of the device that connects it (net.*.eth0), how large its packets may be (MTU)",
        "",
        "clone_networks::what_was_set_of_its_device_is_set_in_clones",
    ),
    kept(
        "what is set below /proc/sys/net of network namespaces inside",
        "",
        "clone_networks::what_is_set_of_a_network_inside_is_set_in_clones",
    ),
    lost("memory wiped on fork (MADV_WIPEONFORK)", "wiped: each clone draws other random numbers", CHECKER),
    lost(
        "OpenSSL's generator",
        "the same in all clones; a freeze warns of it",
        "generation::a_program_in_a_clone_learns_that_it_is_one",
    ),
    lost("huge pages", "none (PR_SET_THP_DISABLE): they would undo the sharing", CHECKER),
    lost(
        "TCP connections with others",
        "reset in clones, as if the other end had failed",
        "freeze::listeners_listen_on_and_connections_are_reset",
    ),
    lost(
        "TCP connections of a guest with itself that nobody has accepted, with something sent",
        "kept where the kernel tells what waits at a listener (Linux 6.12); else reset, and a freeze warns of them",
        "inner_connections::",
    ),
    lost(
        "TCP connections that are being opened (SYN_SENT)",
        "reset",
        "clone_answers::what_becomes_of_connections_that_are_half_open",
    ),
    lost("TCP connections that nobody has accepted, whose client is outside or has closed its end", "none", ""),
    lost("that a stopped child goes on (WCONTINUED), until its parent has asked", "lost", ""),
    lost(
        "the pid of who connected a unix socket (SO_PEERCRED)",
        "one that is gone",
        "freeze::unix_sockets_keep_names_peers_and_queues",
    ),
    lost(
        "multicast groups of sockets, SEM_UNDO, O_ASYNC and F_NOTIFY, session keyrings, NUMA policies, core scheduling, PR_SET_TSC, PR_SET_IO_FLUSHER",
        "none",
        "",
    ),
    lost("names of deleted files in /proc", "others", CHECKER),
    refused(
        "files of the outside, as visitors (pando exec) have them",
        &[
            "a file of the outside",
            "a pipe whose other end is outside",
            "a terminal whose other end is outside",
            "a terminal",
        ],
        "freeze_refusals::visitors_are_named",
    ),
    refused(
        "io_uring, userfaultfd, performance counters, fanotify, BPF, any other kernel object",
        &[
            "an io_uring instance",
            "a userfaultfd",
            "memory watched by userfaultfd",
            "a performance counter",
            "a fanotify group",
            "a kernel object",
        ],
        "freeze_refusals::of_files",
    ),
    refused(
        "devices, and their memory",
        &["a device", "memory of a device", "memory of {}"],
        "freeze_refusals::of_files",
    ),
    refused(
        "names alone (O_PATH) of sockets and devices",
        &["a name of what cannot be opened (O_PATH)"],
        "freeze_refusals::of_files",
    ),
    refused("pipes of packets (O_DIRECT)", &["a pipe of packets"], "freeze_refusals::of_files"),
    refused("files whose lease is being broken", &["a file whose lease"], "freeze_refusals::of_files"),
    refused(
        "deleted files with more than 1 GiB in them",
        &["a deleted file of more than"],
        "freeze_refusals::of_files",
    ),
    refused(
        "an open file whose name is gone and that has another elsewhere",
        &["a file that lost this name", "a shared mapping of a file that lost this name"],
        "clone_objects::a_mapped_file_with_a_name_elsewhere_is_refused",
    ),
    refused(
        "files in memory: names that are not UTF-8, more than 10,000",
        &["a file in memory whose name", "more than {MOST} files in memory"],
        "clone_objects::names_in_memory_that_a_clone_would_lose_are_refused",
    ),
    refused(
        "files of /proc of other processes, or open for writing",
        &["a file of /proc"],
        "freeze_refusals::of_files",
    ),
    refused(
        "pidfds of who is outside, or of threads",
        &["a descriptor of a process", "a descriptor of a thread", "a process descriptor"],
        "freeze_refusals::of_processes",
    ),
    refused("inotify of what has no path, as of /proc and /sys", &["an inotify instance"], "freeze_refusals::of_files"),
    refused(
        "epoll of what nobody has open, or that is in flight alone",
        &["an epoll instance that watches"],
        "freeze_refusals::of_sockets",
    ),
    refused(
        "epoll: watches that have fired (EPOLLONESHOT), of files that are ready for nothing",
        &["an epoll instance that has told of an event"],
        "clone_answers::watches_that_have_fired_stay_so",
    ),
    refused(
        "urgent data (MSG_OOB) that waits in a connection of the guest with itself",
        &["a unix socket in which {URGENT}", "a TCP connection in which {URGENT}"],
        "clone_answers::urgent_data_is_refused_until_it_is_received",
    ),
    refused(
        "TCP connections that have ended in both directions, with something unread",
        &["a TCP connection that has ended"],
        "clone_answers::what_becomes_of_connections_that_are_half_open",
    ),
    refused(
        "directories in memory that somebody is in the middle of listing",
        &["a directory in memory, half of which"],
        "clone_answers::directories_that_are_half_listed_are_refused",
    ),
    refused(
        "more descriptors than the daemon may have",
        &["too many descriptors"],
        "clone_checker::ten_thousand_descriptors_come_along_or_are_refused",
    ),
    refused(
        "message queues: unlinked, larger than a new system lets them, with mq_notify",
        &["a message queue", "the message queue"],
        "freeze_refusals::of_files",
    ),
    refused(
        "System V memory in part, in a namespace with others, of more than 256 MiB",
        &["a part of the System V shared memory", "a part of the shared memory"],
        "freeze_refusals::of_memory",
    ),
    refused(
        "asynchronous requests that do not end; contexts without their memory",
        &[
            "a context of asynchronous input",
            "a request of asynchronous input",
            "requests of asynchronous input",
            "memory of a context",
        ],
        "freeze_refusals::of_memory",
    ),
    refused(
        "secret memory, hugetlbfs, protection keys, guards in shared memory",
        &["secret memory", "huge pages of hugetlbfs", "memory with a protection key", "guards in shared memory"],
        "freeze_refusals::of_memory",
    ),
    refused(
        "shadow stacks, probes, segments of its own",
        &["a shadow stack", "it has a shadow stack", "a probe in its code", "a table of segments"],
        "freeze_refusals::of_memory",
    ),
    refused(
        "memory where the restorer works; more than 19 TiB of addresses",
        &["memory at {:#x}, where the restorer works", "it reserves {} TiB"],
        "freeze_refusals::of_memory",
    ),
    refused(
        "packet sockets, other families and protocols; BPF programs at sockets",
        &[
            "a socket of {}",
            "a socket of a protocol of its own",
            "a virtual machine (AF_VSOCK)",
            "a socket with a BPF program",
        ],
        "freeze_refusals::of_sockets",
    ),
    refused(
        "unix sockets with an end outside, or without a directory",
        &["a unix socket"],
        "freeze_refusals::of_sockets",
    ),
    refused(
        "unix connections that nobody has accepted, with descriptors or urgent data, or where the kernel does not tell",
        &["a unix socket to which something was sent"],
        "clone_answers::what_comes_with_descriptors_is_accepted_first",
    ),
    refused(
        "more than 512 descriptors in flight",
        &["more than {MOST_IN_FLIGHT} descriptors that wait"],
        "freeze_refusals::of_sockets",
    ),
    refused(
        "sockets of a network namespace that nobody is in",
        &["a socket of a net namespace that nobody is in"],
        "freeze_refusals::of_namespaces",
    ),
    refused(
        "working directories that only a namespace has; a root that no path leads to, or of an init",
        &["its working directory", "it has a root directory of its own"],
        "freeze_refusals::of_processes",
    ),
    refused(
        "who is traced, or stopped before it ran; who does not stop",
        &["it is being traced", "it has been stopped since", "it does not stop"],
        "freeze_refusals::of_processes",
    ),
    refused(
        "processes that share what only threads do; threads that do not",
        &["a table of descriptors", "a working directory and a umask", "a thread with"],
        "freeze_refusals::of_processes",
    ),
    refused(
        "a process whose first thread has ended; too many threads; 32 bits",
        &["its first thread has ended", "it has too many threads", "a program of 32 bits"],
        "freeze_refusals::of_processes",
    ),
    refused(
        "strict seccomp, filters that keep a clone from coming back",
        &["it is in strict seccomp mode", "a filter of its own"],
        "clone_filters::who_cannot_come_back_is_refused",
    ),
    refused(
        "a Landlock domain, keys, system calls that it handles itself",
        &["a Landlock domain", "keys of its own", "system calls that it handles itself"],
        "freeze_refusals::of_processes",
    ),
    refused(
        "an oom_score_adj that a clone could not have; a session of no ancestor",
        &["its {MEMORY_SHORTAGE}", "it is in a session"],
        "frozen_settings::who_is_ended_first_is_not_what_the_daemon_is",
    ),
    refused(
        "an init without CAP_SYS_ADMIN and CAP_CHECKPOINT_RESTORE",
        &["an init that lacks"],
        "clone_inits::what_cannot_be_had_again_is_refused",
    ),
    refused(
        "an init's control groups of threads, frozen ones, more than 1,024",
        &[
            "a file system of its own",
            "a control group of threads",
            "a control group that is frozen",
            "more than {MOST_GROUPS} control groups",
        ],
        "clone_inits::what_cannot_be_had_again_is_refused",
    ),
    refused(
        "mounts: file systems of other kinds, programs and files that only a namespace or a guest's own mount has",
        &[
            "a file system that only",
            "a file system {} that another",
            "a mnt namespace of its own",
            "a mount of files",
            "a mount that hears",
            "more than {MOST_MOUNT_CHANGES} mounts of the guest's own",
            "a program or library",
            "a program that only",
            "a file that its mnt namespace",
            "memory of a file",
            "more than {MOST_MOUNT_SPACES} mnt namespaces",
        ],
        "freeze_refusals::of_mounts",
    ),
    refused(
        "network namespaces: devices, addresses, routes, rules, neighbours named for good, queueing disciplines, packet filters",
        &[
            "a network device",
            "an address ",
            "a default route",
            "a route (",
            "a rule for routes",
            "a neighbour named",
            "a queueing discipline",
            "a loopback device",
            "more than {MOST_NET_SPACES} net namespaces",
        ],
        "freeze_refusals::of_namespaces",
    ),
    refused(
        "the guest's own network: a default route, an address, a hardware address, a rule for routes that is another than was given, or gone; what is added",
        &[
            "a network device",
            "an address that was removed",
            "a default route",
            "a route that was removed",
            "a rule for routes",
        ],
        "clone_networks::what_was_given_and_is_another_is_named",
    ),
    refused(
        "user namespaces: nested, with ids or members of the outside",
        &[
            "a user namespace",
            "a descriptor of a user namespace",
            "its user or group is nobody",
            "more than {MOST_USER_SPACES} user namespaces",
        ],
        "freeze_refusals::of_namespaces",
    ),
    refused(
        "other nested namespaces: pids, control groups, time; descriptors of the outside's",
        &[
            "a pid namespace",
            "a cgroup namespace",
            "a time namespace",
            "a {kind} namespace",
            "an ipc namespace",
            "a net namespace",
            "a mnt namespace",
            "a namespace of host names",
            "a descriptor of {} {kind}",
            "more than {MOST_IPC_SPACES} ipc namespaces",
        ],
        "freeze_refusals::of_namespaces",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::path::{Path, PathBuf};

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/clones.md");

    const MARKS: [&str; 2] = ["<!-- kinds: begin -->\n", "<!-- kinds: end -->\n"];

    fn table() -> String {
        let mut text = String::new();
        let parts =
            [(Fate::Kept, "kept"), (Fate::Lost, "lost, or another"), (Fate::Refused, "refused at the freeze, by name")];
        for (fate, head) in parts {
            let more = if fate == Fate::Refused { "" } else { "in a clone | " };
            let _ = writeln!(text, "| {head} | {more}test |\n|---|---|{}", if more.is_empty() { "" } else { "---|" });
            for kind in KINDS.iter().filter(|kind| kind.fate == fate) {
                let test = if kind.test.is_empty() { "not tried".to_owned() } else { format!("`{}`", kind.test) };
                let more = if more.is_empty() { String::new() } else { format!("{} | ", kind.more) };
                let _ = writeln!(text, "| {} | {more}{test} |", kind.what);
            }
            text.push('\n');
        }
        text
    }

    /// With `PANDO_WRITE_DOCS` in the environment the page is written anew.
    #[test]
    fn the_page_has_the_table_that_the_list_makes() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(MARKS[0]).expect("the page has the mark before the table");
        let (found, after) = rest.split_once(MARKS[1]).expect("the page has the mark behind the table");
        if std::env::var_os("PANDO_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, format!("{before}{}{}{}{after}", MARKS[0], table(), MARKS[1])).unwrap();
            return;
        }
        assert!(
            found == table(),
            "docs/clones.md: PANDO_WRITE_DOCS=1 cargo test -p pando-freeze the_page writes it anew"
        );
    }

    /// Files whose sentences are about images and clones that are wrong, not about what is refused.
    const OF_IMAGES: [&str; 20] = [
        "bpf/task_iterator.rs",
        "capture/fork_sharing.rs",
        "clone/error.rs",
        "clone/hindrance.rs",
        "clone/holder.rs",
        "clone/planted.rs",
        "clone/start.rs",
        "disk/bounded.rs",
        "disk/chain.rs",
        "disk/check.rs",
        "disk/check_namespaces.rs",
        "disk/check_numbers.rs",
        "disk/image_file.rs",
        "disk/load.rs",
        "disk/needed_calls.rs",
        "disk/wrong.rs",
        "freeze/migrate.rs",
        "fuzz.rs",
        "inspect/machine.rs",
        "kinds.rs",
    ];

    /// Sentences that begin as refusals do.
    const OTHERS: [&str; 7] = [
        "it cannot be captured",
        "it stopped for another reason",
        "its own number",
        "an address for",
        "a file without a name",
        "it has been",
        "a process of",
    ];

    /// The files of a directory, and of those in it.
    fn files_below(directory: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn files_that_are_left_out_are_there() {
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
        for name in OF_IMAGES {
            assert!(source.join(name).is_file(), "{name}");
        }
    }

    /// What this crate's files say that begins as a refusal does.
    fn sentences() -> Vec<(String, String)> {
        const BEGINNINGS: [&str; 17] = [
            "a ",
            "an ",
            "it ",
            "its ",
            "more than ",
            "too many ",
            "secret ",
            "keys ",
            "huge pages ",
            "guards ",
            "memory of ",
            "memory with ",
            "memory at ",
            "memory watched ",
            "system calls ",
            "the message queue ",
            "requests ",
        ];
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
        let mut said = Vec::new();
        for path in files_below(source) {
            let name = path.strip_prefix(source).unwrap().to_string_lossy().into_owned();
            // What a clone is found to have otherwise is no refusal.
            if name.starts_with("likeness/") || OF_IMAGES.contains(&name.as_str()) {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
                let strings = line.split('"').skip(1).step_by(2);
                let refusals =
                    strings.filter(|one| BEGINNINGS.iter().any(|word| one.starts_with(word)) && one.len() > 7);
                said.extend(refusals.map(|one| (name.clone(), one.to_owned())));
            }
        }
        said
    }

    #[test]
    fn every_refusal_has_a_row_and_every_row_its_refusal() {
        let said = sentences();
        assert!(said.len() > 80, "{said:?}");
        let rows = || KINDS.iter().flat_map(|kind| kind.said.iter());
        let silent: Vec<_> =
            said.iter().filter(|(_, one)| !rows().chain(&OTHERS).any(|row| one.starts_with(row.trim_end()))).collect();
        assert!(silent.is_empty(), "without a row in kinds.rs: {silent:#?}");
        let idle: Vec<_> = rows().filter(|row| !said.iter().any(|(_, one)| one.starts_with(row.trim_end()))).collect();
        assert!(idle.is_empty(), "rows that nobody says: {idle:#?}");
    }
}

//! Directories and files of the host shown inside, and copies in and out.

use crate::case::Case;
use crate::line::Line;
use crate::need::Need;
use crate::patience::eventually;
use crate::process;
use crate::sandbox::Sandbox;
use pando_kernel::file::tree_removal::remove_tree;
use rustix::process::Signal;
use std::os::unix::fs::MetadataExt;

pub(crate) const CASES: &[Case] = &[
    Case::new("volumes::a_directory_is_shared_both_ways", a_directory_is_shared_both_ways),
    Case::new("volumes::read_only", read_only),
    Case::new("volumes::a_file", a_file),
    Case::new("volumes::lasting_guests_have_them_too", lasting_guests_have_them_too),
    Case::new("volumes::show_what_is_mounted_below", show_what_is_mounted_below),
    Case::new("volumes::are_read_only_all_the_way_down", are_read_only_all_the_way_down),
    Case::new("volumes::mounts_that_come_and_go_show_nothing_else", mounts_that_come_and_go)
        .needs(&[Need::Root, Need::Program("mount", "mount")]),
    Case::new("volumes::what_is_mounted_below_a_live_source_is_shown", mounts_below_a_live_source)
        .needs(&[Need::Root, Need::Program("mount", "mount")]),
    Case::new("volumes::mounts_below_a_source_are_copied_or_named", mounts_below_a_source)
        .needs(&[Need::Root, Need::Program("mount", "mount")]),
    Case::new("volumes::access_lists_of_an_archive_that_are_lost_are_named", lost_lists)
        .needs(&[Need::Root, Need::Program("python3", "python3")]),
    Case::new("volumes::one_inside_another_is_seen", one_inside_another_is_seen),
    Case::new("volumes::two_for_one_place_are_refused", two_for_one_place_are_refused),
    Case::new("volumes::say_why_owners_cannot_be_mapped", say_why_owners_cannot_be_mapped),
    Case::new("copy::into_a_guest_and_out_again", into_a_guest_and_out_again),
    Case::new("copy::as_a_stream", as_a_stream),
    Case::new("copy::what_belongs_to_files_comes_along", what_belongs_to_files).needs(&[
        Need::Root,
        Need::Program("setfattr", "attr"),
        Need::Program("setcap", "libcap2-bin"),
    ]),
    Case::new("copy::leaves_the_kernels_own_files_out", leaves_the_kernels_own_files_out),
    Case::new("copy::takes_what_tar_writes_behind_the_end", takes_what_tar_writes_behind_the_end),
    Case::new("copy::writes_through_a_link", writes_through_a_link),
    Case::new("copy::brings_a_file_of_the_kernels", brings_a_file_of_the_kernels),
    Case::new("copy::names_what_is_missing", names_what_is_missing),
    Case::new("copy::a_stopped_guest_runs_for_it_alone", a_stopped_guest_runs_for_the_copy_alone),
    Case::new("copy::a_daemon_that_dies_leaves_the_guest_stopped", a_copy_whose_daemon_dies_leaves_its_guest_stopped),
    Case::new("copy::a_guests_links_do_not_lead_to_the_host", a_guests_links_do_not_lead_to_the_host),
];

fn volume(path: &std::path::Path, rest: &str) -> String {
    format!("{}:{rest}", path.display())
}

fn a_directory_is_shared_both_ways(sandbox: &Sandbox) {
    let shared = sandbox.scratch();
    std::fs::write(shared.join("of-the-host"), "from outside\n").expect("a file");
    let option = volume(&shared, "/new/place");
    let script =
        "cat /new/place/of-the-host; echo from inside >/new/place/of-the-guest; stat -c %u /new/place/of-the-host";
    sandbox.run_sh(&["-v", &option], script).run().succeeded().says("from outside\n0\n");
    let written = shared.join("of-the-guest");
    assert_eq!(std::fs::read_to_string(&written).expect("the guest's file"), "from inside\n");
    assert_eq!(written.metadata().expect("it is there").uid(), 0, "the guest's root is root in a volume");
}

/// Of a directory that a guest is made of.
fn mounts_below_a_source(sandbox: &Sandbox) {
    let (tree, disk) = (sandbox.scratch().join("tree"), sandbox.scratch().join("disk"));
    for directory in [&disk, &tree.join("memory"), &tree.join("disk")] {
        std::fs::create_dir_all(directory).expect("a directory");
    }
    std::fs::write(disk.join("file"), "on the disk\n").expect("a file");
    Line::new("cp").args(["-a"]).args([&std::path::Path::new(sandbox.busybox()).join("bin"), &tree]).ok();
    Line::new("mount").args(["-t", "tmpfs", "tmpfs"]).args([tree.join("memory")]).ok();
    Line::new("mount").args(["--bind"]).args([&disk, &tree.join("disk")]).ok();
    std::fs::write(tree.join("memory/file"), "in memory\n").expect("a file");
    let made = sandbox.pando(["create", "web", "--from"]).args([&tree]).run().succeeded();
    let said = made.err();
    let memory = tree.join("memory");
    assert!(said.contains("pando: warning: web: ") && said.contains(&memory.display().to_string()), "{said}");
    assert!(!said.contains(&tree.join("disk").display().to_string()), "{said}");
    sandbox.pando(["start", "web"]).ok();
    sandbox.exec_sh("web", "cat /disk/file; ls /memory").run().says("on the disk\n");
    for place in ["memory", "disk"] {
        Line::new("umount").args([tree.join(place)]).ok();
    }
    let quiet = sandbox.pando(["create", "plain", "--from"]).args([&tree]).run().succeeded();
    assert!(!quiet.err().contains("warning"), "{}", quiet.err());
}

/// Of a directory that a guest runs on as it lies there.
fn mounts_below_a_live_source(sandbox: &Sandbox) {
    let (tree, disk) = (sandbox.scratch().join("tree"), sandbox.scratch().join("disk"));
    for directory in [&disk.join("below"), &tree.join("memory"), &tree.join("disk")] {
        std::fs::create_dir_all(directory).expect("a directory");
    }
    std::fs::write(disk.join("file"), "on the disk\n").expect("a file");
    Line::new("cp").args(["-a"]).args([&std::path::Path::new(sandbox.busybox()).join("bin"), &tree]).ok();
    Line::new("mount").args(["-t", "tmpfs", "tmpfs"]).args([tree.join("memory")]).ok();
    Line::new("mount").args(["--bind"]).args([&disk, &tree.join("disk")]).ok();
    // What is mounted in something that is shown comes with it.
    Line::new("mount").args(["-t", "tmpfs", "tmpfs"]).args([disk.join("below")]).ok();
    Line::new("mount").args(["-t", "tmpfs", "tmpfs"]).args([tree.join("disk/below")]).ok();
    std::fs::write(tree.join("disk/below/deep"), "deep\n").expect("a file");
    let script = "cat /disk/file /disk/below/deep; ls /memory; echo x 2>/dev/null >/disk/new || echo read-only; echo y >/own && echo own";
    for more in [&[][..], &["--userns", "host"], &["-d", "--name", "job"]] {
        let run = sandbox.pando(["run", "--from"]).args([&tree]).args(more).args(["--", "sh", "-c", script]).run();
        let ended = run.succeeded();
        let memory = tree.join("memory").display().to_string();
        assert!(ended.err().contains(&memory) && ended.err().contains("is left out"), "{more:?}: {}", ended.err());
        assert!(!ended.err().contains(&tree.join("disk").display().to_string()), "{}", ended.err());
        if more.contains(&"-d") {
            sandbox.becomes("job", "absent");
        } else {
            ended.says("on the disk\ndeep\nread-only\nown\n");
        }
    }
    assert!(!disk.join("new").exists() && !tree.join("own").exists());
    // A volume for the same place is what is shown there, and written to.
    let volume = format!("{}:/disk", disk.display());
    let line =
        sandbox.pando(["run", "-v", &volume, "--from"]).args([&tree]).args(["--", "sh", "-c", "echo x >/disk/new"]);
    line.run().succeeded();
    assert!(disk.join("new").exists());
    for place in ["disk/below", "disk", "memory"] {
        Line::new("umount").args([tree.join(place)]).ok();
    }
    Line::new("umount").args([disk.join("below")]).ok();
    let quiet = sandbox.pando(["run", "--from"]).args([&tree]).args(["--", "true"]).run().succeeded();
    assert_eq!(quiet.err(), "");
}

/// tar(1) writes access control lists as text with names of users, which are somebody else's here.
fn lost_lists(sandbox: &Sandbox) {
    let script = "import io, sys, tarfile
for name, headers in (('listed', {'SCHILY.acl.access': 'user::rw-,user:5:rw-,group::r--,mask::rw-,other::r--'}), ('plain', {})):
    with tarfile.open(name + '.tar', 'w', format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo('file')
        entry.pax_headers = headers
        archive.addfile(entry, io.BytesIO())
";
    Line::new("python3").args(["-c", script]).directory(sandbox.scratch()).ok();
    let create = |name: &str| {
        let archive = sandbox.scratch().join(format!("{name}.tar"));
        sandbox.pando(["create", name, "--from"]).args([archive]).run().succeeded().err()
    };
    let said = create("listed");
    assert!(said.contains("pando: warning: listed: 1 attributes") && said.contains("--xattrs"), "{said}");
    assert!(!create("plain").contains("warning"));
}

fn read_only(sandbox: &Sandbox) {
    let shared = sandbox.scratch();
    std::fs::write(shared.join("x"), "x").expect("a file");
    let option = volume(&shared, "/ro:ro");
    for more in [&[] as &[&str], &["--userns", "host"]] {
        let script = "mount -o remount,rw,bind /ro 2>/dev/null; echo y >/ro/x; rm -f /ro/x; cat /ro/x";
        let ended = sandbox.run_sh(&[&["-v", &option], more].concat(), script).run();
        assert_eq!(ended.out(), "x", "{more:?}: {}", ended.err());
    }
    assert_eq!(std::fs::read_to_string(shared.join("x")).expect("it is there"), "x");
}

fn a_file(sandbox: &Sandbox) {
    let file = sandbox.scratch().join("hosts");
    std::fs::write(&file, "one\n").expect("a file");
    let option = volume(&file, "/etc/hosts");
    sandbox.run_sh(&["-v", &option], "cat /etc/hosts; echo two >/etc/hosts").run().succeeded().says("one\n");
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "two\n");
}

/// A directory with a file system mounted in it, which goes with the test's own mounts.
fn with_mount(sandbox: &Sandbox) -> std::path::PathBuf {
    let shared = sandbox.scratch().join("shared");
    let disk = shared.join("disk");
    std::fs::create_dir_all(&disk).expect("a directory");
    rustix::mount::mount("none", &disk, "tmpfs", rustix::mount::MountFlags::empty(), None).expect("a file system");
    std::fs::write(disk.join("data"), "on the disk\n").expect("a file");
    shared
}

fn unmount(shared: &std::path::Path) {
    rustix::mount::unmount(shared.join("disk"), rustix::mount::UnmountFlags::DETACH).expect("it is mounted");
}

fn show_what_is_mounted_below(sandbox: &Sandbox) {
    let shared = with_mount(sandbox);
    for (more, file) in [(&[] as &[&str], "one"), (&["--userns", "host"], "two")] {
        let option = volume(&shared, "/srv");
        let script = format!("cat /srv/disk/data; stat -c %u /srv/disk/data; echo kept >/srv/disk/{file}");
        sandbox.run_sh(&[&["-v", &option], more].concat(), &script).run().succeeded().says("on the disk\n0\n");
        assert_eq!(std::fs::read_to_string(shared.join("disk").join(file)).expect("it is there"), "kept\n");
    }
    unmount(&shared);
    assert_eq!(std::fs::read_dir(shared.join("disk")).expect("it is there").count(), 0, "nothing lies beneath");
}

fn are_read_only_all_the_way_down(sandbox: &Sandbox) {
    let shared = with_mount(sandbox);
    let option = volume(&shared, "/srv:ro");
    for more in [&[] as &[&str], &["--userns", "host"], &["--cap-add", "ALL", "--seccomp", "off"]] {
        let script = "mount -o remount,rw,bind /srv/disk 2>/dev/null; umount /srv/disk 2>/dev/null; cat /srv/disk/data; echo y >/srv/disk/y";
        let ended = sandbox.run_sh(&[&["-v", &option], more].concat(), script).run();
        assert_eq!(ended.out(), "on the disk\n", "{more:?}: {}", ended.err());
    }
    assert!(!shared.join("disk/y").exists());
    unmount(&shared);
}

/// Mounts below the named directory are made, moved out of it and into it, and taken away, as fast as somebody can.
/// What is mounted there is passed on to its copies (mount_namespaces(7), "Propagation"), as a host has it that systemd
/// booted.
const STORM: &str = "cd \"$0\"; mount --bind named named; mount --make-shared named; mount -t tmpfs none outside; mkdir outside/at named/a named/b; \
    echo of the host >outside/secret; mount --make-private outside; mount -t tmpfs none outside/at; echo x >outside/at/secret; : >storm; \
    while test -e storm; do mount -t tmpfs none named/a; echo in >named/a/in; mount --bind named/a named/b; umount named/b; umount named/a; \
    mount -t tmpfs none outside/at; umount -l outside/at; done";

/// What a guest sees below its volume that it must not: a mount that is not read-only, a file of elsewhere, one of its
/// own making. For as long as some mounts take.
const LOOKS: &str = "for n in 1 2 3 4 5 6 7 8; do grep ' /srv' /proc/self/mountinfo | awk '$6 !~ /^ro/'; find /srv -name secret; \
    for d in /srv /srv/a /srv/b; do touch $d/made; done 2>/dev/null; find /srv -name made; usleep 5000; done; echo looked";

fn mounts_that_come_and_go(sandbox: &Sandbox) {
    const STARTS: usize = 15;
    let place = sandbox.scratch();
    for directory in ["named", "outside"] {
        std::fs::create_dir(place.join(directory)).expect("a directory");
    }
    let storm = Line::new("sh").args(["-ec", STORM]).args([place.as_os_str()]).limit(600).start();
    eventually("mounts come and go", || place.join("storm").exists());
    let option = volume(&place.join("named"), "/srv:ro");
    for number in 0..STARTS {
        for more in [&[] as &[&str], &["--userns", "host"], &["--cap-add", "ALL", "--seccomp", "off"]] {
            let ended = sandbox.run_sh(&[&["-v", &option], more].concat(), LOOKS).run().succeeded();
            assert_eq!(ended.out(), "looked\n", "start {number}, {more:?}");
        }
    }
    // It has not come to an end by itself. A shell that was killed would leave a mount behind that comes later.
    let mut storm = storm;
    assert!(!storm.has_ended(), "the mounts had ended: nothing was shown");
    std::fs::remove_file(place.join("storm")).expect("it is the test's");
    storm.wait().succeeded();
    for directory in ["named/b", "named/a", "named", "outside/at", "outside"] {
        while rustix::mount::unmount(place.join(directory), rustix::mount::UnmountFlags::DETACH).is_ok() {}
    }
}

fn one_inside_another_is_seen(sandbox: &Sandbox) {
    let (outer, inner) = (sandbox.scratch().join("outer"), sandbox.scratch().join("inner"));
    std::fs::create_dir_all(outer.join("in")).expect("a directory");
    std::fs::create_dir(&inner).expect("a directory");
    std::fs::write(outer.join("o"), "outer\n").expect("a file");
    std::fs::write(inner.join("i"), "inner\n").expect("a file");
    let (first, second) = (volume(&outer, "/srv:ro"), volume(&inner, "/srv/in"));
    for order in [[&first, &second], [&second, &first]] {
        let options = ["-v", order[0], "-v", order[1]];
        sandbox.run_sh(&options, "cat /srv/o /srv/in/i; echo w >/srv/in/w").run().succeeded().says("outer\ninner\n");
        assert_eq!(std::fs::read_to_string(inner.join("w")).expect("it is there"), "w\n");
    }
}

fn two_for_one_place_are_refused(sandbox: &Sandbox) {
    let (one, two) = (volume(&sandbox.scratch(), "/srv/x"), volume(&sandbox.scratch(), "/srv//x/"));
    sandbox.run_sh(&["-v", &one, "-v", &two], "true").run().ended_with(125).complains_of(&["two volumes", "/srv/x"]);
    let create = sandbox.pando(["create", "web", "--from", sandbox.busybox(), "-v", &one, "-v", &two]);
    create.run().ended_with(125).complains_of(&["two volumes", "/srv/x"]);
    assert_eq!(sandbox.state("web"), "absent");
}

fn say_why_owners_cannot_be_mapped(sandbox: &Sandbox) {
    let option = volume(std::path::Path::new("/proc/sys"), "/x:ro");
    let ended =
        sandbox.run_sh(&["-v", &option], "true").run().ended_with(125).complains_of(&["kind proc", "--userns host"]);
    assert!(!ended.err().contains("may lack"), "{}", ended.err());
    sandbox.run_sh(&["-v", &option, "--userns", "host"], "test -d /x/kernel").run().succeeded();
}

fn lasting_guests_have_them_too(sandbox: &Sandbox) {
    let shared = sandbox.scratch();
    sandbox.guest("web", &["-v", &volume(&shared, "/data")]);
    sandbox.exec_sh("web", "echo 1 >/data/x").ok();
    sandbox.pando(["restart", "web"]).ok();
    sandbox.exec_sh("web", "cat /data/x").run().says("1\n");
    sandbox.pando(["stop", "web"]).ok();
    remove_tree(&shared).expect("it is the test's");
    let path = shared.to_string_lossy().into_owned();
    sandbox.pando(["start", "web"]).run().ended_with(125).complains_of(&[&path]);
    assert_eq!(sandbox.state("web"), "stopped");
}

fn into_a_guest_and_out_again(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    std::fs::create_dir_all(scratch.join("tree/below")).expect("a directory");
    std::fs::write(scratch.join("tree/below/file"), "content").expect("a file");
    std::os::unix::fs::symlink("below/file", scratch.join("tree/link")).expect("a link");
    sandbox.guest("web", &[]);
    let tree = scratch.join("tree").to_string_lossy().into_owned();
    sandbox.pando(["cp", &tree, "web:/srv/"]).ok();
    sandbox.exec_sh("web", "cat /srv/tree/link; stat -c %u:%g /srv/tree/below/file").run().says("content0:0\n");
    let back = scratch.join("back").to_string_lossy().into_owned();
    sandbox.pando(["cp", "web:/srv/tree", &back]).ok();
    assert_eq!(std::fs::read_to_string(scratch.join("back/link")).expect("it came back"), "content");
    sandbox.exec_sh("web", "head -c 10485760 /dev/urandom >/big; md5sum </big").ok();
    let big = scratch.join("big").to_string_lossy().into_owned();
    sandbox.pando(["cp", "web:/big", &big]).ok();
    sandbox.pando(["cp", &big, "web:/again"]).ok();
    sandbox.exec_sh("web", "cmp /big /again").ok();
}

/// Times to the nanosecond, names, holes, attributes, capabilities: into a guest, and out of it but for what gives
/// rights.
fn what_belongs_to_files(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let script = "mkdir tree && cd tree && echo text >a && ln a b && truncate -s 8M holes && echo end >>holes &&
        setfattr -n user.note -v mine a && setcap cap_net_raw=ep a && touch -d '2020-01-01 10:00:00.123456789' a && mkfifo fifo";
    Line::new("sh").args(["-euc", script]).directory(&scratch).ok();
    sandbox.guest("web", &[]);
    let said = sandbox.pando(["cp"]).args([scratch.join("tree/.")]).args(["web:/srv/in"]).run().succeeded().err();
    assert!(said.contains("fifo' was not copied"), "{said}");
    let inside = std::path::PathBuf::from(format!("/proc/{}/root/srv/in", sandbox.first_process("web")));
    let looks =
        "cd \"$0\"; stat -c '%h %y' a; stat -c %i a b | uniq | wc -l; [ $(stat -c %b holes) -lt 100 ] && echo sparse;
        tail -n 1 holes; getfattr --absolute-names -d a | grep user; getcap a; true";
    let is = |at: &std::path::Path, capability: &str| {
        let seen = Line::new("sh").args(["-c", looks]).args([at]).ok();
        let expected =
            format!("2 2020-01-01 10:00:00.123456789 +0000\n1\nsparse\nend\nuser.note=\"mine\"\n{capability}");
        // The last line of a file that begins with zeros has them in front.
        assert_eq!(seen.replace('\0', ""), expected, "{}", at.display());
    };
    let rooted = Line::new("getcap").args([inside.join("a")]).ok();
    assert!(rooted.contains("cap_net_raw"), "{rooted}");
    is(&inside, &rooted.replace(&inside.join("a").display().to_string(), "a"));
    sandbox.pando(["cp", "web:/srv/in/."]).args([scratch.join("out")]).ok();
    is(&scratch.join("out"), "");
}

fn as_a_stream(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let stream = sandbox.pando(["cp", "web:/etc", "-"]).run().succeeded().stdout;
    let listed = crate::line::Line::new("tar").args(["t"]).input(stream.clone()).ok();
    assert!(listed.contains("etc/passwd"), "{listed}");
    sandbox.exec_sh("web", "mkdir /copy").ok();
    sandbox.pando(["cp", "-", "web:/copy"]).input(stream).ok();
    sandbox.exec_sh("web", "cmp /etc/passwd /copy/etc/passwd").ok();
}

fn leaves_the_kernels_own_files_out(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let stream = sandbox.pando(["cp", "web:/", "-"]).run().succeeded().stdout;
    let listed = crate::line::Line::new("tar").args(["t"]).input(stream).ok();
    assert!(listed.lines().any(|name| name.trim_start_matches("./") == "proc/"), "{listed}");
    assert!(listed.contains("etc/passwd") && !listed.contains("proc/1") && !listed.contains("sys/kernel"), "{listed}");
}

fn takes_what_tar_writes_behind_the_end(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    std::fs::write(sandbox.scratch().join("given"), "given").expect("a file");
    let mut stream =
        crate::line::Line::new("tar").args(["c", "-C"]).args([sandbox.scratch()]).args(["given"]).run().stdout;
    // More than any pipe holds.
    stream.resize(stream.len() + (8 << 20), 0);
    sandbox.pando(["cp", "-", "web:/"]).input(stream).ok();
    sandbox.exec_sh("web", "cat /given").run().says("given");
}

fn writes_through_a_link(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    std::fs::write(scratch.join("new"), "new\n").expect("a file");
    let new = scratch.join("new").to_string_lossy().into_owned();
    sandbox.guest("web", &[]);
    sandbox.exec_sh("web", "echo old >/srv/real; ln -s real /srv/link; ln -s nowhere /srv/dangling").ok();
    sandbox.pando(["cp", &new, "web:/srv/link"]).ok();
    sandbox.exec_sh("web", "readlink /srv/link; cat /srv/real").run().says("real\nnew\n");
    sandbox
        .pando(["cp", &new, "web:/srv/dangling"])
        .run()
        .ended_with(125)
        .complains_of(&["a link that leads to nothing"]);
    std::fs::write(scratch.join("real"), "old\n").expect("a file");
    std::os::unix::fs::symlink("real", scratch.join("link")).expect("a link");
    let link = scratch.join("link").to_string_lossy().into_owned();
    sandbox.pando(["cp", "web:/srv/real", &link]).ok();
    assert!(scratch.join("link").is_symlink());
    assert_eq!(std::fs::read_to_string(scratch.join("real")).expect("it is there"), "new\n");
}

fn brings_a_file_of_the_kernels(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let to = sandbox.scratch().join("version");
    let path = to.to_string_lossy().into_owned();
    sandbox.pando(["cp", "web:/proc/version", &path]).ok();
    let expected = std::fs::read_to_string("/proc/version").expect("the kernel has it");
    assert_eq!(std::fs::read_to_string(&to).expect("it came"), expected);
}

fn names_what_is_missing(sandbox: &Sandbox) {
    sandbox.guest("web", &[]);
    let to = sandbox.scratch().join("to").to_string_lossy().into_owned();
    sandbox.pando(["cp", "web:/no/such", &to]).run().ended_with(125).complains_of(&["/no/such"]);
    sandbox.pando(["cp", "/no/such/file", "web:/srv"]).run().ended_with(125).complains_of(&["/no/such/file"]);
    sandbox.pando(["cp", "/etc/passwd", "nobody:/srv"]).run().ended_with(125).complains_of(&["nobody"]);
    sandbox.pando(["cp", "/etc/passwd", &to]).run().ended_with(125).complains_of(&["GUEST:PATH"]);
}

fn a_stopped_guest_runs_for_the_copy_alone(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    let place = |name: &str| scratch.join(name).to_string_lossy().into_owned();
    std::fs::write(scratch.join("given"), "given").expect("a file");
    sandbox.create("job", &["--net", "host", "--", "sh", "-c", "echo ran >>/ran; cat /srv/given; exit 7"]);
    sandbox.pando(["cp", &place("given"), "job:/srv/"]).ok();
    assert_eq!(sandbox.state("job"), "stopped");
    sandbox.pando(["cp", "job:/srv/given", &place("back")]).ok();
    assert_eq!(std::fs::read_to_string(scratch.join("back")).expect("it came back"), "given");
    sandbox.pando(["cp", "job:/ran", &place("ran")]).run().ended_with(125).complains_of(&["/ran"]);
    assert!(sandbox.status("job").expect("it is there")["exit_code"].is_null(), "nothing of its own has ended");
    sandbox.pando(["start", "job"]).ok();
    sandbox.becomes("job", "stopped");
    sandbox.pando(["logs", "job"]).run().succeeded().says("given");
    sandbox.pando(["cp", "job:/ran", &place("ran")]).ok();
    assert_eq!(std::fs::read_to_string(scratch.join("ran")).expect("it ran once"), "ran\n");
    assert_eq!(sandbox.status("job").expect("it is there")["exit_code"], 7, "a copy's end is not the guest's");
}

fn a_copy_whose_daemon_dies_leaves_its_guest_stopped(sandbox: &Sandbox) {
    sandbox.create("job", &["--", "sh", "-c", "exit 7"]);
    sandbox.pando(["start", "job"]).ok();
    sandbox.becomes("job", "stopped");
    // It waits for a stream that does not come.
    let copying = sandbox.pando(["cp", "-", "job:/srv"]).start_with_open_input();
    sandbox.becomes("job", "running");
    sandbox.pando(["start", "job"]).run().ended_with(125).complains_of(&["job", "running"]);
    process::signal(sandbox.daemon().expect("it has answered"), Signal::KILL);
    copying.signal(Signal::KILL);
    copying.wait();
    sandbox.becomes("job", "stopped");
    assert_eq!(sandbox.status("job").expect("it is there")["exit_code"], 7);
}

fn a_guests_links_do_not_lead_to_the_host(sandbox: &Sandbox) {
    let scratch = sandbox.scratch();
    std::fs::write(scratch.join("secret"), "of the host").expect("a file");
    std::fs::write(scratch.join("given"), "given").expect("a file");
    sandbox.guest("web", &[]);
    let secret = scratch.join("secret").to_string_lossy().into_owned();
    let given = scratch.join("given").to_string_lossy().into_owned();
    sandbox.exec_sh("web", &format!("ln -s {secret} /srv/out; ln -s ../../../../../../..{secret} /srv/up")).ok();
    for link in ["/srv/out", "/srv/up"] {
        sandbox.pando(["cp", &given, &format!("web:{link}")]).run();
        assert_eq!(std::fs::read_to_string(&secret).expect("it is there"), "of the host");
        let to = scratch.join("got").to_string_lossy().into_owned();
        sandbox.pando(["cp", &format!("web:{link}"), &to]).run();
        let got = std::fs::symlink_metadata(&to).is_ok_and(|found| found.is_file())
            && std::fs::read_to_string(&to).is_ok_and(|text| text == "of the host");
        assert!(!got, "{link} led out of the guest");
        let _ = std::fs::remove_file(&to);
    }
}

//! Images of registries: pulled, kept, used, removed; and registries that lie.

use crate::area::crash::daemon_with;
use crate::case::Case;
use crate::line::{Ended, Line, Started};
use crate::need::Need;
use crate::patience::eventually;
use crate::registry_image::{HERE, Images, busybox, digest, file};
use crate::registry_server::{Answer, Asked, RegistryServer};
use crate::sandbox::Sandbox;
use crate::small_disk::StateDisk;
use rustix::process::{Pid, Signal};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

pub(crate) const NEEDS: [Need; 3] = [Need::Root, Need::Program("skopeo", "skopeo"), Need::Program("tar", "tar")];

pub(crate) const WITH_A_REAL_ONE: [Need; 4] =
    [NEEDS[0], NEEDS[1], NEEDS[2], Need::Program("docker-registry", "docker-registry")];

pub(crate) const CASES: &[Case] = &[
    Case::new("registry::an_image_is_pulled_and_runs_as_it_says", pulled_and_run).needs(&NEEDS),
    Case::new("registry::layers_that_are_here_are_not_downloaded_again", shared_layers).needs(&NEEDS),
    Case::new("registry::the_image_for_this_machine_is_chosen", platforms).needs(&NEEDS),
    Case::new("registry::a_short_name_is_docker_hubs_and_a_mirror_has_it", mirror).needs(&NEEDS),
    Case::new("registry::credentials_are_where_other_tools_keep_them", credentials).needs(&NEEDS),
    Case::new("registry::a_policy_says_whose_images_are_accepted", policy).needs(&NEEDS),
    Case::new("registry::images_go_when_they_were_not_used", pruned).needs(&NEEDS),
    Case::new("registry::a_registry_that_lies_is_refused_by_name", lies).needs(&NEEDS),
    Case::new("registry::what_speaks_with_registries_has_no_powers", no_powers).needs(&NEEDS),
    Case::new("registry::what_speaks_with_registries_would_be_noticed_with_powers", powers).needs(&NEEDS),
    Case::new("registry::a_pull_that_was_cut_off_leaves_nothing", cut_off).needs(&NEEDS),
    Case::new("registry::a_client_leads_root_nowhere", no_way_by_links).needs(&NEEDS),
    Case::new("registry::a_client_brings_the_image_that_was_asked_for_or_none", another_image).needs(&NEEDS),
    Case::new("registry::a_client_has_the_credentials_of_its_registry_alone", others_credentials).needs(&NEEDS),
    Case::new("registry::an_image_in_dockers_form_is_kept_as_it_is", dockers_form).needs(&WITH_A_REAL_ONE),
    Case::new("registry::what_a_client_leaves_running_ends_with_it", nothing_stays).needs(&NEEDS),
    Case::new("registry::unlinked_files_of_a_client_leave_the_reserve", unlinked).needs(&NEEDS),
    Case::new("registry::a_pull_ends_with_its_client", left).needs(&NEEDS),
    Case::new("registry::silent_registries_hold_up_nothing_else", silent).needs(&NEEDS),
    Case::new("registry::odd_files_hold_no_commit_up", odd_files).needs(&[NEEDS[0], NEEDS[2]]),
    Case::new("registry::a_commit_ends_with_its_client", abandoned).needs(&[NEEDS[0], NEEDS[2]]),
    Case::new("registry::holes_are_no_way_to_fill_the_disk", holes).needs(&[NEEDS[0], NEEDS[2]]),
    Case::new("registry::a_guest_becomes_an_image_that_others_pull", committed).needs(&WITH_A_REAL_ONE),
    Case::new("registry::a_guest_that_runs_becomes_no_image", running_is_refused).needs(&[Need::Root]),
    Case::new("registry::a_name_that_is_a_path_is_a_path", paths).needs(&[Need::Root]),
];

/// Lets the daemon's client speak with registries without TLS.
pub(crate) fn settings(sandbox: &Sandbox, text: &str) {
    let directory = sandbox.root().join("etc/containers");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("registries.conf"), text).expect("a file");
    let accepting = r#"{"default":[{"type":"insecureAcceptAnything"}]}"#;
    std::fs::write(directory.join("policy.json"), accepting).expect("a file");
}

/// A registry whose images come from here, and whose name Pando knows.
pub(crate) fn registry(sandbox: &Sandbox, answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> RegistryServer {
    let server = RegistryServer::start(answer);
    settings(sandbox, &format!("[[registry]]\nlocation = \"{}\"\ninsecure = true\n", server.name()));
    server
}

pub(crate) fn honest(sandbox: &Sandbox, images: &Images) -> RegistryServer {
    let images = images.clone();
    registry(sandbox, move |asked| images.answer(asked))
}

/// What lies where pulled images do.
pub(crate) fn kept(sandbox: &Sandbox) -> Vec<String> {
    let entries = std::fs::read_dir(sandbox.places().pulled()).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn pulled_and_run(sandbox: &Sandbox) {
    let mut images = Images::default();
    let base = busybox(sandbox);
    images.add("1", HERE, &[base.clone(), file(sandbox, "greeting", "hello")], "echo $(cat greeting) $COLOUR $(pwd)");
    let images = Arc::new(Mutex::new(images));
    let theirs = Arc::clone(&images);
    let server = registry(sandbox, move |asked| theirs.lock().expect("nobody panics").answer(asked));
    let name = format!("{}/app:1", server.name());
    let pulled = sandbox.pando(["pull", &name]).run().succeeded();
    assert_eq!(pulled.out().trim(), name);
    assert!(pulled.err().contains("2 layers"), "{}", pulled.err());
    sandbox.pando(["run", "--from", &name]).run().succeeded().says("hello green /srv\n");
    // A second time nothing but the manifest is asked for.
    let blobs = server.asked("/blobs/").len();
    assert!(sandbox.pando(["pull", &name]).run().succeeded().err().contains("up to date"));
    sandbox
        .pando(["run", "--from", &format!("docker://{name}"), "--", "echo", "other"])
        .run()
        .succeeded()
        .says("other\n");
    assert_eq!(server.asked("/blobs/").len(), blobs);
    // What the registry has by now is pulled when that is asked for.
    let newer = [base, file(sandbox, "greeting", "good day")];
    images.lock().expect("nobody panics").add("1", HERE, &newer, "cat greeting");
    sandbox.pando(["run", "--from", &name]).run().succeeded().says("hello green /srv\n");
    sandbox.pando(["pull", &name]).run().succeeded();
    sandbox.pando(["run", "--from", &name]).run().succeeded().says("good day");
    // Neither the daemon's end nor the registry's takes it away.
    drop(server);
    sandbox.end_daemon();
    sandbox.pando(["create", "web", "--from", &name, "--start"]).ok();
    let listed: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["images", "--sources", "--json"]).ok()).expect("JSON");
    assert_eq!((&listed[0]["reference"], &listed[0]["guests"][0]), (&name.clone().into(), &"web".into()), "{listed}");
    assert_eq!(kept(sandbox).len(), 1);
    // A guest keeps what it stands on.
    sandbox.pando(["image", "rm", &name]).ok();
    assert_eq!(kept(sandbox), [""; 0]);
    sandbox.pando(["store", "gc"]).run();
    sandbox.pando(["cp", "web:/srv/greeting", "-"]).run().succeeded();
    sandbox.pando(["image", "rm", &name]).run().ended_with(125).complains_of(&["there is no image", &name]);
}

fn shared_layers(sandbox: &Sandbox) {
    let mut images = Images::default();
    let common: Vec<_> = ["a", "b", "c"].map(|name| file(sandbox, name, name)).into();
    let of = |last: &str| [&[busybox(sandbox)][..], &common, &[file(sandbox, last, last)]].concat();
    images.add("1", HERE, &of("one"), "ls");
    images.add("2", HERE, &of("two"), "ls");
    let server = honest(sandbox, &images);
    sandbox.pando(["pull", &format!("{}/app:1", server.name())]).ok();
    // Five layers and a configuration.
    assert_eq!(server.asked("/blobs/").len(), 6, "{:?}", server.asked("/blobs/"));
    let second = format!("{}/other:2", server.name());
    sandbox.pando(["pull", &second]).ok();
    assert_eq!(server.asked("/other/blobs/").len(), 2, "{:?}", server.asked("/other/blobs/"));
    sandbox.pando(["run", "--from", &second]).run().succeeded().says("a\nb\nc\ntwo\n");
    // Each is whole without the other.
    sandbox.pando(["image", "rm", &format!("{}/app:1", server.name())]).ok();
    sandbox.end_daemon();
    sandbox.pando(["run", "--from", &second, "--", "cat", "a", "two"]).run().succeeded().says("atwo");
}

fn platforms(sandbox: &Sandbox) {
    let mut images = Images::default();
    let layers = [busybox(sandbox)];
    let ours = images.add("ours", HERE, &layers, "echo ours");
    let theirs = images.add("theirs", "s390x", &layers, "echo theirs");
    images.add_index("both", &[("s390x", theirs.clone()), (HERE, ours)]);
    images.add_index("other", &[("s390x", theirs)]);
    let server = honest(sandbox, &images);
    let name = |tag: &str| format!("{}/app:{tag}", server.name());
    sandbox.pando(["run", "--from", &name("both")]).run().succeeded().says("ours\n");
    for tag in ["other", "theirs"] {
        sandbox.pando(["pull", &name(tag)]).run().ended_with(125).complains_of(&[&name(tag), "linux/s390x", HERE]);
    }
    assert_eq!(kept(sandbox).len(), 1);
    // By what it is, whatever its name becomes.
    let by_digest = format!("{}/app@{}", server.name(), digest(&images.manifests["both"].1));
    sandbox.pando(["pull", &by_digest]).run().succeeded().says(&format!("{by_digest}\n"));
}

fn mirror(sandbox: &Sandbox) {
    let mut images = Images::default();
    images.add("1.0", HERE, &[busybox(sandbox)], "echo mirrored");
    let server = honest(sandbox, &images);
    let mirrored = "[[registry]]\nprefix = \"docker.io\"\nlocation = \"docker.io\"\n[[registry.mirror]]\nlocation = \"";
    settings(sandbox, &format!("{mirrored}{}\"\ninsecure = true\n", server.name()));
    let run = sandbox.pando(["run", "--from", "greeter:1.0"]).run().succeeded().says("mirrored\n");
    assert!(run.err().contains("docker.io/library/greeter:1.0 was pulled"), "{}", run.err());
    assert!(!server.asked("/v2/library/greeter/manifests/1.0").is_empty());
    // It is here by now, and nothing is said.
    assert_eq!(sandbox.pando(["run", "--from", "greeter:1.0"]).run().succeeded().err(), "");
    sandbox.pando(["image", "rm", "greeter:1.0"]).ok();
}

fn credentials(sandbox: &Sandbox) {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "true");
    // ada:secret
    let server = registry(sandbox, move |asked| match asked.basic.as_deref() {
        Some("YWRhOnNlY3JldA==") => images.answer(asked),
        _ => Answer::Unauthorized,
    });
    let name = format!("{}/app:1", server.name());
    let home = sandbox.scratch().join("home");
    std::fs::create_dir_all(home.join(".docker")).expect("a directory");
    let path = std::env::var("PATH").expect("every test has one");
    let pull = |words: &[&str], path: &str| {
        let line = Line::new("env").args(["-u", "REGISTRY_AUTH_FILE", "-u", "DOCKER_CONFIG", "-u", "XDG_CONFIG_HOME"]);
        let line = line.args([format!("HOME={}", home.display()), format!("PATH={path}")]);
        let line = line.args([format!("XDG_RUNTIME_DIR={}", home.display())]).args([sandbox.program()]);
        line.args(["--root"]).args([sandbox.root()]).args(["pull", &name]).args(words).run()
    };
    pull(&[], &path).ended_with(125).complains_of(&[&name, "skopeo login"]);
    // A file that is named.
    let file = home.join("auth.json");
    std::fs::write(&file, format!(r#"{{"auths":{{"{}":{{"auth":"YWRhOnNlY3JldA=="}}}}}}"#, server.name()))
        .expect("a file");
    pull(&["--authfile", &file.to_string_lossy()], &path).succeeded();
    sandbox.pando(["image", "rm", &name]).ok();
    // Docker's own file, by a helper that only the caller can ask.
    std::fs::write(home.join(".docker/config.json"), r#"{"credsStore":"test"}"#).expect("a file");
    let helper = home.join("docker-credential-test");
    let script = "#!/bin/sh\nread server\necho \"$1 $server\" >\"$HOME/asked\"\necho '{\"Username\":\"ada\",\"Secret\":\"secret\"}'\n";
    std::fs::write(&helper, script).expect("a file");
    std::fs::set_permissions(&helper, PermissionsExt::from_mode(0o755)).expect("it is ours");
    pull(&[], &format!("{}:{path}", home.display())).succeeded();
    let asked = std::fs::read_to_string(home.join("asked")).expect("the helper was asked");
    assert_eq!(asked, format!("get {}\n", server.name()));
    assert_eq!(kept(sandbox).len(), 1);
}

fn policy(sandbox: &Sandbox) {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "true");
    let server = honest(sandbox, &images);
    let name = format!("{}/app:1", server.name());
    std::fs::write(sandbox.root().join("etc/containers/policy.json"), r#"{"default":[{"type":"reject"}]}"#)
        .expect("a file");
    let refused = sandbox.pando(["run", "--from", &name]).run();
    refused.ended_with(125).complains_of(&[&name, "rejected by policy", "policy.json"]);
    assert_eq!(kept(sandbox), [""; 0]);
}

fn pruned(sandbox: &Sandbox) {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "true");
    images.add("2", HERE, &[busybox(sandbox)], "false");
    let server = honest(sandbox, &images);
    let name = |tag: &str| format!("{}/app:{tag}", server.name());
    sandbox.pando(["pull", &name("1"), &name("2")]).ok();
    sandbox.pando(["create", "web", "--from", &name("1")]).ok();
    assert_eq!(sandbox.pando(["image", "prune"]).ok(), "");
    // Both have the same files: a guest stands on either.
    assert_eq!(sandbox.pando(["image", "prune", "--unused-for", "0s"]).ok(), "");
    sandbox.pando(["rm", "web"]).ok();
    let gone = sandbox.pando(["image", "prune", "--unused-for", "0s"]).ok();
    assert_eq!(gone, format!("{}\n{}\n", name("1"), name("2")));
    assert_eq!(kept(sandbox), [""; 0]);
    eventually("the layer goes", || {
        sandbox.pando(["store", "gc"]).run();
        let layers = std::fs::read_dir(sandbox.places().store().join("images")).expect("a directory").flatten();
        layers.filter(|layer| layer.file_name().len() == 64).count() == 0
    });
}

/// A registry's lie: what it says instead, and the words of the refusal.
type Lie = (&'static str, Box<dyn Fn(&Asked, &Images) -> Option<Answer> + Send + Sync>, &'static [&'static str]);

fn all_lies() -> Vec<Lie> {
    let blob = |asked: &Asked| asked.path.contains("/blobs/");
    let manifest = |asked: &Asked| asked.path.contains("/manifests/");
    let found = |kind: &'static str, body: String| Some(Answer::Found(kind, body.into_bytes()));
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    let sum = format!("sha256:{}", "a".repeat(64));
    let entry = move |kind: &str, size: &str| format!(r#"{{"mediaType":"{kind}","digest":"{sum}","size":{size}}}"#);
    let entry = Arc::new(entry);
    let of_layers = {
        let entry = Arc::clone(&entry);
        move |layers: &str| {
            format!(
                r#"{{"schemaVersion":2,"config":{},"layers":[{layers}]}}"#,
                entry("application/vnd.oci.image.config.v1+json", "2")
            )
        }
    };
    let of_layers = Arc::new(of_layers);
    let layer = "application/vnd.oci.image.layer.v1.tar";
    let many = of_layers(&vec![entry(layer, "1"); 20_000].join(","));
    let huge = of_layers(&entry(layer, "1125899906842624"));
    let negative = of_layers(&entry(layer, "-5"));
    let crowd = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, vec![entry(MANIFEST, "1"); 20_000].join(","));
    let ring = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entry(INDEX, "1"));
    vec![
        (
            "a blob of other content",
            Box::new(move |asked, images| {
                let Answer::Found(kind, mut body) = images.answer(asked) else { return None };
                blob(asked).then(|| {
                    body[0] ^= 1;
                    Answer::Found(kind, body)
                })
            }),
            &["Digest did not match"],
        ),
        ("a blob without end", Box::new(move |asked, _| blob(asked).then_some(Answer::Endless)), &["sends more than"]),
        ("a manifest without end", Box::new(move |asked, _| manifest(asked).then_some(Answer::Endless)), &[]),
        (
            "a file of this machine",
            Box::new(move |asked, _| blob(asked).then(|| Answer::Elsewhere("file:///etc/passwd".to_owned()))),
            &["unsupported protocol scheme"],
        ),
        (
            "a manifest that is a file of this machine",
            Box::new(move |asked, _| manifest(asked).then(|| Answer::Elsewhere("file:///etc/passwd".to_owned()))),
            &["unsupported protocol scheme"],
        ),
        (
            "a ring of redirections",
            Box::new(move |asked, _| blob(asked).then(|| Answer::Elsewhere(asked.path.clone()))),
            &["redirect"],
        ),
        (
            "a page in place of a manifest",
            Box::new(
                move |asked, _| {
                    if manifest(asked) { found("text/html", "<html>Welcome</html>".to_owned()) } else { None }
                },
            ),
            &[],
        ),
        (
            "a configuration in place of a manifest",
            Box::new(move |asked, _| {
                if manifest(asked) {
                    found(MANIFEST, r#"{"architecture":"amd64","os":"linux"}"#.to_owned())
                } else {
                    None
                }
            }),
            &["neither an index nor a manifest"],
        ),
        (
            "an index that names itself",
            Box::new(move |asked, _| if manifest(asked) { found(INDEX, ring.clone()) } else { None }),
            &[],
        ),
        (
            "twenty thousand layers",
            Box::new(move |asked, _| if manifest(asked) { found(MANIFEST, many.clone()) } else { None }),
            &["20000 layers"],
        ),
        (
            "twenty thousand variants",
            Box::new(move |asked, _| if manifest(asked) { found(INDEX, crowd.clone()) } else { None }),
            &[],
        ),
        (
            "a layer of a pebibyte",
            Box::new(move |asked, _| if manifest(asked) { found(MANIFEST, huge.clone()) } else { None }),
            &["no space left"],
        ),
        (
            "a layer of less than nothing",
            Box::new(move |asked, _| if manifest(asked) { found(MANIFEST, negative.clone()) } else { None }),
            &[],
        ),
        (
            "another manifest than the one that was asked for",
            Box::new(move |asked, images| {
                let Answer::Found(kind, mut body) = images.answer(asked) else { return None };
                (manifest(asked) && asked.path.contains("sha256:")).then(|| {
                    body.push(b' ');
                    Answer::Found(kind, body)
                })
            }),
            &[],
        ),
    ]
}

fn lies(sandbox: &Sandbox) {
    let mut images = Images::default();
    let layers = [busybox(sandbox)];
    let ours = images.add("plain", HERE, &layers, "true");
    images.add_index("1", &[(HERE, ours)]);
    settings(sandbox, "");
    sandbox.pando(["ls"]).ok();
    let daemon = sandbox.daemon();
    for (what, lie, words) in all_lies() {
        let images = images.clone();
        let server = RegistryServer::start(move |asked| lie(asked, &images).unwrap_or_else(|| images.answer(asked)));
        settings(sandbox, &format!("[[registry]]\nlocation = \"{}\"\ninsecure = true\n", server.name()));
        let name = format!("{}/app:1", server.name());
        eprintln!("{what}");
        let refused = sandbox.pando(["pull", &name]).limit(120).run().ended_with(125);
        eprintln!("    {}", refused.err().trim());
        refused.complains_of(&[&name]).complains_of(words);
        assert_eq!(kept(sandbox), [""; 0], "{what}");
    }
    assert_eq!(sandbox.daemon(), daemon, "the daemon is another one");
    assert!(peak(sandbox) < 200 << 10, "the daemon took {} KiB", peak(sandbox));
    eventually("nothing is left of what came", || {
        std::fs::read_dir(sandbox.places().trash()).expect("a directory").next().is_none()
    });
}

/// The most memory that the daemon has had, in KiB.
fn peak(sandbox: &Sandbox) -> u64 {
    let daemon = sandbox.daemon().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("every process has it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

const DEEDS: [&str; 4] = ["read", "write", "serve", "mount"];

/// What comes of a pull whose client is taken over.
fn pulled_with(sandbox: &Sandbox, name: &str, mistake: &str) -> Ended {
    sandbox.end_daemon();
    let daemon = daemon_with(sandbox, "PANDO_PLANT", mistake);
    let pulled = sandbox.pando(["pull", name]).run();
    sandbox.end_daemon();
    daemon.wait();
    pulled
}

fn no_powers(sandbox: &Sandbox) {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "true");
    let server = honest(sandbox, &images);
    for deed in DEEDS {
        pulled_with(sandbox, &format!("{}/{deed}:1", server.name()), &format!("registry.{deed}")).succeeded();
    }
}

/// The test above would notice.
fn powers(sandbox: &Sandbox) {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "true");
    let server = honest(sandbox, &images);
    for deed in DEEDS {
        let name = format!("{}/{deed}:1", server.name());
        let pulled = pulled_with(sandbox, &name, &format!("registry.bare.{deed}"));
        pulled.ended_with(125).complains_of(&[&name, "exit status: 4"]);
    }
}

/// A registry that tells of an image, and is silent when a part of it is asked for.
fn without_layers(sandbox: &Sandbox) -> RegistryServer {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "true");
    registry(sandbox, move |asked| match asked.path.contains("/blobs/") {
        true => Answer::Stuck,
        false => images.answer(asked),
    })
}

fn cut_off(sandbox: &Sandbox) {
    let server = without_layers(sandbox);
    let name = format!("{}/app:1", server.name());
    sandbox.pando(["ls"]).ok();
    let pull = sandbox.pando(["pull", &name]).start();
    eventually("a layer is asked for", || !server.asked("/blobs/").is_empty());
    let daemon = sandbox.daemon().and_then(Pid::from_raw).expect("it runs");
    rustix::process::kill_process(daemon, Signal::KILL).expect("it is ours");
    pull.wait().ended_with(125);
    sandbox.pando(["ls"]).ok();
    assert_eq!(kept(sandbox), [""; 0]);
    let speaks = |process: &crate::process::Process| process.words.iter().any(|word| word.contains(&server.name()));
    eventually("what spoke with the registry has ended", || !crate::process::all().iter().any(speaks));
}

/// A daemon whose clients are taken over, as far as such a one gets: what speaks with registries is this script, which
/// finds the true one at /usr/bin/skopeo. It ends with the sandbox's daemon.
pub(crate) fn taken_over(sandbox: &Sandbox, script: &str) -> Started {
    let programs = sandbox.scratch().join("programs");
    std::fs::create_dir_all(&programs).expect("a directory");
    let skopeo = programs.join("skopeo");
    std::fs::write(&skopeo, format!("#!/bin/sh\n{script}")).expect("a file");
    std::fs::set_permissions(&skopeo, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let begin = "mount --bind \"$1\" /usr/local/bin && exec \"$0\" --root \"$2\" daemon";
    let line = Line::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", begin]);
    let daemon = line.args([sandbox.program()]).args([&programs]).args([sandbox.root()]).limit(600).start();
    eventually("the daemon listens", || std::os::unix::net::UnixStream::connect(sandbox.places().socket()).is_ok());
    daemon
}

/// Two images that have a layer in common, and their registry.
fn two_images(sandbox: &Sandbox) -> (RegistryServer, [String; 2]) {
    let mut images = Images::default();
    let common = busybox(sandbox);
    images.add("1", HERE, std::slice::from_ref(&common), "true");
    images.add("2", HERE, &[common, file(sandbox, "second", "second")], "cat second");
    let server = honest(sandbox, &images);
    let names = ["first:1", "second:2"].map(|name| format!("{}/{name}", server.name()));
    (server, names)
}

/// A client that asked for a manifest puts a link where blobs of other images are lent to the next.
fn no_way_by_links(sandbox: &Sandbox) {
    let (_server, [first, second]) = two_images(sandbox);
    let bait = sandbox.scratch().join("bait");
    std::fs::create_dir_all(&bait).expect("a directory");
    let script = format!(
        "/usr/bin/skopeo \"$@\"; code=$?\n\
         case \"$*\" in *inspect*second*) rm -r layout/blobs/sha256 && ln -s {} layout/blobs/sha256;; esac\n\
         exit $code\n",
        bait.display()
    );
    let daemon = taken_over(sandbox, &script);
    sandbox.pando(["pull", &first]).ok();
    let pulled = sandbox.pando(["pull", &second]).run();
    let made: Vec<_> = std::fs::read_dir(&bait).expect("it was just made").flatten().collect();
    assert!(made.is_empty(), "root made {made:?}");
    pulled.succeeded();
    sandbox.pando(["run", "--from", &second]).run().succeeded().says("second");
    sandbox.end_daemon();
    daemon.wait();
}

/// A client shows the manifest that is asked for, and brings another image.
fn another_image(sandbox: &Sandbox) {
    let (_server, [first, second]) = two_images(sandbox);
    let other =
        "case \"$*\" in *copy*first@*) set -- $(echo \"$*\" | sed 's,first@sha256:[0-9a-f]*,second:2,');; esac\n";
    let daemon = taken_over(sandbox, &format!("{other}exec /usr/bin/skopeo \"$@\"\n"));
    let refused = sandbox.pando(["pull", &first]).run();
    assert_eq!(kept(sandbox), [""; 0], "it is taken for '{first}'");
    refused.ended_with(125).complains_of(&[&first, "the configuration 'sha256:", "is not there"]);
    sandbox.pando(["pull", &second]).ok();
    sandbox.end_daemon();
    daemon.wait();
}

/// A client says what it finds: credentials of the image's registry and of its mirror, and no others.
fn others_credentials(sandbox: &Sandbox) {
    settings(
        sandbox,
        "[[registry]]\nlocation = \"one.example\"\n[[registry.mirror]]\nlocation = \"mirror.example/one\"\n",
    );
    let file = sandbox.scratch().join("auth.json");
    let names = ["one.example/team", "one.example/other", "mirror.example", "bank.example"];
    let auths: serde_json::Map<_, _> =
        names.iter().map(|name| ((*name).to_owned(), serde_json::json!({ "auth": "YWRhOnNlY3JldA==" }))).collect();
    std::fs::write(&file, serde_json::json!({ "auths": auths }).to_string()).expect("a file");
    let says = "echo \"time=x level=fatal msg=\\\"it has $(tr '\"' \"'\" <auth.json)\\\"\" >&2\nexit 1\n";
    let daemon = taken_over(sandbox, says);
    let name = "one.example/team/app:1";
    let said = sandbox.pando(["pull", name, "--authfile"]).args([&file]).run().ended_with(125);
    let said = said.complains_of(&[name, "it has", names[0], names[2]]);
    assert!(!said.err().contains(names[1]) && !said.err().contains(names[3]), "{}", said.err());
    sandbox.end_daemon();
    daemon.wait();
}

/// What was digested is what is kept: not what it becomes in OCI's form.
fn dockers_form(sandbox: &Sandbox) {
    let (_server, registry) = real(sandbox);
    let [plain, dockers, again] = ["plain", "dockers", "again"].map(|name| format!("{registry}/team/{name}:1"));
    sandbox.pando(["create", "web", "--from", sandbox.busybox(), "--", "echo", "as it was"]).ok();
    sandbox.pando(["commit", "web", &plain]).ok();
    sandbox.pando(["push", &plain]).ok();
    let words = ["copy", "--src-tls-verify=false", "--dest-tls-verify=false", "--format=v2s2"];
    Line::new("skopeo").args(words).args([format!("docker://{plain}"), format!("docker://{dockers}")]).ok();
    sandbox.pando(["pull", &dockers]).ok();
    let listed: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["images", "--sources", "--json"]).ok()).expect("JSON");
    let image = listed.as_array().and_then(|all| all.iter().find(|image| image["reference"] == dockers.as_str()));
    let digest = image.and_then(|image| image["digest"].as_str()).expect("it is there").to_owned();
    let has =
        |name: &String| sandbox.places().pulled().join(name).join("blobs").join(digest.replace(':', "/")).exists();
    assert!(kept(sandbox).iter().any(has), "no image has the manifest {digest}");
    sandbox.pando(["run", "--from", &dockers]).run().succeeded().says("as it was\n");
    // It can be sent on.
    sandbox.pando(["push", &dockers, &again]).ok();
    sandbox.pando(["run", "--from", &again]).run().succeeded().says("as it was\n");
}

/// One leaves a process behind, in a session of its own, with nothing open that anybody waits for.
fn nothing_stays(sandbox: &Sandbox) {
    let (_server, [first, _]) = two_images(sandbox);
    let script = "setsid sleep 91827364 </dev/null >/dev/null 2>&1 &\nexec /usr/bin/skopeo \"$@\"\n";
    let daemon = taken_over(sandbox, script);
    sandbox.pando(["pull", &first]).ok();
    let stays = |process: &crate::process::Process| process.words.iter().any(|word| word == "91827364");
    let left: Vec<_> = crate::process::all().into_iter().filter(stays).map(|process| process.pid).collect();
    left.iter().for_each(|pid| crate::process::kill(*pid));
    assert!(left.is_empty(), "{left:?} go on");
    sandbox.end_daemon();
    daemon.wait();
}

/// One fills the disk by files that it has open and that have no name.
fn unlinked(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 256, &["mkfs.ext4", "-q", "-O", "^has_journal"]);
    let (_server, [first, _]) = two_images(sandbox);
    let script = "number=0\nwhile :; do\n\
         (exec 9>\"held$number\"; rm \"held$number\"; yes | head -c 3000000 >&9; sleep 1000) &\n\
         number=$((number + 1))\nsleep 0.05\ndone\n";
    let daemon = taken_over(sandbox, script);
    sandbox.pando(["pull", &first]).limit(120).run().ended_with(125).complains_of(&[&first, "no space left"]);
    assert_eq!(kept(sandbox), [""; 0]);
    sandbox.end_daemon();
    daemon.wait();
    drop(disk);
}

/// A registry that says nothing more keeps nobody's work going who has gone.
fn left(sandbox: &Sandbox) {
    let server = without_layers(sandbox);
    let name = format!("{}/app:1", server.name());
    let pull = sandbox.pando(["pull", &name]).start();
    eventually("a layer is asked for", || !server.asked("/blobs/").is_empty());
    pull.signal(Signal::KILL);
    pull.wait();
    let speaks = |process: &crate::process::Process| process.words.iter().any(|word| word.contains(&server.name()));
    eventually("what spoke with the registry has ended", || !crate::process::all().iter().any(speaks));
    eventually("its directory has gone", || kept(sandbox).is_empty());
}

/// More of them than the daemon has threads, as an orchestrator pulls that was given their names.
fn silent(sandbox: &Sandbox) {
    let server = registry(sandbox, |asked| match asked.path.contains("/manifests/") {
        true => Answer::Stuck,
        false => Answer::Found("application/json", b"{}".to_vec()),
    });
    sandbox.pando(["ls"]).ok();
    let names = (0..20).map(|number| format!("{}/app{number}:1", server.name()));
    let pulls: Vec<_> = names.map(|name| sandbox.pando(["pull", &name]).limit(300).start()).collect();
    eventually("manifests are asked for", || server.asked("/manifests/").len() >= 8);
    sandbox.pando(["create", "web", "--from", sandbox.busybox(), "--", "sleep", "1000"]).limit(60).ok();
    sandbox.pando(["start", "web"]).limit(60).ok();
    sandbox.pando(["kill", "web"]).limit(60).ok();
    sandbox.becomes("web", "stopped");
    sandbox.pando(["commit", "web", "team/web:1"]).limit(60).ok();
    // Those that wait for their turn end with who asked, too.
    for pull in pulls {
        pull.signal(Signal::KILL);
        pull.wait();
    }
    let speaks = |process: &crate::process::Process| process.words.iter().any(|word| word.contains(&server.name()));
    eventually("what spoke with the registry has ended", || !crate::process::all().iter().any(speaks));
    eventually("their directories have gone", || kept(sandbox).len() == 1);
    assert!(server.asked("/manifests/").len() < 20, "all twenty were asked for at once");
}

/// A guest over a tree of busybox, to which something was done.
fn over_a_tree(sandbox: &Sandbox, prepare: impl FnOnce(&std::path::Path)) {
    let tree = sandbox.scratch().join("tree");
    Line::new("cp").args(["-a"]).args([sandbox.busybox()]).args([&tree]).ok();
    std::fs::create_dir_all(tree.join("srv")).expect("a directory");
    prepare(&tree.join("srv"));
    sandbox.pando(["create", "web", "--from"]).args([&tree]).args(["--", "true"]).ok();
}

/// Of each socket tar says that it leaves it out: more than a pipe holds.
fn odd_files(sandbox: &Sandbox) {
    over_a_tree(sandbox, |place| {
        let place = std::fs::File::open(place).expect("it was just made");
        for number in 0..600 {
            let name = format!("{number:0>200}");
            let (kind, mode) = (rustix::fs::FileType::Socket, rustix::fs::Mode::from_raw_mode(0o644));
            rustix::fs::mknodat(&place, name, kind, mode, 0).expect("root makes sockets");
        }
    });
    sandbox.pando(["commit", "web", "team/web:1"]).ok();
    sandbox.pando(["rm", "web"]).ok();
}

fn abandoned(sandbox: &Sandbox) {
    let hole = |place: &std::path::Path| {
        std::fs::File::create(place.join("hole")).and_then(|file| file.set_len(3 << 30)).expect("a file");
    };
    over_a_tree(sandbox, hole);
    let commit = sandbox.pando(["commit", "web", "team/web:1"]).start();
    let daemon = || sandbox.daemon().expect("it runs");
    let is_packed = |process: &crate::process::Process| {
        process.words.first().is_some_and(|word| word == "tar") && crate::process::parent(process.pid) == Some(daemon())
    };
    eventually("its files are packed", || crate::process::all().iter().any(is_packed));
    commit.signal(Signal::KILL);
    commit.wait();
    eventually("the guest is free", || sandbox.pando(["rm", "web"]).run().code() == 0);
    assert_eq!(kept(sandbox), [""; 0], "there is an image that nobody waits for");
}

fn holes(sandbox: &Sandbox) {
    let disk = StateDisk::make(sandbox, 256, &["mkfs.ext4", "-q", "-O", "^has_journal"]);
    sandbox.guest("web", &["--", "sleep", "1000"]);
    sandbox.exec_sh("web", "truncate -s 100G /hole").ok();
    sandbox.pando(["kill", "web"]).ok();
    sandbox.becomes("web", "stopped");
    let refused = sandbox.pando(["commit", "web", "team/web:1"]).run().ended_with(125);
    refused.complains_of(&["web", "no space left", "100.0 GiB", "holes"]);
    assert_eq!(kept(sandbox), [""; 0]);
    drop(disk);
}

/// A real registry, and its name.
/// What it was asked for lies in the file `registry.log` of the scratch directory.
pub(crate) fn real(sandbox: &Sandbox) -> (Started, String) {
    // Free a moment ago: nobody else is given it soon.
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let name = free.expect("a free port").to_string();
    let data = sandbox.scratch().join("registry");
    let file = sandbox.scratch().join("registry.yml");
    let text = format!(
        "version: 0.1\nlog: {{level: error, accesslog: {{disabled: false}}}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{name}'}}\n",
        data.display()
    );
    std::fs::write(&file, text).expect("a file");
    let log = data.with_extension("log");
    let begin = "exec docker-registry serve \"$0\" >\"$1\" 2>&1";
    let server = Line::new("sh").args(["-c", begin]).args([&file, &log]).limit(600).start();
    eventually("the registry listens", || std::net::TcpStream::connect(&name).is_ok());
    settings(sandbox, &format!("[[registry]]\nlocation = \"{name}\"\ninsecure = true\n"));
    (server, name)
}

fn committed(sandbox: &Sandbox) {
    let (_server, registry) = real(sandbox);
    let name = format!("{registry}/team/web:2");
    let options = ["-e", "COLOUR=red", "-w", "/srv", "-u", "7:8", "--stop-signal", "QUIT"];
    let command = ["--", "sh", "-c", "cat kept; echo $COLOUR $(id -u):$(id -g)"];
    sandbox.pando(["create", "web", "--from", sandbox.busybox()]).args(options).args(command).ok();
    let file = sandbox.scratch().join("kept");
    std::fs::write(&file, "what the guest wrote\n").expect("a file");
    sandbox.pando(["cp", &file.to_string_lossy(), "web:/srv/kept"]).ok();
    sandbox.pando(["commit", "nobody", &name]).run().ended_with(125).complains_of(&["nobody"]);
    sandbox.pando(["push", &name]).run().ended_with(125).complains_of(&[&name, "images --sources"]);
    sandbox.pando(["commit", "web", &name]).run().succeeded().says(&format!("{name}\n"));
    let expected = "what the guest wrote\nred 7:8\n";
    sandbox.pando(["run", "--from", &name]).run().succeeded().says(expected);
    sandbox.pando(["push", &name]).run().succeeded().says(&format!("{name}\n"));
    // What comes back is the same.
    sandbox.pando(["image", "rm", &name]).ok();
    sandbox.pando(["rm", "web"]).ok();
    sandbox.pando(["run", "--from", &name]).run().succeeded().says(expected);
    // Under another name, and for others' eyes.
    let other = format!("{registry}/copies/web:old");
    sandbox.pando(["push", &name, &other]).ok();
    let words = ["inspect", "--tls-verify=false", "--config"];
    let config = Line::new("skopeo").args(words).args([format!("docker://{other}")]).ok();
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!(
        (&config["config"]["StopSignal"], &config["config"]["User"]),
        (&"QUIT".into(), &"7:8".into()),
        "{config}"
    );
    assert_eq!(kept(sandbox).len(), 1);
}

fn running_is_refused(sandbox: &Sandbox) {
    sandbox.guest("web", &["--", "sleep", "1000"]);
    sandbox.pando(["commit", "web", "team/web:1"]).run().ended_with(125).complains_of(&["web", "stop it first"]);
    let digest = format!("team/web@sha256:{}", "a".repeat(64));
    sandbox.pando(["commit", "web", &digest]).run().ended_with(125).complains_of(&["by a tag"]);
    assert_eq!(kept(sandbox), [""; 0]);
}

fn paths(sandbox: &Sandbox) {
    let here = sandbox.scratch();
    std::fs::create_dir_all(here.join("busybox")).expect("a directory");
    Line::new("cp").args(["-a"]).args([format!("{}/.", sandbox.busybox())]).args([here.join("busybox")]).ok();
    let run = sandbox.pando(["run", "--from", "busybox", "--", "echo", "a path"]).directory(&here).run();
    run.succeeded().says("a path\n");
    let missing = sandbox.pando(["run", "--from", "missing.tar", "--", "true"]).directory(&here).run();
    missing.ended_with(125).complains_of(&["missing.tar"]);
    sandbox.pando(["pull", "No Image"]).run().ended_with(125).complains_of(&["No Image", "cannot be the name"]);
}

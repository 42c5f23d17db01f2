//! A bundle: a directory with a configuration and a root, which an OCI runtime makes a container of.

use crate::line::Line;
use crate::sandbox::{Sandbox, command};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A bundle of busybox, and a directory for the state of what is made of it.
#[derive(Debug)]
pub(crate) struct Bundle {
    path: PathBuf,
    states: PathBuf,
    /// The groups of its containers, below the root of each hierarchy.
    group: String,
}

/// The runtime: beside the command that is tested, unless `PANDO_TEST_RUNTIME` names another.
pub(crate) fn runtime() -> PathBuf {
    let beside = || command().map(|command| command.with_file_name("pando-oci"));
    std::env::var_os("PANDO_TEST_RUNTIME").map_or_else(|| beside().expect("the command is there"), PathBuf::from)
}

impl Bundle {
    /// Makes one, whose process runs a shell's script.
    pub(crate) fn new(sandbox: &Sandbox, script: &str) -> Self {
        let path = sandbox.scratch().join("bundle");
        std::fs::create_dir(&path).expect("a directory");
        Line::new("cp").args(["-a", sandbox.busybox()]).args([path.join("rootfs")]).ok();
        let group = format!("pando-oci-test-{}", sandbox.root().file_name().expect("a name").to_string_lossy());
        let bundle = Self { path, states: sandbox.scratch().join("states"), group };
        bundle.oci(["spec", "--bundle"]).args([&bundle.path]).ok();
        bundle.change(|config| {
            config["process"]["terminal"] = json!(false);
            config["process"]["args"] = json!(["sh", "-c", script]);
            config["root"]["readonly"] = json!(false);
            let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
            if !namespaces.contains(&json!({"type": "cgroup"})) {
                namespaces.push(json!({"type": "cgroup"}));
            }
            config["linux"]["cgroupsPath"] = json!(format!("/{}/box", bundle.group));
        });
        bundle
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A path in its root.
    pub(crate) fn inside(&self, path: &str) -> PathBuf {
        self.path.join("rootfs").join(path)
    }

    /// Where the runtime keeps the states.
    pub(crate) fn states(&self) -> &Path {
        &self.states
    }

    /// The configuration, changed.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Value)) {
        let path = self.path.join("config.json");
        let text = std::fs::read_to_string(&path).expect("the configuration is there");
        let mut config = serde_json::from_str(&text).expect("it is JSON");
        change(&mut config);
        std::fs::write(&path, config.to_string()).expect("it is ours");
    }

    /// A command line of the runtime.
    pub(crate) fn oci<W: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Line {
        Line::new(runtime()).args(["--root".as_ref(), self.states.as_os_str()]).args(words)
    }

    /// Runs a container to its end.
    pub(crate) fn run(&self) -> Line {
        self.oci(["run", "--bundle"]).args([&self.path]).args(["box"])
    }

    /// What creates a container, which has nobody's pipes.
    pub(crate) fn creation(&self) -> Line {
        let script = r#"exec "$0" "$@" </dev/null >"$OUT" 2>&1"#;
        let line = Line::new("sh").args(["-c", script]).args([runtime().as_os_str(), "--root".as_ref()]);
        let line = line.args([self.states.as_os_str(), "create".as_ref(), "--bundle".as_ref(), self.path.as_os_str()]);
        line.args(["box"]).env("OUT", self.path.join("said"))
    }

    /// Creates a container.
    pub(crate) fn create(&self) {
        let ended = self.creation().run();
        assert_eq!(ended.code(), 0, "{}", self.said());
    }

    /// What a created container, and the command that created it, have printed.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.path.join("said")).unwrap_or_default()
    }

    /// The state of the container.
    pub(crate) fn state(&self) -> Value {
        serde_json::from_str(&self.oci(["state", "box"]).ok()).expect("a state is JSON")
    }

    /// The word for it.
    pub(crate) fn status(&self) -> String {
        self.state()["status"].as_str().unwrap_or_default().to_owned()
    }

    /// The container's groups that are there.
    pub(crate) fn groups(&self) -> Vec<PathBuf> {
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").expect("control groups are mounted").flatten();
        let roots = hierarchies.map(|entry| entry.path()).chain(["/sys/fs/cgroup".into()]);
        roots.map(|root| root.join(&self.group).join("box")).filter(|group| group.exists()).collect()
    }

    /// Nothing is left of any container.
    pub(crate) fn is_clear(&self) {
        assert_eq!(self.groups(), Vec::<PathBuf>::new());
        let left: Vec<_> = std::fs::read_dir(&self.states).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        self.oci(["delete", "--force", "box"]).run();
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for root in hierarchies.map(|entry| entry.path()).chain(["/sys/fs/cgroup".into()]) {
            let _ = std::fs::remove_dir(root.join(&self.group));
        }
    }
}

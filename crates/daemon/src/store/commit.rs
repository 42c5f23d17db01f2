//! An image of a guest's files, as other engines and registries take it.
//!
//! ```text
//!   image that it came from ─▶ its layers ───────────────────┐
//!   guest at rest ─ its root ─┬─ what differs ─▶ one layer ──┤
//!                             │   spec ─▶ configuration ─────┴─▶ manifest ─▶ a layout among the pulled images
//!                             └─ the store: what is made of the image waits for no unpacking
//! ```

use crate::failure;
use crate::lifecycle::create::at_rest;
use crate::state::daemon::Daemon;
use crate::state::pulled_images::PulledRecord;
use crate::store::collect::blocking;
use crate::store::image_base::ImageBase;
use crate::store::layers::{Maker, is_heard};
use crate::store::new_layer;
use crate::store::pulled_images::{self, Made, Order};
use crate::store::tree_difference::Difference;
use pando_api::{Fault, HealthCheck, Progress, Protocol, PulledImage, Spec};
use pando_guest::Places;
use pando_guest::root::LayerStore;
use pando_guest::source::registry::Reference;
use pando_guest::source::{Source, Suggested};
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::mount::Tree;
use pando_reader::sha256;
use serde_json::{Value, json};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Makes an image of a guest that does not run, under a name of a registry's.
pub(crate) async fn commit(
    daemon: &Rc<Daemon>,
    guest: &str,
    image: &str,
    progress: mpsc::Sender<Progress>,
) -> Result<PulledImage, Fault> {
    let reference = Order::read(image, false, Vec::new())?.reference;
    if reference.digest().is_some() {
        return Err(failure::bad(image, format!("'{image}' names an image by its digest; name the new one by a tag")));
    }
    let _at_it = daemon.pulled.commits.one(image, || is_heard(&progress)).await?;
    let (spec, record) = {
        let guest = daemon.guest(guest)?;
        (guest.spec.borrow().clone(), guest.record.borrow().clone())
    };
    let (doing, tree) = at_rest(daemon, guest).await?;
    let base = ImageBase::of(daemon, &record).await?;
    let work = Work {
        places: daemon.places.clone(),
        guest: guest.to_owned(),
        tree,
        base,
        reference,
        spec,
        store: Arc::clone(&daemon.store),
        progress,
    };
    let made = blocking(move || work.run()).await?;
    drop(doing);
    Ok(pulled_images::add(daemon, made?, "commit"))
}

/// What the thread that writes the image needs.
struct Work {
    places: Places,
    guest: String,
    tree: Tree,
    /// The image that the guest came from.
    base: Option<ImageBase>,
    reference: Reference,
    spec: Spec,
    store: Arc<LayerStore>,
    progress: mpsc::Sender<Progress>,
}

impl Work {
    fn run(self) -> Result<Made, Fault> {
        let name = self.reference.whole();
        let layout = self.layout()?;
        let suggested = suggested(&self.spec, self.base.as_ref());
        let maker = Maker {
            places: self.places.clone(),
            source: Source::Guest(self.guest.clone()),
            spec: Spec::default(),
            name: "pulled".to_owned(),
            owner: format!("image '{name}'"),
            guest_tree: Some(self.tree_path()),
            layout: None,
            store: Arc::clone(&self.store),
            progress: self.progress.clone(),
        };
        let made = maker.make()?;
        let record = PulledRecord::new(name, &layout.digest, (layout.layers, layout.size), (made.name, suggested));
        pulled_images::settle(&self.places, layout.directory, &record)?;
        Ok(Made { record, lease: made.lease })
    }

    fn tree_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.tree.as_fd().as_raw_fd()))
    }

    fn tell(&self, stage: &str) {
        let _ = self.progress.send(Progress { stage: stage.to_owned(), done: 0, total: None });
    }

    /// The layers of the image: those of the image that the guest came from, and one with what differs.
    fn layout(&self) -> Result<Layout, Fault> {
        let doing = format!("making the image '{}' of guest '{}'", self.reference.whole(), self.guest);
        let base = self.base.as_ref().map(|base| base.open(&self.places, &self.store)).transpose()?.flatten();
        let make = || -> io::Result<Layout> {
            let made = tempfile::Builder::new().prefix(".new-").tempdir_in(self.places.pulled())?;
            let directory = TemporaryDirectory::of(made.keep());
            let blobs = directory.path().join("blobs/sha256");
            std::fs::create_dir_all(&blobs)?;
            let mut layers = Layers::default();
            if let Some(base) = &base {
                self.tell("looking for what is new");
                base.lend(directory.path())?;
                base.layers.iter().for_each(|layer| {
                    layers.add((&layer.media_type, &layer.digest, layer.size), &layer.plain);
                });
            }
            let below = base.as_ref().map(|base| base.mounted.tree.as_fd());
            let wanted = || is_heard(&self.progress);
            let difference = Difference::between(self.tree.as_fd(), below, &wanted)?;
            if !difference.is_empty() || layers.descriptors.is_empty() {
                self.tell("packing the files");
                let new = new_layer::write(&self.tree_path(), &difference, &blobs, &self.progress)?;
                layers.add((LAYER, &new.digest, new.size), &new.digest);
            }
            Layout::write(directory, &layers, |plain| config(&self.spec, self.base.as_ref(), plain))
        };
        make().map_err(|error| failure::io(&doing, &self.guest, &error))
    }
}

/// The layers of an image, lowest first.
#[derive(Default)]
struct Layers {
    descriptors: Vec<Value>,
    /// The digests of what they contain.
    plain: Vec<String>,
    size: u64,
}

impl Layers {
    fn add(&mut self, (kind, digest, size): (&str, &str, u64), plain: &str) {
        self.descriptors.push(json!({ "mediaType": kind, "digest": digest, "size": size }));
        self.plain.push(plain.to_owned());
        self.size = self.size.saturating_add(size);
    }
}

struct Layout {
    directory: TemporaryDirectory,
    digest: String,
    layers: i64,
    size: i64,
}

impl Layout {
    /// Writes the documents of an image whose layers are there.
    fn write(
        directory: TemporaryDirectory,
        layers: &Layers,
        config: impl FnOnce(&[String]) -> Value,
    ) -> io::Result<Self> {
        let blobs = directory.path().join("blobs/sha256");
        let config = blob(&blobs, CONFIG, &config(&layers.plain))?;
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers.descriptors });
        let manifest = blob(&blobs, MANIFEST, &manifest)?;
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
        std::fs::write(directory.path().join("index.json"), index.to_string())?;
        std::fs::write(directory.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let documents: i64 = [&config, &manifest].iter().filter_map(|blob| blob["size"].as_i64()).sum();
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let size = number(layers.size).saturating_add(documents);
        let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
        Ok(Self { directory, digest, layers: number(layers.descriptors.len() as u64), size })
    }
}

/// Writes a document as a blob; the answer is its descriptor.
fn blob(blobs: &Path, kind: &str, document: &Value) -> io::Result<Value> {
    let content = document.to_string();
    let digest = sha256(content.as_bytes());
    let path = blobs.join(digest.trim_start_matches("sha256:"));
    std::fs::write(&path, &content)?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444))?;
    Ok(json!({ "mediaType": kind, "digest": digest, "size": content.len() }))
}

/// How the guest is run, as images say it; ports that the image it came from has are its own.
fn suggested(spec: &Spec, base: Option<&ImageBase>) -> Suggested {
    let mut exposed: Vec<String> = spec.publish.iter().map(shown).collect();
    exposed.extend(base.into_iter().flat_map(ImageBase::exposed).cloned());
    exposed.sort_unstable();
    exposed.dedup();
    Suggested {
        entrypoint: Vec::new(),
        command: spec.init.iter().chain(&spec.command).cloned().collect(),
        environment: spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        workdir: spec.workdir.clone(),
        user: spec.user.clone(),
        stop_signal: spec.stop_signal.clone(),
        exposed,
        health: spec.health.clone().filter(|health| health.wanted().is_some()),
    }
}

/// A check as docker's configurations have it: times in nanoseconds.
fn health_check(health: &HealthCheck) -> Value {
    const SECOND: u64 = 1_000_000_000;
    let test: Vec<&str> = std::iter::once("CMD").chain(health.command.iter().map(String::as_str)).collect();
    let mut check = json!({ "Test": test });
    for (name, seconds) in
        [("Interval", health.interval), ("Timeout", health.timeout), ("StartPeriod", health.start_period)]
    {
        if let Some(seconds) = seconds {
            check[name] = (u64::from(seconds) * SECOND).into();
        }
    }
    if let Some(retries) = health.retries {
        check["Retries"] = retries.into();
    }
    check
}

fn config(spec: &Spec, base: Option<&ImageBase>, plain: &[String]) -> Value {
    let Suggested { command, environment, workdir, user, stop_signal, exposed, health, .. } = suggested(spec, base);
    let ports: serde_json::Map<String, Value> = exposed.into_iter().map(|port| (port, json!({}))).collect();
    let mut run = json!({ "Cmd": command, "Env": environment, "Labels": spec.labels, "ExposedPorts": ports });
    for (name, value) in [("WorkingDir", workdir), ("User", user), ("StopSignal", stop_signal)] {
        if let Some(value) = value {
            run[name] = value.into();
        }
    }
    if let Some(health) = &health {
        run["Healthcheck"] = health_check(health);
    }
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture, "os": "linux", "config": run,
        "rootfs": { "type": "layers", "diff_ids": plain },
    })
}

fn shown(port: &pando_api::Publication) -> String {
    format!("{}/{}", port.guest, if port.protocol == Protocol::Udp { "udp" } else { "tcp" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_says_how_the_guest_is_run() {
        let spec = Spec {
            command: vec!["serve".into(), "-v".into()],
            env: [("A".to_owned(), "b=c".to_owned())].into(),
            publish: vec!["8080:80".parse().unwrap(), "53:53/udp".parse().unwrap()],
            user: Some("ada".into()),
            ..Spec::default()
        };
        let made = config(&spec, None, &["sha256:00".to_owned()]);
        assert_eq!(made["config"]["Cmd"], json!(["serve", "-v"]));
        assert_eq!(made["config"]["Env"], json!(["A=b=c"]));
        assert_eq!(made["config"]["ExposedPorts"], json!({ "80/tcp": {}, "53/udp": {} }));
        assert_eq!(made["config"]["User"], "ada");
        assert_eq!(made["rootfs"]["diff_ids"], json!(["sha256:00"]));
    }
}

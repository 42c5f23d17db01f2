//! Images for registries, made here blob by blob.

use crate::line::Line;
use crate::registry_server::{Answer, Asked};
use crate::sandbox::Sandbox;
use std::collections::BTreeMap;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// What this machine is called in an image.
pub(crate) const HERE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// The digest of some content.
pub(crate) fn digest(content: &[u8]) -> String {
    let said = Line::new("sha256sum").input(content).ok();
    format!("sha256:{}", said.split_whitespace().next().expect("a hash and a name"))
}

/// What a registry has: documents by tag or digest, and blobs by digest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Images {
    pub(crate) manifests: BTreeMap<String, (&'static str, Vec<u8>)>,
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
}

impl Images {
    /// Adds a blob of some kind; the answer is its descriptor.
    pub(crate) fn blob(&mut self, kind: &str, content: &[u8]) -> serde_json::Value {
        let digest = digest(content);
        self.blobs.insert(digest.clone(), content.to_vec());
        serde_json::json!({ "mediaType": kind, "digest": digest, "size": content.len() })
    }

    /// Adds an image with a command; the answer is its manifest's descriptor.
    pub(crate) fn add(
        &mut self,
        tag: &str,
        architecture: &str,
        layers: &[Vec<u8>],
        command: &str,
    ) -> serde_json::Value {
        let plain: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let config = serde_json::json!({
            "architecture": architecture, "os": "linux", "rootfs": { "type": "layers", "diff_ids": plain },
            "config": { "Cmd": ["sh", "-c", command], "Env": ["PATH=/bin", "COLOUR=green"], "WorkingDir": "/srv" },
        });
        let config = self.blob(CONFIG, config.to_string().as_bytes());
        let layers: Vec<_> = layers.iter().map(|layer| self.blob(LAYER, layer)).collect();
        let manifest =
            serde_json::json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        self.document(tag, MANIFEST, manifest.to_string().into_bytes())
    }

    /// Adds an index of images, by their descriptors and what machines they are for.
    pub(crate) fn add_index(&mut self, tag: &str, of: &[(&str, serde_json::Value)]) {
        let entry = |(architecture, descriptor): &(&str, serde_json::Value)| {
            let mut entry = descriptor.clone();
            entry["platform"] = serde_json::json!({ "os": "linux", "architecture": architecture });
            entry
        };
        let manifests: Vec<_> = of.iter().map(entry).collect();
        let index = serde_json::json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
        self.document(tag, INDEX, index.to_string().into_bytes());
    }

    /// Adds any document under a tag and its digest.
    pub(crate) fn document(&mut self, tag: &str, kind: &'static str, content: Vec<u8>) -> serde_json::Value {
        let digest = digest(&content);
        let descriptor = serde_json::json!({ "mediaType": kind, "digest": digest, "size": content.len() });
        self.manifests.insert(tag.to_owned(), (kind, content.clone()));
        self.manifests.insert(digest, (kind, content));
        descriptor
    }

    /// What an honest registry says.
    pub(crate) fn answer(&self, asked: &Asked) -> Answer {
        let last = asked.path.rsplit('/').next().unwrap_or_default();
        if asked.path == "/v2/" {
            return Answer::Found("application/json", b"{}".to_vec());
        }
        let found = match asked.path.contains("/manifests/") {
            true => self.manifests.get(last).cloned(),
            false => self.blobs.get(last).map(|content| ("application/octet-stream", content.clone())),
        };
        found.map_or(Answer::Missing, |(kind, content)| Answer::Found(kind, content))
    }
}

/// A layer with the tree of busybox.
pub(crate) fn busybox(sandbox: &Sandbox) -> Vec<u8> {
    let file = sandbox.scratch().join("busybox.tar");
    Line::new("tar").args(["--numeric-owner", "-C", sandbox.busybox(), "-cf"]).args([&file]).args(["."]).ok();
    std::fs::read(file).expect("it was just made")
}

/// A layer with a file.
pub(crate) fn file(sandbox: &Sandbox, name: &str, content: &str) -> Vec<u8> {
    let tree = sandbox.scratch().join(format!("tree-{name}"));
    std::fs::create_dir_all(tree.join("srv")).expect("a directory");
    std::fs::write(tree.join("srv").join(name), content).expect("a file");
    let file = sandbox.scratch().join(format!("{name}.tar"));
    Line::new("tar").args(["--numeric-owner", "-C"]).args([&tree]).args(["-cf"]).args([&file]).args(["."]).ok();
    std::fs::read(file).expect("it was just made")
}

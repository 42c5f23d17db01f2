//! Whose images are accepted: signatures with keys that are made here.

use crate::area::registry::{NEEDS, kept, registry};
use crate::case::{Case, skip};
use crate::line::Line;
use crate::need::Need;
use crate::registry_image::{HERE, Images, busybox, digest, file};
use crate::registry_server::{Answer, RegistryServer};
use crate::sandbox::Sandbox;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const WITH_GPG: [Need; 4] = [NEEDS[0], NEEDS[1], NEEDS[2], Need::Program("gpg", "gnupg")];
const WITH_OPENSSL: [Need; 4] = [NEEDS[0], NEEDS[1], NEEDS[2], Need::Program("openssl", "openssl")];

pub(crate) const CASES: &[Case] = &[
    Case::new("registry::an_image_has_to_be_signed_by_the_key_that_the_policy_names", gpg).needs(&WITH_GPG),
    Case::new("registry::a_signature_beside_the_image_counts_by_its_key", sigstore).needs(&WITH_OPENSSL),
    Case::new("registry::a_policy_whose_key_is_not_there_accepts_nothing", no_key).needs(&NEEDS),
];

/// What a registry has besides images: the signature of the image that was asked for.
type Signature = Arc<Mutex<Option<Vec<u8>>>>;

/// A registry with two images, `1` and `2`, and what it says where signatures are looked for.
fn signing(sandbox: &Sandbox) -> (RegistryServer, Arc<Mutex<Images>>, Signature) {
    let mut images = Images::default();
    images.add("1", HERE, &[busybox(sandbox)], "echo one");
    images.add("2", HERE, &[busybox(sandbox), file(sandbox, "two", "two")], "echo two");
    let (images, signature) = (Arc::new(Mutex::new(images)), Signature::default());
    let (theirs, shown) = (Arc::clone(&images), Arc::clone(&signature));
    let server = registry(sandbox, move |asked| {
        if asked.path.starts_with("/signatures/") {
            let shown = shown.lock().expect("nobody panics").clone();
            let first = shown.filter(|_| asked.path.ends_with("/signature-1"));
            return first.map_or(Answer::Missing, |bytes| Answer::Found("application/octet-stream", bytes));
        }
        theirs.lock().expect("nobody panics").answer(asked)
    });
    (server, images, signature)
}

/// Has images of the registry accepted where they are signed so.
fn accept(sandbox: &Sandbox, server: &RegistryServer, requirement: &serde_json::Value, places: &str) {
    let containers = sandbox.root().join("etc/containers");
    let policy = serde_json::json!({
        "default": [{ "type": "reject" }],
        "transports": { "docker": { server.name(): [requirement] } },
    });
    std::fs::write(containers.join("policy.json"), policy.to_string()).expect("a file");
    std::fs::create_dir_all(containers.join("registries.d")).expect("a directory");
    let text = format!("docker:\n  {}:\n    {places}\n", server.name());
    std::fs::write(containers.join("registries.d/test.yaml"), text).expect("a file");
}

fn refused(sandbox: &Sandbox, name: &str, words: &[&str]) {
    let refused = sandbox.pando(["pull", name]).run().ended_with(125);
    refused.complains_of(&[name, "policy.json"]).complains_of(words);
    let arrived = std::fs::read_dir(sandbox.root().join("var/lib/pando/arrived")).map_or(0, Iterator::count);
    assert_eq!((kept(sandbox).len(), arrived), (0, 0), "something of a refused image is kept");
}

/// A key of GnuPG's, with a directory of its own; what serves it ends with this.
struct Key {
    home: PathBuf,
    public: PathBuf,
    fingerprint: String,
}

impl Key {
    fn new(sandbox: &Sandbox, name: &str) -> Self {
        use std::os::unix::fs::DirBuilderExt;
        let home = sandbox.scratch().join(format!("gpg-{name}"));
        std::fs::DirBuilder::new().mode(0o700).create(&home).expect("a directory");
        let gpg = |words: &[&str]| {
            Line::new("gpg").args(["--batch", "--quiet", "--homedir"]).args([&home]).args(words).limit(600).ok()
        };
        gpg(&["--passphrase", "", "--quick-gen-key", name, "rsa2048", "sign", "never"]);
        let listed = gpg(&["--list-keys", "--with-colons"]);
        let fingerprint = listed.lines().find_map(|line| line.strip_prefix("fpr:")).expect("a fingerprint");
        let fingerprint = fingerprint.trim_matches(':').to_owned();
        let public = sandbox.scratch().join(format!("{name}.asc"));
        std::fs::write(&public, gpg(&["--armor", "--export", name])).expect("a file");
        Self { home, public, fingerprint }
    }

    /// The signature of a manifest that it belongs to an image of this name.
    fn sign(&self, sandbox: &Sandbox, manifest: &[u8], name: &str) -> Vec<u8> {
        let [document, signature] = ["manifest", "signature"].map(|name| sandbox.scratch().join(name));
        std::fs::write(&document, manifest).expect("a file");
        let line = Line::new("skopeo").env("GNUPGHOME", &self.home).args(["standalone-sign", "--output"]);
        line.args([&signature, &document]).args([name, &self.fingerprint]).ok();
        std::fs::read(signature).expect("skopeo wrote it")
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        Line::new("gpgconf").args(["--homedir"]).args([&self.home]).args(["--kill", "all"]).run();
    }
}

fn gpg(sandbox: &Sandbox) {
    let (server, images, signature) = signing(sandbox);
    let (ours, others) = (Key::new(sandbox, "ours"), Key::new(sandbox, "others"));
    let name = format!("{}/app:1", server.name());
    let requirement = serde_json::json!({ "type": "signedBy", "keyType": "GPGKeys", "keyPath": ours.public });
    accept(sandbox, &server, &requirement, &format!("lookaside: http://{}/signatures", server.name()));
    let manifest = |tag: &str| images.lock().expect("nobody panics").manifests[tag].1.clone();
    let show = |bytes: Vec<u8>| *signature.lock().expect("nobody panics") = Some(bytes);
    refused(sandbox, &name, &["A signature was required"]);
    show(others.sign(sandbox, &manifest("1"), &name));
    refused(sandbox, &name, &["Source image rejected"]);
    // One of ours, of another image and of another name.
    show(ours.sign(sandbox, &manifest("2"), &name));
    refused(sandbox, &name, &["Source image rejected"]);
    show(ours.sign(sandbox, &manifest("1"), &format!("{}/other:1", server.name())));
    refused(sandbox, &name, &["Source image rejected"]);
    show(ours.sign(sandbox, &manifest("1"), &name));
    sandbox.pando(["pull", &name]).ok();
    sandbox.pando(["run", "--from", &name]).run().succeeded().says("one\n");
}

/// A key of openssl's: the file of its private half, and that of its public one.
fn key(sandbox: &Sandbox, name: &str) -> [PathBuf; 2] {
    let [private, public] = ["pem", "pub"].map(|ending| sandbox.scratch().join(format!("{name}.{ending}")));
    let words = ["ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out"];
    Line::new("openssl").args(words).args([&private]).ok();
    Line::new("openssl").args(["ec", "-in"]).args([&private]).args(["-pubout", "-out"]).args([&public]).ok();
    [private, public]
}

/// Adds a signature as cosign does: an image of its own, whose name tells which one it is for.
fn attach(sandbox: &Sandbox, images: &mut Images, (private, name): (&PathBuf, &str), signed: &str) {
    let image = digest(&images.manifests["1"].1);
    let payload = serde_json::json!({
        "critical": {
            "identity": { "docker-reference": name },
            "image": { "docker-manifest-digest": signed },
            "type": "cosign container image signature",
        },
        "optional": null,
    });
    let file = sandbox.scratch().join("payload");
    std::fs::write(&file, payload.to_string()).expect("a file");
    let sign = "openssl dgst -sha256 -sign \"$0\" \"$1\" | base64 -w0";
    let signature = Line::new("sh").args(["-c", sign]).args([private, &file]).ok();
    let kind = "application/vnd.dev.cosign.simplesigning.v1+json";
    let mut layer = images.blob(kind, payload.to_string().as_bytes());
    layer["annotations"] = serde_json::json!({ "dev.cosignproject.cosign/signature": signature });
    let config = images.blob("application/vnd.oci.image.config.v1+json", b"{}");
    let manifest = "application/vnd.oci.image.manifest.v1+json";
    let document =
        serde_json::json!({ "schemaVersion": 2, "mediaType": manifest, "config": config, "layers": [layer] });
    let tag = format!("{}.sig", image.replace(':', "-"));
    images.document(&tag, manifest, document.to_string().into_bytes());
}

fn sigstore(sandbox: &Sandbox) {
    let (server, images, _) = signing(sandbox);
    let name = format!("{}/app:1", server.name());
    let [[ours, public], [others, _]] = ["ours", "others"].map(|name| key(sandbox, name));
    let requirement = serde_json::json!({ "type": "sigstoreSigned", "keyPath": public });
    accept(sandbox, &server, &requirement, "use-sigstore-attachments: true");
    let of = |tag: &str| digest(&images.lock().expect("nobody panics").manifests[tag].1);
    let (first, second) = (of("1"), of("2"));
    let sign = |key: &PathBuf, signed: &str| {
        attach(sandbox, &mut images.lock().expect("nobody panics"), (key, &name), signed);
    };
    refused(sandbox, &name, &["Source image rejected"]);
    sign(&others, &first);
    refused(sandbox, &name, &["Source image rejected"]);
    sign(&ours, &second);
    refused(sandbox, &name, &["Source image rejected"]);
    sign(&ours, &first);
    let pulled = sandbox.pando(["pull", &name]).run();
    if pulled.err().contains("sigstore disabled") {
        // Debian's: what cannot be checked is not accepted either.
        refused(sandbox, &name, &["built without sigstore"]);
        skip("skopeo was built without sigstore here: what it would accept is not tried");
    }
    pulled.succeeded();
    sandbox.pando(["run", "--from", &name]).run().succeeded().says("one\n");
}

fn no_key(sandbox: &Sandbox) {
    let (server, ..) = signing(sandbox);
    let name = format!("{}/app:1", server.name());
    let missing = sandbox.scratch().join("missing.asc");
    let requirement = serde_json::json!({ "type": "signedBy", "keyType": "GPGKeys", "keyPath": missing });
    accept(sandbox, &server, &requirement, &format!("lookaside: http://{}/signatures", server.name()));
    let refused = sandbox.pando(["pull", &name]).run().ended_with(125);
    refused.complains_of(&[&name, "missing.asc", "cannot be read"]);
    assert_eq!(kept(sandbox), [""; 0]);
}

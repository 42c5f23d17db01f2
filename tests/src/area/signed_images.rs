//! Signed exports: an import says who signed, and refuses what was changed, what is not signed where that is wanted,
//! and whom nobody believes.

use super::crash::daemon_with;
use crate::case::Case;
use crate::image_export::ImageExport;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::sandbox::Sandbox;
use serde_json::json;
use std::path::{Path, PathBuf};

const NEEDS: &[Need] = &[Need::Root, Need::Program("tar", "tar"), Need::Program("ssh-keygen", "openssh-client")];

pub(crate) const CASES: &[Case] = &[
    Case::new("signed_images::the_signer_is_named", the_signer_is_named).needs(NEEDS),
    Case::new("signed_images::an_export_to_a_pipe_is_signed_too", through_a_pipe).needs(NEEDS),
    Case::new("signed_images::another_key_is_refused", another_key).needs(NEEDS),
    Case::new("signed_images::no_part_can_be_changed", no_part_can_be_changed).needs(NEEDS),
    Case::new("signed_images::no_byte_of_the_file_can_be_changed", no_byte_can_be_changed).needs(NEEDS),
    Case::new("signed_images::one_that_ends_too_early_is_refused", ends_too_early).needs(NEEDS),
    Case::new("signed_images::one_without_a_signature_is_refused_where_that_is_wanted", unsigned).needs(NEEDS),
    Case::new("signed_images::older_exports_are_read_as_not_signed", older_ones).needs(NEEDS),
    Case::new("signed_images::expired_revoked_and_other_signatures_are_refused", expired_and_revoked).needs(NEEDS),
    Case::new("signed_images::hostile_signatures_harm_nobody", hostile_signatures).needs(NEEDS),
    Case::new("signed_images::what_looks_at_a_signature_has_no_powers", no_powers).needs(NEEDS),
    Case::new("signed_images::without_its_walls_it_would", without_walls).needs(NEEDS),
];

/// A frozen guest, keys, and a list of who is believed.
struct Signing<'a> {
    sandbox: &'a Sandbox,
    scratch: PathBuf,
}

impl<'a> Signing<'a> {
    fn new(sandbox: &'a Sandbox) -> Self {
        let signing = Self { sandbox, scratch: sandbox.scratch() };
        signing.key("ada");
        signing.list("signers", "ada@example.org", "", "ada");
        sandbox.guest("web", &["--", "sh", "-c", "exec sleep 100000"]);
        sandbox.pando(["freeze", "web", "warm", "--wait"]).ok();
        signing
    }

    fn path(&self, name: &str) -> String {
        self.scratch.join(name).to_string_lossy().into_owned()
    }

    fn key(&self, name: &str) {
        Line::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", &self.path(name)]).ok();
    }

    /// Writes a list of signers with one line.
    fn list(&self, name: &str, who: &str, options: &str, key: &str) {
        let public = std::fs::read_to_string(self.scratch.join(format!("{key}.pub"))).expect("it was made");
        std::fs::write(self.scratch.join(name), format!("{who} {options} {public}")).expect("there is room");
    }

    fn export(&self, key: &str) -> PathBuf {
        let file = self.path("signed.pando");
        self.sandbox.pando(["image", "export", "--sign", &self.path(key), "warm", &file]).ok();
        file.into()
    }

    fn import(&self, file: &Path, words: &[&str]) -> Ended {
        self.sandbox.pando(["image", "import", &file.to_string_lossy(), "copy"]).args(words).run()
    }

    /// Imports one that has to be signed by the list.
    fn verified(&self, file: &Path, list: &str) -> Ended {
        self.import(file, &["--verify", &self.path(list)])
    }

    /// Wants it to be refused with these words, and nothing of it to be there.
    #[track_caller]
    fn refused(&self, file: &Path, words: &[&str]) {
        self.is_refusal(self.verified(file, "signers"), words);
    }

    #[track_caller]
    fn is_refusal(&self, ended: Ended, words: &[&str]) {
        ended.ended_with(125).complains_of(words);
        assert_eq!(self.sandbox.pando(["images", "--quiet"]).ok(), "warm\n", "it is listed");
        let images: Vec<_> =
            std::fs::read_dir(self.sandbox.places().images()).expect("it is there").flatten().collect();
        assert_eq!(images.len(), 1, "something of it is among the images: {images:?}");
    }

    fn forget_copy(&self) {
        self.sandbox.pando(["image", "rm", "copy"]).ok();
    }
}

fn the_signer_is_named(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let file = signing.export("ada");
    let imported = signing.verified(&file, "signers").succeeded();
    assert_eq!(imported.out(), "copy\n");
    assert!(imported.err().starts_with("copy: signed by ada@example.org (ED25519 SHA256:"), "{}", imported.err());
    let inspected: serde_json::Value =
        serde_json::from_str(&sandbox.pando(["image", "inspect", "copy"]).ok()).expect("it is JSON");
    assert_eq!(inspected["status"]["signed_by"], json!("ada@example.org"));
    // Also by the next daemon.
    sandbox.end_daemon();
    let listed = sandbox.pando(["images", "--json"]).ok();
    assert!(listed.contains("ada@example.org"), "{listed}");
    signing.forget_copy();
    // Without a list the key alone is known.
    let imported = signing.import(&file, &["--json"]).succeeded();
    let said: serde_json::Value = serde_json::from_str(&imported.out()).expect("it is JSON");
    assert_eq!(said["signed_by"], json!(null));
    assert!(said["signing_key"].as_str().is_some_and(|key| key.starts_with("ED25519 SHA256:")), "{said}");
    signing.forget_copy();
    sandbox.settings(&format!("[images]\nsigners = \"{}\"\nrequire_signature = true\n", signing.path("signers")));
    signing.import(&file, &[]).succeeded().complains_of(&["signed by ada@example.org"]);
    let clones = sandbox.pando(["clone", "copy", "web2"]).run();
    clones.succeeded();
}

fn through_a_pipe(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let script = r#""$0" image export --sign "$1" warm - | "$0" image import --verify "$2" - copy"#;
    let piped = Line::new("sh")
        .args(["-euc", script, &sandbox.program().to_string_lossy(), &signing.path("ada"), &signing.path("signers")])
        .env("PANDO_ROOT", sandbox.root())
        .run();
    piped.succeeded().says("copy\n").complains_of(&["copy: signed by ada@example.org"]);
}

fn another_key(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    signing.key("eve");
    let file = signing.export("eve");
    signing.refused(&file, &["signed with the key ED25519 SHA256:", "not believed", "Nothing was imported"]);
    // A list that is there by default is gone by as well.
    let list = sandbox.places().allowed_signers();
    std::fs::create_dir_all(list.parent().expect("it has one")).expect("there is room");
    std::fs::copy(signing.path("signers"), list).expect("there is room");
    signing.is_refusal(signing.import(&file, &[]), &["not believed"]);
}

type Change = (&'static str, fn(&mut ImageExport));

fn no_part_can_be_changed(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let whole = ImageExport::read(&signing.export("ada"));
    let changes: [Change; 6] = [
        ("name", |export| export.part("name").push(b'x')),
        ("about", |export| export.change_spec("hostname", json!("other"))),
        ("tree", |export| assert!(export.replace_path("/proc", "/porc") + export.replace_path("/", "/x") > 0)),
        ("memory", |export| *export.part("memory").last_mut().expect("it has some") ^= 1),
        ("files", |export| *export.part("files").last_mut().expect("it has some") ^= 1),
        ("a part of another", |export| {
            let first = export.part("tree").remove(0);
            export.part("about").push(first);
        }),
    ];
    for (name, change) in changes {
        let mut export = whole.clone();
        change(&mut export);
        let file = sandbox.scratch().join("changed.pando");
        export.write(&file);
        eprintln!("{name}");
        signing.refused(&file, &["its signature does not fit its content", "Nothing was imported"]);
        // Nobody has to ask for that.
        signing.is_refusal(signing.import(&file, &[]), &["its signature does not fit its content"]);
    }
    // Put together again as it was, it is the same.
    let file = sandbox.scratch().join("same.pando");
    whole.write(&file);
    signing.verified(&file, "signers").succeeded();
}

fn no_byte_can_be_changed(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let stream = std::fs::read(signing.export("ada")).expect("it was written");
    let file = sandbox.scratch().join("changed.pando");
    let places = (0..20).map(|number| number * (stream.len() - 1) / 19).chain(stream.len() - 300..stream.len() - 290);
    for place in places {
        let mut changed = stream.clone();
        changed[place] ^= 0x10;
        std::fs::write(&file, changed).expect("there is room");
        signing.refused(&file, &["import"]);
    }
    let more = [&stream[..], &stream[stream.len() / 2..]].concat();
    std::fs::write(&file, more).expect("there is room");
    signing.refused(&file, &["import"]);
}

fn ends_too_early(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let stream = std::fs::read(signing.export("ada")).expect("it was written");
    let file = sandbox.scratch().join("short.pando");
    for missing in [1, 50, 300, 1000, stream.len() / 2, stream.len() - 10] {
        std::fs::write(&file, &stream[..stream.len() - missing]).expect("there is room");
        signing.refused(&file, &["import"]);
    }
    // Whoever cannot sign leaves nothing that could be taken for an export.
    let public = signing.path("ada.pub");
    std::fs::remove_file(signing.path("ada")).expect("it was made");
    let out = signing.path("none.pando");
    sandbox
        .pando(["image", "export", "--sign", &public, "warm", &out])
        .env("SSH_AUTH_SOCK", "/nowhere")
        .run()
        .complains_of(&["ssh-keygen did not sign"]);
    assert!(!Path::new(&out).exists(), "there is an export");
}

fn unsigned(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let file = sandbox.scratch().join("plain.pando");
    sandbox.pando(["image", "export", "warm", &file.to_string_lossy()]).ok();
    signing.refused(&file, &["it is not signed, and has to be", "--sign", "Nothing was imported"]);
    sandbox.settings("[images]\nrequire_signature = true\n");
    signing.is_refusal(signing.import(&file, &[]), &["nobody has said by whom", "signers ="]);
    sandbox.settings(&format!("[images]\nsigners = \"{}\"\nrequire_signature = true\n", signing.path("signers")));
    signing.is_refusal(signing.import(&file, &[]), &["it is not signed, and has to be"]);
    // One who has mistyped that wants it all the same.
    sandbox.settings("[images]\nrequire_signatur = true\n");
    signing.is_refusal(signing.import(&file, &[]), &["did you mean 'require_signature'", "put that right first"]);
    // A signature that was taken off is none.
    let mut export = ImageExport::read(&signing.export("ada"));
    export.signature.clear();
    let stripped = sandbox.scratch().join("stripped.pando");
    export.write(&stripped);
    sandbox.settings("");
    signing.refused(&stripped, &["it is not signed, and has to be"]);
    signing.import(&file, &[]).succeeded().complains_of(&["copy: not signed"]);
}

fn older_ones(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let mut export = ImageExport::read(&signing.export("ada"));
    export.version = 1;
    let file = sandbox.scratch().join("older.pando");
    export.write(&file);
    signing.refused(&file, &["it is not signed, and has to be"]);
    signing.import(&file, &[]).succeeded().complains_of(&["copy: not signed"]);
    export.version = 3;
    export.write(&file);
    signing.forget_copy();
    signing.refused(&file, &["not what 'pando image export' wrote"]);
}

fn expired_and_revoked(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let file = signing.export("ada");
    for (list, options) in [
        ("expired", "valid-before=\"20200101\""),
        ("not yet", "valid-after=\"29990101\""),
        ("others", "namespaces=\"git,file\""),
    ] {
        signing.list(list, "ada@example.org", options, "ada");
        signing.is_refusal(signing.verified(&file, list), &["not believed"]);
    }
    signing.list("fitting", "ada@example.org,ada", "namespaces=\"git,pando-image\",valid-after=\"20200101\"", "ada");
    signing.verified(&file, "fitting").succeeded().complains_of(&["signed by ada@example.org"]);
    signing.forget_copy();
    sandbox.settings(&format!("[images]\nrevoked = \"{}\"\n", signing.path("ada.pub")));
    signing.refused(&file, &["not believed", "revoked"]);
    // A signature of the same statement that was made for something else.
    sandbox.settings("");
    let mut export = ImageExport::read(&file);
    let statement = signing.path("statement");
    std::fs::write(&statement, export.statement()).expect("there is room");
    let sign = |namespace: &str| {
        Line::new("ssh-keygen")
            .args(["-q", "-Y", "sign", "-n", namespace, "-f", &signing.path("ada"), &statement])
            .ok();
        let signature = std::fs::read(format!("{statement}.sig")).expect("it was made");
        std::fs::remove_file(format!("{statement}.sig")).expect("it was made");
        signature
    };
    for (namespace, is_right) in [("git", false), ("pando-image", true)] {
        export.signature = sign(namespace);
        export.write(&file);
        if is_right {
            signing.verified(&file, "signers").succeeded();
        } else {
            signing.refused(&file, &["its signature does not fit its content"]);
        }
    }
}

fn hostile_signatures(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let mut export = ImageExport::read(&signing.export("ada"));
    let right = export.signature.clone();
    let armoured =
        |body: &str| format!("-----BEGIN SSH SIGNATURE-----\n{body}\n-----END SSH SIGNATURE-----\n").into_bytes();
    let cut = right.len() / 2;
    let hostile = [
        b"signature".to_vec(),
        vec![0; 64 << 10],
        armoured(""),
        armoured(&"QUFB".repeat(15_000)),
        // The length of what follows is 4 GiB.
        armoured("U1NIU0lHAAAAAf////8AAAALc3NoLWVkMjU1MTkAAAAg"),
        armoured("U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTn/////"),
        [&right[..cut], &right[cut + 1..]].concat(),
        right[..cut].to_vec(),
        [&right[..], &right[..]].concat(),
    ];
    let daemon = sandbox.daemon();
    let file = sandbox.scratch().join("hostile.pando");
    for (number, signature) in hostile.into_iter().enumerate() {
        export.signature = signature;
        export.write(&file);
        eprintln!("signature {number}");
        if number == 8 {
            // ssh-keygen reads the first one, which is right.
            signing.verified(&file, "signers").succeeded();
            signing.forget_copy();
        } else {
            signing.refused(&file, &["its signature does not fit its content"]);
        }
    }
    export.signature = vec![b'A'; (64 << 10) + 1];
    export.write(&file);
    signing.refused(&file, &["a part of it is too long"]);
    assert_eq!(sandbox.daemon(), daemon, "the daemon is another one");
}

const DEEDS: [&str; 4] = ["read", "write", "connect", "fork"];

/// What comes of an import whose verifier is taken over.
fn imported_with(signing: &Signing<'_>, file: &Path, mistake: &str) -> Ended {
    signing.sandbox.end_daemon();
    let daemon = daemon_with(signing.sandbox, "PANDO_PLANT", mistake);
    let imported = signing.verified(file, "signers");
    signing.sandbox.end_daemon();
    daemon.wait();
    imported
}

fn no_powers(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let file = signing.export("ada");
    for deed in DEEDS {
        imported_with(&signing, &file, &format!("verifier.{deed}")).succeeded();
        signing.forget_copy();
    }
}

/// The test above would notice.
fn without_walls(sandbox: &Sandbox) {
    let signing = Signing::new(sandbox);
    let file = signing.export("ada");
    for deed in DEEDS {
        let imported = imported_with(&signing, &file, &format!("verifier.bare.{deed}"));
        imported.ended_with(125).complains_of(&["ended oddly", "exit status: 4"]);
    }
}

//! OCI images, made here blob by blob.

use super::archive_maker::{Maker, gzip, zstd};
use super::{Place, message};
use crate::source::{Source, SourceError, Summary};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// The files of a layout.
#[derive(Default)]
struct Layout {
    files: Vec<(String, Vec<u8>)>,
    manifests: Vec<String>,
}

impl Layout {
    fn blob(&mut self, bytes: &[u8]) -> String {
        let digest = digest(bytes);
        self.files.push((format!("blobs/{}", digest.replace(':', "/")), bytes.to_vec()));
        format!(r#""digest":"{digest}","size":{}"#, bytes.len())
    }

    /// Adds an image; `layers` are plain and packed.
    fn image(mut self, platform: &str, tag: &str, layers: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let plain: Vec<_> = layers.iter().map(|(plain, _)| format!(r#""{}""#, digest(plain))).collect();
        let config = format!(
            r#"{{"architecture":"{platform}","os":"linux","rootfs":{{"type":"layers","diff_ids":[{}]}},
                "config":{{"Cmd":["sh"],"Entrypoint":["/e"],"Env":["A=b"],"WorkingDir":"/w","User":"1:2","StopSignal":"SIGQUIT"}}}}"#,
            plain.join(",")
        );
        let config = self.blob(config.as_bytes());
        let mut descriptors = Vec::new();
        for (_, packed) in layers {
            let blob = self.blob(packed);
            descriptors.push(format!(r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip",{blob}}}"#));
        }
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json",{config}}},"layers":[{}]}}"#,
            descriptors.join(",")
        );
        let manifest = self.blob(manifest.as_bytes());
        let note = if tag.is_empty() {
            String::new()
        } else {
            format!(r#","annotations":{{"org.opencontainers.image.ref.name":"{tag}"}}"#)
        };
        self.manifests.push(format!(
            r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json",{manifest},"platform":{{"architecture":"{platform}","os":"linux"}}{note}}}"#
        ));
        self
    }

    fn done(mut self) -> Vec<(String, Vec<u8>)> {
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, self.manifests.join(","));
        self.files.push(("index.json".to_owned(), index.into_bytes()));
        self.files.push(("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
        self.files
    }
}

fn here() -> String {
    oci_spec::image::Arch::default().to_string()
}

fn save(place: &Place, files: &[(String, Vec<u8>)]) {
    for (name, content) in files {
        let path = place.at("image").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let file =
        |maker: Maker, (name, content): &(String, Vec<u8>)| maker.entry(tar::EntryType::Regular, name, "", content);
    files.iter().fold(Maker::default(), file).end()
}

fn unpack(place: &Place, tag: Option<&str>) -> Result<Summary, SourceError> {
    place.make(&Source::Oci { path: place.at("image"), tag: tag.map(str::to_owned) })
}

fn layers() -> Vec<(Vec<u8>, Vec<u8>)> {
    let first = Maker::default()
        .directory("a")
        .file("a/gone", "x")
        .file("a/stays", "x")
        .directory("o")
        .file("o/lower", "x")
        .directory("o/both")
        .file("o/both/lower", "x")
        .directory("usr")
        .directory("usr/lib")
        .symlink("lib", "usr/lib")
        .symlink("t", "../outside")
        .end();
    let second = Maker::default()
        .file("a/.wh.gone", "")
        .file("o/upper", "new")
        .file("o/both/upper", "new")
        .file("o/.wh..wh..opq", "")
        .file("o/after", "new")
        .file(".wh..wh.plnk", "")
        .file("lib/so", "x")
        .link("a/hard", "a/stays")
        .file("t/.wh.kept", "")
        .without_end();
    vec![(first.clone(), gzip(&first)), (second.clone(), zstd(&second))]
}

#[test]
fn layers_and_whiteouts_come_in_order_from_a_directory_and_from_archives() {
    let files = Layout::default().image(&here(), "", &layers()).done();
    let place = Place::new();
    save(&place, &files);
    let mut images = vec![(place, PathBuf::from("image"))];
    for bytes in [archive(&files), gzip(&archive(&files))] {
        let place = Place::new();
        fs::write(place.at("image.tar"), bytes).unwrap();
        images.push((place, PathBuf::from("image.tar")));
    }
    for (place, image) in images {
        let path = place.at(image.to_str().unwrap());
        let summary = place.make(&Source::Oci { path, tag: None }).unwrap();
        assert_eq!(summary.suggested.entrypoint, ["/e"]);
        assert_eq!(summary.suggested.command, ["sh"]);
        assert_eq!(summary.suggested.environment, ["A=b"]);
        assert_eq!(summary.suggested.workdir.as_deref(), Some("/w"));
        assert_eq!(summary.suggested.user.as_deref(), Some("1:2"));
        assert_eq!(summary.suggested.stop_signal.as_deref(), Some("SIGQUIT"));
        for there in ["a/stays", "a/hard", "o/upper", "o/after", "o/both/upper", "usr/lib/so"] {
            assert!(place.target().join(there).is_file(), "{there}");
        }
        for gone in ["a/gone", "a/.wh.gone", "o/lower", "o/both/lower", "o/.wh..wh..opq", ".wh..wh.plnk"] {
            assert!(!place.target().join(gone).exists(), "{gone}");
        }
        place.assert_outside_is_untouched();
    }
}

#[test]
fn the_variant_for_this_machine_and_the_tag_are_chosen() {
    let layer = |name: &str| {
        let plain = Maker::default().file(name, "").end();
        vec![(plain.clone(), plain)]
    };
    let place = Place::new();
    let one = Layout::default().image("s390x", "", &layer("wrong")).image(&here(), "", &layer("right")).done();
    save(&place, &one);
    unpack(&place, None).unwrap();
    assert!(place.target().join("right").exists());

    let place = Place::new();
    let two =
        Layout::default().image(&here(), "v1", &layer("one")).image(&here(), "example.org/x:v2", &layer("two")).done();
    save(&place, &two);
    let text = message(unpack(&place, None));
    assert!(text.contains("several") && text.contains("v1"), "{text}");
    let text = message(unpack(&place, Some("v3")));
    assert!(text.contains("'v3'") && text.contains("v2"), "{text}");
    unpack(&place, Some("v2")).unwrap();
    assert!(place.target().join("two").exists());

    let place = Place::new();
    save(&place, &Layout::default().image("s390x", "", &layer("x")).done());
    let text = message(unpack(&place, None));
    assert!(text.contains("linux/s390x") && text.contains(&here()), "{text}");
}

#[test]
fn every_blob_is_checked() {
    let files = Layout::default().image(&here(), "", &layers()).done();
    for changed in 0..files.len() - 2 {
        let place = Place::new();
        let mut files = files.clone();
        let content = &mut files[changed].1;
        let at = content.len() / 2;
        content[at] ^= 1;
        save(&place, &files);
        let text = message(unpack(&place, None));
        assert!(text.contains("sha256:") && text.contains("damaged"), "{text}");
        place.assert_nothing_left();
        files[changed].1.push(b' ');
        save(&place, &files);
        assert!(message(unpack(&place, None)).contains("bytes in place of"));
        fs::remove_file(place.at("image").join(&files[changed].0)).unwrap();
        assert!(message(unpack(&place, None)).contains("No such file"));
        place.assert_nothing_left();
    }
}

#[test]
fn a_layer_that_wants_out_is_refused() {
    for evil in ["../outside/x", "a/.wh...", "a/.wh.", "../.wh.outside"] {
        let plain = Maker::default().directory("a").file(evil, "").end();
        let place = Place::new();
        save(&place, &Layout::default().image(&here(), "", &[(plain.clone(), plain)]).done());
        let text = message(unpack(&place, None));
        assert!(text.contains("refused") && text.contains("layer sha256:"), "{text}");
        place.assert_outside_is_untouched();
        place.assert_nothing_left();
    }
}

#[test]
fn documents_that_lie_or_are_too_large_are_told() {
    let place = Place::new();
    let index = |text: &str| vec![("index.json".to_owned(), text.as_bytes().to_vec())];
    save(&place, &index("{"));
    assert!(message(unpack(&place, None)).contains("index.json"));
    save(&place, &index(r#"{"schemaVersion":2,"manifests":[]}"#));
    assert!(message(unpack(&place, None)).contains("empty"));
    save(&place, &index(&" ".repeat(5 << 20)));
    assert!(message(unpack(&place, None)).contains("larger"));
    save(
        &place,
        &index(
            r#"{"schemaVersion":2,"manifests":[{"mediaType":"x","digest":"sha256:../../../../../../etc/passwd","size":1}]}"#,
        ),
    );
    assert!(message(unpack(&place, None)).contains("index.json"));
    save(&place, &index(r#"{"schemaVersion":2,"manifests":[{"mediaType":"x","digest":"other:../x","size":1}]}"#));
    assert!(unpack(&place, None).is_err());
    let empty = Place::new();
    fs::create_dir(empty.at("image")).unwrap();
    assert!(message(unpack(&empty, None)).contains("no image"));
    let none = Place::new();
    assert!(message(unpack(&none, None)).contains("image"));
}

#[test]
fn archives_of_docker_save_are_unpacked_and_checked() {
    let (plain, _) = layers().remove(0);
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
        here(),
        digest(&plain)
    );
    let name = format!("{}.json", &digest(config.as_bytes())[7..]);
    let manifest = format!(r#"[{{"Config":"{name}","RepoTags":["app:1"],"Layers":["l/layer.tar"]}}]"#);
    let files = vec![
        (name, config.into_bytes()),
        ("l/layer.tar".to_owned(), plain),
        ("manifest.json".to_owned(), manifest.into_bytes()),
    ];
    let place = Place::new();
    save(&place, &files);
    unpack(&place, Some("1")).unwrap();
    assert!(place.target().join("a/stays").exists());

    for changed in 0..2 {
        let place = Place::new();
        let mut files = files.clone();
        files[changed].1[600 * changed + 20] ^= 1;
        save(&place, &files);
        assert!(message(unpack(&place, None)).contains("app") || message(unpack(&place, None)).contains("image"));
        place.assert_nothing_left();
    }
}

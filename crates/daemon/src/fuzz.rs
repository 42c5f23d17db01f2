//! What a fuzzer calls. Each takes any bytes, and panics where what is promised of them is broken.

use crate::freeze::self_freeze::Request;
use crate::inspection::security::field;
use crate::lifecycle::quarantine;
use crate::state::image::ImageRecord;
use crate::state::record::{GuestRecord, RunRecord};
use crate::store::layers;
use pando_api::Spec;
use pando_guest::GuestName;
use pando_kernel::CallError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::io;

/// What a guest writes to have itself frozen. An image's name begins with the guest's, whatever it asks for.
pub fn freeze_door(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for request in text.lines().filter_map(Request::read) {
        let Some(word) = request.word else { continue };
        if let Ok(name) = format!("web-{word}").parse::<GuestName>() {
            assert!(name.as_ref().starts_with("web-") && !name.as_ref().contains(['/', '\n']));
        }
    }
}

/// What is kept of guests and images: it is refused in one line, or says the same when it is written again.
pub fn records(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    toml_of::<Spec>(&text);
    toml_of::<GuestRecord>(&text);
    json_of::<RunRecord>(data);
    json_of::<ImageRecord>(data);
    for word in text.split_ascii_whitespace() {
        let _ = layers::stored(word);
    }
    let _ = (field(&text, "Seccomp_filters"), field(&text, "CapBnd"));
}

fn toml_of<T: DeserializeOwned + Serialize + PartialEq + Debug>(text: &str) {
    match toml::from_str::<T>(text) {
        Ok(value) => {
            let again = toml::to_string(&value).expect("what was read can be written");
            assert_eq!(toml::from_str::<T>(&again).expect("it was written just now"), value);
        }
        Err(error) => {
            let source = io::Error::new(io::ErrorKind::InvalidData, error.to_string());
            let said = quarantine::sentence(&CallError { what: "reading it".to_owned(), source });
            assert!(!said.contains('\n'), "{said}");
        }
    }
}

fn json_of<T: DeserializeOwned + Serialize + PartialEq + Debug>(data: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(data) {
        let again = serde_json::to_vec(&value).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<T>(&again).expect("it was written just now"), value);
    }
}

/// Shims for the target [`records`].
pub fn specs() -> Vec<Vec<u8>> {
    let spec = Spec { command: vec!["sleep".to_owned(), "1".to_owned()], ..Spec::default() };
    let (source, layers) = ("host".to_owned(), vec!["host".to_owned(), format!("store:{}", "ab".repeat(32))]);
    let record = GuestRecord {
        source,
        created: 7,
        layers,
        exit_code: Some(3),
        oom_kills: Some(1),
        up: true,
        restarts: 2,
        frozen_into: None,
        image_created: Some(7),
    };
    let toml = [toml::to_string(&spec), toml::to_string(&record)].into_iter().flatten().map(String::into_bytes);
    toml.chain([br#"{"slot":7,"boot":"b","started":7}"#.to_vec()]).collect()
}

//! What clients write to the daemon's socket, and what a client understands of the daemon's answers.

use pando_api::{Address, Method, MethodCall, Publication, Reply, Spec};
use pando_front::first_notice;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::str::FromStr;

/// A request: refused, or the same when it is written again. An answer too.
pub(crate) fn requests(data: &[u8]) {
    if let Ok(call) = serde_json::from_slice::<MethodCall>(data)
        && let Ok(method) = call.typed()
    {
        let text = serde_json::to_vec(&method).expect("what was read can be written");
        let again: MethodCall = serde_json::from_slice(&text).expect("it was written just now");
        assert_eq!(again.typed().expect("it was written just now"), method);
    }
    same_again::<Spec>(data);
    // A reply may be one of several that look alike; it has to be understood.
    let _ = serde_json::from_slice::<Reply>(data);
    if let Some((_, length)) = first_notice(data) {
        assert!(length <= data.len() && data[length - 1] == 0);
    }
    let text = String::from_utf8_lossy(data);
    said_again::<Address>(&text);
    said_again::<Publication>(&text);
}

fn same_again<T: DeserializeOwned + Serialize + PartialEq + Debug>(data: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(data) {
        let again = serde_json::to_vec(&value).expect("what was read can be written");
        assert_eq!(serde_json::from_slice::<T>(&again).expect("it was written just now"), value);
    }
}

fn said_again<T: FromStr + ToString + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value), "{text:?}");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let spec = Spec { command: vec!["sleep".to_owned()], ..Spec::default() };
    let create = Method::Create { name: "web".to_owned(), source: Some("host".to_owned()), spec, start: true };
    let calls = [create, Method::Unify { dry_run: true }, Method::Quit {}];
    let mut all: Vec<Vec<u8>> = calls.iter().filter_map(|call| serde_json::to_vec(call).ok()).collect();
    all.push(b"{\"parameters\":{\"notice\":{\"guest\":\"a\",\"pid\":7,\"exited\":true,\"exit_code\":3}}}\0".to_vec());
    all.extend([&b"10.0.0.1"[..], b"127.0.0.1:80:8080/tcp", b"eth0"].map(<[u8]>::to_vec));
    all
}

//! The types and the description file are one interface: every method, error and record in the one stands in the other,
//! field by field.

use pando_api::{DESCRIPTION, FaultKind, Method, Process, Spec};
use std::collections::BTreeMap;
use zlink::idl::Interface;

fn interface() -> Interface<'static> {
    Interface::try_from(DESCRIPTION).expect("the description parses")
}

/// The fields of a record that the description declares, whether optional or not.
fn declared(name: &str) -> Vec<String> {
    let interface = interface();
    let record = interface.custom_types().find(|t| t.name() == name).unwrap_or_else(|| panic!("no type {name}"));
    let mut fields: Vec<_> =
        record.as_object().expect("a record").fields().map(|field| field.name().to_string()).collect();
    fields.sort();
    fields
}

fn keys(value: &serde_json::Value) -> Vec<String> {
    let mut keys: Vec<_> = value.as_object().expect("an object").keys().cloned().collect();
    keys.sort();
    keys
}

#[test]
fn spec_is_as_described() {
    let full = Spec {
        command: vec!["x".into()],
        entrypoint: Some(Vec::new()),
        labels: BTreeMap::from([("a".into(), "b".into())]),
        init: Some("/sbin/init".into()),
        hostname: Some("h".into()),
        stdin_open: true,
        user: Some("u".into()),
        group_add: vec!["g".into()],
        workdir: Some("/".into()),
        env: BTreeMap::from([("A".into(), "b".into())]),
        network_name: Some("n".into()),
        addresses: vec!["10.9.0.5/24".parse().unwrap()],
        volumes: vec!["/a:/b:ro".parse().unwrap()],
        read_only: true,
        publish_all: true,
        add_host: vec!["a:10.9.0.5".parse().unwrap()],
        sysctl: BTreeMap::from([("a".into(), "b".into())]),
        health: Some(pando_api::HealthCheck {
            interval: Some(1),
            timeout: Some(1),
            retries: Some(1),
            start_period: Some(1),
            on_failure: pando_api::OnFailure::Kill,
            command: vec!["c".into()],
        }),
        tmpfs: vec!["/run:size=1m".parse().unwrap()],
        devices: vec!["/dev/fuse".parse().unwrap()],
        cap_add: vec!["NET_RAW".into()],
        cap_drop: vec!["ALL".into()],
        allow_freeze: 1,
        rlimits: BTreeMap::from([("nofile".into(), "1:2".parse().unwrap())]),
        expose: vec!["/home".into()],
        stop_signal: Some("TERM".into()),
        stop_grace: Some(1),
        restart: pando_api::Restart::Always,
        boot: pando_api::Boot { autostart: true, priority: 1, after: vec!["a".into()], delay: 1 },
        pids: Some("5".into()),
        files: Some("64".into()),
        files_total: Some("640".into()),
        link: pando_api::Link::Macvlan,
        publish: vec!["8080:80".parse().unwrap()],
        dns: vec!["10.9.0.1".parse().unwrap()],
        profile: Some(pando_api::Profile::Strict),
        cpu: request(&declared("CpuRequest")),
        memory: request(&declared("MemoryRequest")),
        io: request(&declared("IoRequest")),
        disk: request(&declared("DiskRequest")),
        net: request(&declared("NetRequest")),
        ..Spec::default()
    };
    let wire = serde_json::to_value(&full).unwrap();
    assert_eq!(keys(&wire), declared("Spec"));
    assert_eq!(keys(&wire["volumes"][0]), declared("Volume"));
    for (table, name) in [
        ("cpu", "CpuRequest"),
        ("memory", "MemoryRequest"),
        ("io", "IoRequest"),
        ("disk", "DiskRequest"),
        ("net", "NetRequest"),
    ] {
        assert_eq!(keys(&wire[table]), declared(name));
    }
    assert_eq!(keys(&wire["boot"]), declared("Boot"));
    assert_eq!(keys(&wire["health"]), declared("HealthCheck"));
    assert_eq!(keys(&wire["rlimits"]["nofile"]), declared("Rlimit"));
}

/// A table of requests with every field that the description declares; one that the type does not have is refused.
fn request<T: serde::de::DeserializeOwned>(fields: &[String]) -> T {
    let table = fields.iter().map(|field| (field.clone(), "1".into())).collect::<serde_json::Map<_, _>>();
    serde_json::from_value(table.into()).expect("a table of requests")
}

#[test]
fn what_is_used_is_as_described() {
    let sample = serde_json::to_value(pando_api::Sample::default()).unwrap();
    assert_eq!(keys(&sample), declared("Sample"));
    let used = pando_api::GuestUse {
        cpu_reserve: Some(0.5),
        cpu_limit: Some(1.0),
        memory_limit: Some(1),
        memory_reserve: Some(1),
        pids_limit: Some(1),
        net_reserve: Some(1),
        net_limit: Some(1),
        net_limit_in: Some(1),
        working_set: Some(1),
        merged: Some(1),
        reclaimed: Some(1),
        history: vec![pando_api::Sample::default()],
        ..pando_api::GuestUse::default()
    };
    assert_eq!(keys(&serde_json::to_value(used).unwrap()), declared("GuestUse"));
    assert_eq!(keys(&serde_json::to_value(pando_api::MachineUse::default()).unwrap()), declared("MachineUse"));
    let held = pando_api::HeldLimit {
        file: Some(String::new()),
        value: Some(String::new()),
        note: Some(String::new()),
        ..pando_api::HeldLimit::default()
    };
    assert_eq!(keys(&serde_json::to_value(held).unwrap()), declared("HeldLimit"));
}

#[test]
fn process_is_as_described() {
    let full = Process {
        env: BTreeMap::from([("A".into(), "b".into())]),
        workdir: Some("/".into()),
        user: Some("root".into()),
        detached: true,
        transaction: Some(pando_api::PartOf::default()),
        ..Process::default()
    };
    assert_eq!(keys(&serde_json::to_value(full).unwrap()), declared("Process"));
}

#[test]
fn what_came_of_a_transaction_is_as_described() {
    let (object, reason) = (Some(String::new()), Some(String::new()));
    let full = pando_api::TransactionOutcome { object, reason, ..pando_api::TransactionOutcome::default() };
    assert_eq!(keys(&serde_json::to_value(full).unwrap()), declared("TransactionOutcome"));
}

#[test]
fn an_image_of_a_registry_is_as_described() {
    let image = pando_api::PulledImage {
        reference: String::new(),
        digest: String::new(),
        layers: 1,
        size: 1,
        pulled: 1,
        used: 1,
        guests: Vec::new(),
    };
    assert_eq!(keys(&serde_json::to_value(image).unwrap()), declared("PulledImage"));
}

#[test]
fn a_network_is_as_described() {
    let network = pando_api::NamedNetwork {
        name: String::new(),
        subnet: String::new(),
        gateway: "10.9.0.1".parse().unwrap(),
        internal: true,
        created: 1,
        bridge: String::new(),
        guests: Vec::new(),
        addresses: BTreeMap::new(),
    };
    assert_eq!(keys(&serde_json::to_value(network).unwrap()), declared("NamedNetwork"));
}

#[test]
fn every_described_method_is_understood() {
    for method in interface().methods() {
        let known = serde_json::from_value::<Method>(serde_json::json!({
            "method": format!("org.pando.Guests.{}", method.name()),
            "parameters": {
                "name": "n", "spec": {}, "process": {}, "start": false, "pid": 1, "signal": null, "force": false, "host": false,
                "assignments": [], "pids": [1], "to": "t", "path": "/", "direction": "in", "change": "add", "address": "10.9.0.5",
                "history": false, "image": "i", "reference": "r", "names": [], "replace": false, "stop": false, "memory": false, "wait": false, "repair": false, "places": [], "dry_run": false, "durable": false
            },
        }));
        // Only `signal` differs between methods (a number, or an optional name); anything else is a disagreement.
        if let Err(error) = known {
            assert!(error.to_string().contains("i32"), "{}: {error}", method.name());
        }
    }
}

#[test]
fn every_described_error_is_a_kind() {
    for error in interface().errors() {
        serde_json::from_value::<FaultKind>(error.name().to_string().into()).expect("a kind of fault");
    }
}

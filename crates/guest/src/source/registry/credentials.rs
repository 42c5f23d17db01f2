//! Which of a caller's credentials go to a client: those of the registry that it speaks with.
//!
//! A file of credentials, as containers-auth.json(5) describes it, has entries for registries, for namespaces in them
//! and for single repositories. For an image those count that name it or what it lies in, there or at a place that
//! containers-registries.conf(5) gives for it: a mirror, or another location.

use super::{Reference, RegistryError, RegistrySettings};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// More than any settings of registries have, in bytes.
const LONGEST_SETTINGS: u64 = 4 << 20;

/// What docker calls its own registry in files of credentials, and what others call it.
const DOCKER_HUB: &str = "index.docker.io";
const DOCKER_HUBS: [&str; 2] = ["docker.io", "registry-1.docker.io"];

/// A registries.conf, as far as it says where images lie.
#[derive(Debug, Default, Deserialize)]
struct Registries {
    #[serde(default)]
    registry: Vec<Registry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Registry {
    prefix: String,
    location: String,
    mirror: Vec<Mirror>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mirror {
    location: String,
}

/// The entries of a file of credentials that are for an image. None where there are none.
pub(super) fn for_image(
    content: &[u8],
    reference: &Reference,
    settings: &RegistrySettings,
) -> Result<Option<Vec<u8>>, RegistryError> {
    let all: Value = serde_json::from_slice(content)
        .map_err(|error| RegistryError::Credentials { reference: reference.whole(), reason: error.to_string() })?;
    let files: Vec<String> = settings.texts(LONGEST_SETTINGS);
    let files = files.iter().map(String::as_str);
    let chosen = chosen(&all, &format!("{}/{}", reference.registry(), reference.repository()), files);
    Ok((!chosen.is_empty()).then(|| json!({ "auths": chosen }).to_string().into_bytes()))
}

/// The entries for the image `name`, under settings that these files say.
fn chosen<'a>(all: &Value, name: &str, settings: impl Iterator<Item = &'a str>) -> Map<String, Value> {
    // What cannot be read skopeo refuses, or has no use for.
    let registries = settings.filter_map(|text| toml::from_str::<Registries>(text).ok());
    let elsewhere: Vec<String> = registries.flat_map(|file| places(&file, name)).collect();
    let names: BTreeSet<&str> = elsewhere.iter().map(String::as_str).chain([name]).flat_map(around).collect();
    let hosts: BTreeSet<&str> = names.iter().filter(|name| !name.contains('/')).map(|host| hub(host)).collect();
    let entries = all["auths"].as_object().into_iter().flatten();
    let fits = |key: &str| names.contains(key) || hosts.contains(host(key));
    entries.filter(|(key, _)| fits(key)).map(|(key, entry)| (key.clone(), entry.clone())).collect()
}

/// Where an image lies besides, as a file of settings says.
fn places(file: &Registries, name: &str) -> Vec<String> {
    let mut places = Vec::new();
    for registry in &file.registry {
        let prefix = if registry.prefix.is_empty() { &registry.location } else { &registry.prefix };
        let Some(rest) = below(prefix, name) else { continue };
        let mirrors = registry.mirror.iter().map(|mirror| &mirror.location);
        let locations = mirrors.chain([&registry.location]).filter(|location| !location.is_empty());
        places.extend(locations.map(|location| format!("{location}{rest}")));
    }
    places
}

/// What a name has after a prefix: `*.example.com` is one of all registries of that domain.
fn below<'n>(prefix: &str, name: &'n str) -> Option<&'n str> {
    if let Some(domain) = prefix.strip_prefix('*') {
        let end = name.find('/').unwrap_or(name.len());
        return name[..end].ends_with(domain).then_some(&name[end..]);
    }
    name.strip_prefix(prefix).filter(|rest| !prefix.is_empty() && (rest.is_empty() || rest.starts_with('/')))
}

/// A name, and what it lies in, out to the registry.
fn around(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| name.rsplit_once('/').map(|(outer, _)| outer))
}

/// The registry that a key names as a whole: a name, or an address, as docker writes it.
fn host(key: &str) -> &str {
    let address = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    hub(address.map_or(key, |address| address.split('/').next().unwrap_or_default()))
}

fn hub(host: &str) -> &str {
    if DOCKER_HUBS.contains(&host) { DOCKER_HUB } else { host }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(name: &str, settings: &str, all: &[&str]) -> Vec<String> {
        let auths: Map<String, Value> = all.iter().map(|key| ((*key).to_owned(), json!({ "auth": "eDp5" }))).collect();
        chosen(&json!({ "auths": auths, "credsStore": "x" }), name, [settings].into_iter())
            .into_iter()
            .map(|(key, _)| key)
            .collect()
    }

    #[test]
    fn an_image_has_the_entries_of_what_it_lies_in() {
        let all = ["a.example", "a.example/team", "a.example/team/app", "a.example/te", "a.example/other", "b.example"];
        let expected = ["a.example", "a.example/team", "a.example/team/app"];
        assert_eq!(keys("a.example/team/app", "", &all), expected);
        let ports = ["a.example:5000", "http://a.example:5000/v2/", "https://b.example/a.example"];
        assert_eq!(keys("a.example/app", "", &ports), [""; 0]);
        assert_eq!(keys("a.example:5000/app", "", &ports), ports[..2]);
    }

    #[test]
    fn dockers_registry_has_three_names() {
        let all = ["docker.io", "https://index.docker.io/v1/", "https://other.example/v1/", "index.docker.io"];
        assert_eq!(keys("docker.io/library/nginx", "", &all), [all[0], all[1], all[3]]);
    }

    #[test]
    fn a_mirror_has_its_own() {
        let settings = "unqualified-search-registries = [\"b.example\"]\n\
            [[registry]]\nprefix = \"docker.io/library\"\nlocation = \"c.example/hub\"\n\
            [[registry.mirror]]\nlocation = \"m.example:80/x\"\n\
            [[registry]]\nprefix = \"*.wide.example\"\nlocation = \"w.example\"\n";
        let all = ["b.example", "c.example/hub/nginx", "m.example:80", "m.example:80/x", "w.example"];
        assert_eq!(keys("docker.io/library/nginx", settings, &all), all[1..4]);
        assert_eq!(keys("docker.io/team/nginx", settings, &all), [""; 0]);
        assert_eq!(keys("in.wide.example/nginx", settings, &all), all[4..]);
        assert_eq!(keys("docker.io/library/nginx", "[[", &all), [""; 0]);
    }
}

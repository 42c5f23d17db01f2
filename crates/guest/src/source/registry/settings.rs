//! What the machine says of registries: mirrors, insecure ones, whose images are accepted.

use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Which settings of containers-registries.conf(5) and containers-policy.json(5) hold. Those of the machine, but for a
/// Pando with a root of its own that has others in there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// The registries.conf of a root of its own.
    pub registries: Option<PathBuf>,
    /// The policy.json of a root of its own.
    pub policy: Option<PathBuf>,
    /// The registries.d of a root of its own, which says where signatures are (containers-registries.d(5)).
    pub signatures: Option<PathBuf>,
}

impl RegistrySettings {
    /// Those that hold for the Pando below `root`.
    pub fn below(root: &Path) -> Self {
        let own = |name| Some(root.join("etc/containers").join(name)).filter(|path| path.exists());
        match root == Path::new("/") {
            true => Self::default(),
            false => {
                Self { registries: own("registries.conf"), policy: own("policy.json"), signatures: own("registries.d") }
            }
        }
    }

    /// Whether anybody has said whose images are accepted.
    pub(super) fn has_policy(&self) -> bool {
        self.policy.is_some() || Path::new(SYSTEMS_POLICY).exists()
    }

    /// What all files say of registries that hold here, each up to so many bytes. One that cannot be read is left out.
    pub(super) fn texts(&self, longest: u64) -> Vec<String> {
        let first = self.registries.clone().unwrap_or_else(|| PathBuf::from("/etc/containers/registries.conf"));
        let more = std::fs::read_dir("/etc/containers/registries.conf.d").into_iter().flatten().flatten();
        let read = |path: PathBuf| -> std::io::Result<String> {
            let mut text = String::new();
            File::open(path)?.take(longest).read_to_string(&mut text)?;
            Ok(text)
        };
        std::iter::once(first).chain(more.map(|entry| entry.path())).filter_map(|path| read(path).ok()).collect()
    }

    /// What a client is given of them, which has them in `directory`.
    ///
    /// # Errors
    ///
    /// What a file names cannot be read.
    pub(super) fn passed(&self, directory: &str) -> io::Result<Passed> {
        let mut passed = Passed::default();
        let (registries, policy, places) = ("registries.conf", "policy.json", "registries.d");
        if let Some(path) = &self.registries {
            passed.files.push((registries.to_owned(), read(path, LONGEST)?));
            passed.options.extend(["--registries-conf".to_owned(), format!("{directory}/{registries}")]);
        }
        if let Some(own) = &self.signatures {
            for entry in fs::read_dir(own)?.take(MOST_FILES) {
                let entry = entry?;
                let name = entry.file_name();
                if let Some(name) = name.to_str().filter(|name| name.ends_with(".yaml")) {
                    passed.files.push((format!("{places}/{name}"), read(&entry.path(), LONGEST)?));
                }
            }
            passed.options.extend(["--registries.d".to_owned(), format!("{directory}/{places}")]);
        }
        let path = self.policy.clone().unwrap_or_else(|| PathBuf::from(SYSTEMS_POLICY));
        let (content, keys) = with_keys(&read(&path, LONGEST)?, directory)?;
        if self.policy.is_some() || !keys.is_empty() {
            passed.files.push((policy.to_owned(), content));
            passed.files.extend(keys);
            passed.options.extend(["--policy".to_owned(), format!("{directory}/{policy}")]);
        }
        Ok(passed)
    }
}

/// What a client is given of the settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// The options that come before the command of skopeo.
    pub(super) options: Vec<String>,
    /// Names in the client's directory, and what is in them.
    pub(super) files: Vec<(String, Vec<u8>)>,
}

const SYSTEMS_POLICY: &str = "/etc/containers/policy.json";

/// More bytes than any file of settings or of keys has, and more files than anybody has of them.
const LONGEST: u64 = 4 << 20;
const MOST_FILES: usize = 100;

/// What of a policy names files of keys, one or several.
const KEYS: [&str; 7] = [
    "keyPath",
    "keyPaths",
    "rekorPublicKeyPath",
    "rekorPublicKeyPaths",
    "caPath",
    "caRootsPath",
    "caIntermediatesPath",
];

/// The copy of a key: its name, and its content.
type KeyFile = (String, Vec<u8>);

/// A policy whose keys lie in `directory`, and the copies of them: who checks signatures has no way to files of keys
/// that lie elsewhere. One that is no JSON stays as it is, and is complained of by who reads it.
fn with_keys(policy: &[u8], directory: &str) -> io::Result<(Vec<u8>, Vec<KeyFile>)> {
    let mut keys = Vec::new();
    let Ok(mut document) = serde_json::from_slice::<Value>(policy) else { return Ok((policy.to_vec(), keys)) };
    copy_keys(&mut document, directory, &mut keys)?;
    Ok((if keys.is_empty() { policy.to_vec() } else { document.to_string().into_bytes() }, keys))
}

fn copy_keys(value: &mut Value, directory: &str, keys: &mut Vec<KeyFile>) -> io::Result<()> {
    match value {
        Value::Array(list) => list.iter_mut().try_for_each(|inner| copy_keys(inner, directory, keys)),
        Value::Object(entries) => entries.iter_mut().try_for_each(|(name, inner)| match inner {
            Value::String(path) if KEYS.contains(&name.as_str()) => copy_key(path, directory, keys),
            Value::Array(paths) if KEYS.contains(&name.as_str()) => paths.iter_mut().try_for_each(|path| match path {
                Value::String(path) => copy_key(path, directory, keys),
                _ => Ok(()),
            }),
            inner => copy_keys(inner, directory, keys),
        }),
        _ => Ok(()),
    }
}

fn copy_key(path: &mut String, directory: &str, keys: &mut Vec<KeyFile>) -> io::Result<()> {
    if keys.len() >= MOST_FILES {
        return Err(io::Error::other(format!("policy.json names more than {MOST_FILES} keys")));
    }
    let content = read(Path::new(path), LONGEST)?;
    let name = format!("key-{}", keys.len());
    *path = format!("{directory}/{name}");
    keys.push((name, content));
    Ok(())
}

fn read(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = File::open(path).and_then(|file| file.take(longest).read_to_end(&mut content));
    read.map_err(|error| io::Error::new(error.kind(), format!("'{}' cannot be read: {error}", path.display())))?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_of_its_own_may_have_settings_of_its_own() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(RegistrySettings::below(root.path()), RegistrySettings::default());
        std::fs::create_dir_all(root.path().join("etc/containers")).unwrap();
        std::fs::write(root.path().join("etc/containers/policy.json"), "{}").unwrap();
        let settings = RegistrySettings::below(root.path());
        let passed = settings.passed("/tmp").unwrap();
        assert_eq!(passed.options, ["--policy", "/tmp/policy.json"]);
        assert_eq!(passed.files, [("policy.json".to_owned(), b"{}".to_vec())]);
        assert_eq!(RegistrySettings::below(Path::new("/")), RegistrySettings::default());
    }

    #[test]
    fn keys_that_a_policy_names_come_along() {
        let place = tempfile::tempdir().unwrap();
        let key = place.path().join("key.asc");
        std::fs::write(&key, "a key").unwrap();
        let policy = serde_json::json!({
            "default": [{ "type": "reject" }],
            "transports": { "docker": {
                "a": [{ "type": "signedBy", "keyType": "GPGKeys", "keyPath": key }],
                "b": [{ "type": "sigstoreSigned", "keyPaths": [key, key] }],
            } },
        });
        let (passed, keys) = with_keys(policy.to_string().as_bytes(), "/tmp").unwrap();
        let passed: Value = serde_json::from_slice(&passed).unwrap();
        assert_eq!(passed["transports"]["docker"]["a"][0]["keyPath"], "/tmp/key-0");
        assert_eq!(passed["transports"]["docker"]["b"][0]["keyPaths"][1], "/tmp/key-2");
        assert_eq!(keys.len(), 3);
        assert!(keys.iter().all(|(_, content)| content == b"a key"));
        std::fs::remove_file(&key).unwrap();
        let error = with_keys(policy.to_string().as_bytes(), "/tmp").unwrap_err().to_string();
        assert!(error.contains("key.asc"), "{error}");
        assert_eq!(with_keys(b"no JSON", "/tmp").unwrap(), (b"no JSON".to_vec(), Vec::new()));
    }
}

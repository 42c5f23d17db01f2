//! Credentials of registries, from where other tools keep them.
//!
//! The files are those of containers-auth.json(5) and of docker. What they hold is put into one file, in memory. The
//! daemon gets its descriptor: it knows nothing of the caller's home. A helper of docker's (`docker-credential-NAME`)
//! is asked here, where it finds its keys, and for the one registry that is meant.

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pando_guest::source::registry::Reference;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// More than any such file has.
const LONGEST: u64 = 1 << 20;

/// What docker calls its own registry in its files.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// What a helper calls a user whose secret is a token.
const TOKEN: &str = "<token>";

/// The credentials that there are for an image, by its full name, as a file in memory. None where there are none.
pub(crate) fn file(image: &str, authfile: Option<&Path>) -> anyhow::Result<Option<OwnedFd>> {
    let registry = image.parse::<Reference>().map_or_else(|_| String::new(), |image| image.registry().to_owned());
    let all = match authfile {
        Some(path) => vec![read(path)?.with_context(|| format!("there is no '{}'", path.display()))?],
        None => places().iter().filter_map(|path| read(path).transpose()).collect::<anyhow::Result<Vec<_>>>()?,
    };
    let credentials = together(&all, &registry, &ask)?;
    if credentials.is_empty() {
        return Ok(None);
    }
    let text = json!({ "auths": credentials }).to_string();
    let file = pando_kernel::memory::file::sealed("pando-credentials", text.as_bytes(), false);
    let mut file = File::from(file.context("cannot pass the credentials on")?);
    file.rewind().context("cannot pass the credentials on")?;
    Ok(Some(file.into()))
}

/// Where they are, the first one that has any counts.
fn places() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(named) = of("REGISTRY_AUTH_FILE") {
        return vec![named];
    }
    let home = of("HOME");
    let runtime = of("XDG_RUNTIME_DIR").map(|directory| directory.join("containers/auth.json"));
    let system = PathBuf::from(format!("/run/containers/{}/auth.json", rustix::process::geteuid()));
    let config = of("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
    let docker = of("DOCKER_CONFIG").or_else(|| home.as_ref().map(|home| home.join(".docker")));
    let config = config.map(|directory| directory.join("containers/auth.json"));
    let docker = docker.map(|directory| directory.join("config.json"));
    [runtime, Some(system), config, docker].into_iter().flatten().collect()
}

/// None where there is no such file.
fn read(path: &Path) -> anyhow::Result<Option<Value>> {
    let what = || format!("cannot read the credentials in '{}'", path.display());
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        opened => opened.with_context(what)?,
    };
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).with_context(what)?;
    Ok(Some(serde_json::from_slice(&text).with_context(what)?))
}

/// What a helper says of a registry: a user and a secret, or nothing.
type Ask<'a> = &'a dyn Fn(&str, &str) -> anyhow::Result<Option<(String, String)>>;

/// The entries of all files, the first of a name counts; with what a helper says of the registry.
fn together(files: &[Value], registry: &str, ask: Ask<'_>) -> anyhow::Result<Map<String, Value>> {
    let mut all = Map::new();
    for file in files {
        let helper = file["credHelpers"][registry].as_str().or_else(|| file["credsStore"].as_str());
        if let Some(helper) = helper.filter(|_| !all.contains_key(registry)) {
            let server = if registry == "docker.io" { DOCKER_HUB } else { registry };
            if let Some((user, secret)) = ask(helper, server)? {
                all.insert(registry.to_owned(), entry(&user, &secret));
            }
        }
        for (name, found) in file["auths"].as_object().into_iter().flatten() {
            let has = |key: &str| found[key].as_str().is_some_and(|text| !text.is_empty());
            if has("auth") || has("identitytoken") {
                all.entry(name.clone()).or_insert_with(|| found.clone());
            }
        }
    }
    Ok(all)
}

fn entry(user: &str, secret: &str) -> Value {
    match user == TOKEN {
        true => json!({ "auth": STANDARD.encode(format!("{TOKEN}:")), "identitytoken": secret }),
        false => json!({ "auth": STANDARD.encode(format!("{user}:{secret}")) }),
    }
}

/// Asks one, as docker does: the server on its input, JSON on its output.
fn ask(helper: &str, server: &str) -> anyhow::Result<Option<(String, String)>> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    ensure!(helper.chars().all(plain), "'{helper}' cannot be the name of a helper for credentials");
    let program = format!("docker-credential-{helper}");
    let mut command = Command::new(&program);
    let started = command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let what = || format!("cannot ask {program} for the credentials of {server}");
    let mut child = started.with_context(what)?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read has an answer all the same.
        let _ = writeln!(input, "{server}");
    }
    let output = child.wait_with_output().with_context(what)?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        if said.contains("credentials not found") {
            return Ok(None);
        }
        bail!("{program} has no credentials of {server}: {}", said.trim());
    }
    let answer: Value = serde_json::from_slice(&output.stdout).with_context(what)?;
    let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
    Ok(Some((text("Username"), text("Secret"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody(_: &str, _: &str) -> anyhow::Result<Option<(String, String)>> {
        panic!("no helper is to be asked")
    }

    #[test]
    fn the_first_file_that_has_an_entry_counts() {
        let files = [
            json!({ "auths": { "a.example": { "auth": "Zmlyc3Q6" }, "empty.example": {} } }),
            json!({ "auths": { "a.example": { "auth": "c2Vjb25k" }, "b.example": { "auth": "Yg==" } } }),
        ];
        let all = together(&files, "a.example", &nobody).unwrap();
        assert_eq!(all["a.example"]["auth"], "Zmlyc3Q6");
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a.example", "b.example"]);
    }

    #[test]
    fn a_helper_is_asked_for_the_registry_that_is_meant() {
        let files = [json!({ "credHelpers": { "a.example": "one" }, "credsStore": "other" })];
        let say = |helper: &str, server: &str| Ok(Some((helper.to_owned(), server.to_owned())));
        let of = |registry: &str| together(&files, registry, &say).unwrap()[registry]["auth"].clone();
        assert_eq!(of("a.example"), STANDARD.encode("one:a.example"));
        assert_eq!(of("docker.io"), STANDARD.encode(format!("other:{DOCKER_HUB}")));
        let token = |_: &str, _: &str| Ok(Some((TOKEN.to_owned(), "secret".to_owned())));
        assert_eq!(together(&files, "a.example", &token).unwrap()["a.example"]["identitytoken"], "secret");
    }

    #[test]
    fn a_helper_has_a_plain_name() {
        assert!(ask("../../tmp/x", "a.example").unwrap_err().to_string().contains("cannot be the name"));
    }
}

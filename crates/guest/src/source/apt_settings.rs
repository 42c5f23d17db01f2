//! How this machine reaches its Debian mirrors: asked from apt itself, so that every way of configuring it counts.

use super::package_tool::{Ending, Patience, run};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

/// apt only reads files here.
const PATIENCE: Patience =
    Patience { silent: Duration::from_secs(30), whole: Duration::from_secs(120), grace: Duration::ZERO };

/// Suites that have neither updates nor security updates beside them.
const ROLLING: [&str; 4] = ["sid", "unstable", "experimental", "rc-buggy"];

/// The settings that a guest's apt needs as well, by the beginning of their name.
const PASSED_ON: [&str; 9] = [
    "Acquire::http::",
    "Acquire::https::",
    "Acquire::socks5h::",
    "Acquire::Retries ",
    "Acquire::ForceIPv4 ",
    "Acquire::ForceIPv6 ",
    "Acquire::Check-Valid-Until ",
    "Acquire::Check-Date ",
    "Acquire::Max-ValidTime ",
];

/// Settings that lead to a program or a file of the host, which the guest does not have.
const HOST_ONLY: [&str; 6] =
    ["Proxy-Auto-Detect ", "ProxyAutoDetect ", "::CaInfo ", "::CaPath ", "::SslCert ", "::SslKey "];

/// What was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AptSettings {
    /// Lines for a sources.list; empty if the host has no Debian mirror.
    pub(crate) sources: Vec<String>,
    /// The mirror of the suite itself.
    pub(crate) mirror: Option<String>,
    /// Lines for an apt.conf.
    pub(crate) configuration: Vec<String>,
    /// The proxy for http, for tools that do not know apt's settings.
    pub(crate) proxy: Option<String>,
}

impl AptSettings {
    /// The host's settings, applied to `suite`. A host without apt has none.
    pub(crate) fn of_host(suite: &str, cancelled: &dyn Fn() -> bool) -> Self {
        let targets = output("apt-get", &["indextargets", "Created-By: Packages"], cancelled);
        let configuration = output("apt-config", &["dump"], cancelled);
        Self::from_output(suite, &targets, &configuration)
    }

    fn from_output(suite: &str, targets: &[String], configuration: &[String]) -> Self {
        let targets = chosen(suite, paragraphs(targets));
        // By mirror and part of the suite, so that a line has all components.
        let mut lines: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
        for target in &targets {
            if target.part.is_empty() || !ROLLING.contains(&suite) {
                lines.entry((&target.part, &target.mirror)).or_default().insert(&target.component);
            }
        }
        let sources = lines
            .iter()
            .map(|((part, mirror), components)| {
                let components: Vec<_> = components.iter().copied().collect();
                format!("deb {mirror} {suite}{part} {}", components.join(" "))
            })
            .collect();
        let passed_on = |line: &&String| {
            PASSED_ON.iter().any(|start| line.starts_with(start)) && !HOST_ONLY.iter().any(|part| line.contains(part))
        };
        let proxy =
            configuration.iter().find_map(|line| line.strip_prefix("Acquire::http::Proxy \"")?.strip_suffix("\";"));
        Self {
            sources,
            mirror: targets.iter().find(|target| target.part.is_empty()).map(|target| target.mirror.clone()),
            configuration: configuration.iter().filter(passed_on).cloned().collect(),
            proxy: proxy.filter(|proxy| !proxy.is_empty()).map(str::to_owned),
        }
    }
}

/// One component of one suite on one mirror.
#[derive(Clone, Debug)]
struct Target {
    mirror: String,
    /// The suite without its part, by each of its names.
    names: BTreeSet<String>,
    /// What follows the suite's name: nothing, `-updates` or `-security`.
    part: String,
    component: String,
}

/// Those that serve `suite`; if none does, those of another suite, since a mirror has all.
fn chosen(suite: &str, paragraphs: Vec<BTreeMap<String, String>>) -> Vec<Target> {
    let targets: Vec<_> = paragraphs.iter().filter_map(target).collect();
    let serving: Vec<_> = targets.iter().filter(|target| target.names.contains(suite)).cloned().collect();
    if serving.iter().any(|target| target.part.is_empty()) {
        return serving;
    }
    let Some(other) = targets.iter().find(|target| target.part.is_empty()).and_then(|target| target.names.first())
    else {
        return Vec::new();
    };
    targets.iter().filter(|target| target.names.contains(other)).cloned().collect()
}

fn target(fields: &BTreeMap<String, String>) -> Option<Target> {
    // Other archives may use Debian's names for their suites. Without a downloaded index there is no origin.
    if fields.get("Origin").is_some_and(|origin| origin != "Debian") {
        return None;
    }
    let (_, part) = split(fields.get("Release")?)?;
    let names = ["Release", "Codename", "Suite"].iter().filter_map(|field| fields.get(*field));
    let names =
        names.filter_map(|name| split(name)).filter(|(_, other)| *other == part).map(|(name, _)| name.to_owned());
    // They become a line of a file: no blanks, and nothing that is no URI.
    let mirror = fields.get("Repo-URI").filter(|uri| uri.contains("://") && !uri.contains([' ', '\t', '[', ']']))?;
    let component =
        fields.get("Component").filter(|component| !component.is_empty() && !component.contains([' ', '\t']))?;
    Some(Target { mirror: mirror.clone(), names: names.collect(), part: part.to_owned(), component: component.clone() })
}

/// A suite's name and the part of it that is meant. Backports and proposed updates are not for a fresh system.
fn split(release: &str) -> Option<(&str, &str)> {
    for part in ["-updates", "-security"] {
        if let Some(name) = release.strip_suffix(part) {
            return (!name.ends_with("-proposed")).then_some((name, part));
        }
    }
    (!release.contains(['-', '/'])).then_some((release, ""))
}

/// Paragraphs of `Name: value` lines.
fn paragraphs(lines: &[String]) -> Vec<BTreeMap<String, String>> {
    let paragraphs = lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty());
    let field = |line: &String| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    paragraphs.map(|lines| lines.iter().filter_map(field).collect()).collect()
}

/// The lines a command prints; none if it fails, for then there is nothing to learn from it.
fn output(program: &str, words: &[&str], cancelled: &dyn Fn() -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C");
    match run(command, PATIENCE, cancelled, &mut |line| lines.push(line.to_owned())) {
        Ok(Ending::Exited(status)) if status.success() => lines,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    fn host() -> Vec<String> {
        let entry = |uri: &str, release: &str, suite: &str, component: &str, origin: &str| {
            format!(
                "MetaKey: x\nCodename: {release}\nSuite: {suite}\nOrigin: {origin}\nRelease: {release}\nRepo-URI: {uri}\nComponent: {component}\n\n"
            )
        };
        lines(
            &[
                entry("file:///m/debian/", "bookworm", "oldstable", "main", "Debian"),
                entry("file:///m/debian/", "bookworm", "oldstable", "contrib", "Debian"),
                entry("file:///m/debian/", "bookworm-updates", "oldstable-updates", "main", "Debian"),
                entry("file:///m/debian/", "bookworm-backports", "oldstable-backports", "main", "Debian"),
                entry("file:///m/security/", "bookworm-security", "oldstable-security", "main", "Debian"),
                entry("file:///m/tool/", "bookworm", "bookworm", "main", "Tool"),
            ]
            .concat(),
        )
    }

    #[test]
    fn the_hosts_own_suite_comes_from_where_the_host_has_it() {
        let settings = AptSettings::from_output("bookworm", &host(), &[]);
        let wanted = [
            "deb file:///m/debian/ bookworm contrib main",
            "deb file:///m/security/ bookworm-security main",
            "deb file:///m/debian/ bookworm-updates main",
        ];
        assert_eq!(settings.sources, wanted);
        assert_eq!(settings.mirror.as_deref(), Some("file:///m/debian/"));
    }

    #[test]
    fn another_suite_comes_from_the_same_mirrors() {
        let sources = AptSettings::from_output("trixie", &host(), &[]).sources;
        assert_eq!(sources.len(), 3);
        assert!(sources.contains(&"deb file:///m/security/ trixie-security main".to_owned()));
        let alias = AptSettings::from_output("oldstable", &host(), &[]).sources;
        assert!(alias.contains(&"deb file:///m/debian/ oldstable contrib main".to_owned()));
        let rolling = AptSettings::from_output("sid", &host(), &[]).sources;
        assert_eq!(rolling, ["deb file:///m/debian/ sid contrib main"]);
    }

    #[test]
    fn a_host_without_a_debian_mirror_has_no_sources() {
        let ubuntu = lines("Origin: Ubuntu\nRelease: noble\nRepo-URI: file:///u/\nComponent: main\n");
        assert_eq!(AptSettings::from_output("sid", &ubuntu, &[]), AptSettings::default());
        assert_eq!(AptSettings::from_output("sid", &[], &[]), AptSettings::default());
    }

    #[test]
    fn how_to_reach_mirrors_is_passed_on_and_nothing_else() {
        let configuration = lines(
            "APT::Install-Recommends \"1\";\nAcquire::http::Proxy \"http://proxy.invalid:1/\";\n\
             Acquire::http::Proxy-Auto-Detect \"/usr/bin/x\";\nAcquire::https::CaInfo \"/etc/x\";\nAcquire::Retries \"3\";",
        );
        let settings = AptSettings::from_output("sid", &[], &configuration);
        assert_eq!(
            settings.configuration,
            ["Acquire::http::Proxy \"http://proxy.invalid:1/\";", "Acquire::Retries \"3\";"]
        );
        assert_eq!(settings.proxy.as_deref(), Some("http://proxy.invalid:1/"));
    }
}

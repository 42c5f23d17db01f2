//! How a source is written: `host`, `/dir`, `root.tar.zst`, `oci:DIR:TAG`, `debian:bookworm+nginx`, `guest:NAME`.

use super::Source;
use super::registry::Reference;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The endings by which a path is known as a tarball. The ending only tells that it is one; how it is compressed its
/// first bytes tell.
const TARBALL_ENDINGS: [&str; 8] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.zstd", ".tar.xz", ".txz"];

/// More packages than this in one source are a mistake.
const MAX_PACKAGES: usize = 1_000;

/// A source that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyntaxError {
    /// No form of a source fits the text.
    #[error(
        "'{0}' is not a source of files; a source is host, a directory (/DIR or ./DIR), a tarball (FILE.tar, .tar.gz, .tar.zst or \
         .tar.xz), oci:DIR[:TAG] or oci:FILE.tar[:TAG], docker://REGISTRY/IMAGE:TAG, debian:SUITE[+PACKAGE,PACKAGE…], or guest:NAME"
    )]
    Unknown(String),
    /// `oci:` with nothing after it.
    #[error("'{0}' names no image; write oci:DIR or oci:FILE.tar, and oci:DIR:TAG to choose one of several")]
    Oci(String),
    /// `docker:` with what cannot be the name of an image.
    #[error("'{text}' names no image of a registry: {reason}; write for example docker://docker.io/library/nginx:1.27")]
    Docker {
        /// The source as it was written.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// `debian:` with a word that no suite can be.
    #[error(
        "'{word}' in '{text}' cannot be the name of a Debian suite; write for example debian:bookworm, or \
         debian:trixie+nginx,postgresql for more packages"
    )]
    Suite {
        /// The source as it was written.
        text: String,
        /// The word in it that is wrong.
        word: String,
    },
    /// `debian:` with a word that no package can be.
    #[error(
        "'{word}' in '{text}' cannot be the name of a Debian package (lower-case letters, digits, + - .); write for example \
         debian:bookworm+nginx,postgresql"
    )]
    Package {
        /// The source as it was written.
        text: String,
        /// The word in it that is wrong.
        word: String,
    },
    /// `guest:` with a word that no guest can be called.
    #[error("'{0}' names no guest; write guest:NAME with a name that `pando ls` shows")]
    Guest(String),
}

impl FromStr for Source {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        if text == "host" {
            return Ok(Self::Host);
        }
        if let Some(rest) = text.strip_prefix("oci:") {
            return oci(text, rest);
        }
        if let Some(rest) = text.strip_prefix("docker:") {
            return docker(text, rest.strip_prefix("//").unwrap_or(rest));
        }
        if let Some(rest) = text.strip_prefix("debian:") {
            return debian(text, rest);
        }
        if let Some(name) = text.strip_prefix("guest:") {
            let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0', ' ']);
            return if plain { Ok(Self::Guest(name.to_owned())) } else { Err(SyntaxError::Guest(text.to_owned())) };
        }
        if text.contains('\0') {
            return Err(SyntaxError::Unknown(text.escape_default().to_string()));
        }
        if is_tarball(text) {
            return Ok(Self::Tarball(PathBuf::from(text)));
        }
        let directory = text.starts_with('/') || text.starts_with("./") || text.starts_with("../");
        if directory || text == "." || text == ".." {
            return Ok(Self::Directory(PathBuf::from(text)));
        }
        Err(SyntaxError::Unknown(text.to_owned()))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => write!(out, "host"),
            Self::Directory(path) | Self::Tarball(path) => write!(out, "{}", path.display()),
            Self::Oci { path, tag: None } => write!(out, "oci:{}", path.display()),
            Self::Oci { path, tag: Some(tag) } => write!(out, "oci:{}:{tag}", path.display()),
            Self::Docker(reference) => write!(out, "docker://{reference}"),
            Self::Debian { suite, packages } if packages.is_empty() => write!(out, "debian:{suite}"),
            Self::Debian { suite, packages } => write!(out, "debian:{suite}+{}", packages.join(",")),
            Self::Guest(name) => write!(out, "guest:{name}"),
        }
    }
}

impl Source {
    /// The same source with its path made absolute: the daemon that will read it works in another directory than the
    /// user.
    pub fn absolute(self, working_directory: &Path) -> Self {
        match self {
            Self::Directory(path) => Self::Directory(working_directory.join(path)),
            Self::Tarball(path) => Self::Tarball(working_directory.join(path)),
            Self::Oci { path, tag } => Self::Oci { path: working_directory.join(path), tag },
            other => other,
        }
    }
}

fn is_tarball(text: &str) -> bool {
    let name = text.rsplit('/').next().unwrap_or(text);
    TARBALL_ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending))
}

/// The first colon ends the path, as in skopeo: a tag may hold colons (`example.org/app:1`), so a path here cannot.
fn oci(text: &str, rest: &str) -> Result<Source, SyntaxError> {
    let (path, tag) = match rest.split_once(':') {
        None => (rest, None),
        Some((path, tag)) => (path, Some(tag)),
    };
    if path.is_empty() || rest.contains('\0') || tag.is_some_and(str::is_empty) {
        return Err(SyntaxError::Oci(text.escape_default().to_string()));
    }
    Ok(Source::Oci { path: PathBuf::from(path), tag: tag.map(str::to_owned) })
}

/// What other tools call it, `nginx`, is `docker.io/library/nginx:latest` in full.
fn docker(text: &str, rest: &str) -> Result<Source, SyntaxError> {
    match rest.parse::<Reference>() {
        Ok(reference) => Ok(Source::Docker(reference)),
        Err(error) => {
            let reason = error.to_string();
            Err(SyntaxError::Docker { text: text.escape_default().to_string(), reason })
        }
    }
}

fn debian(text: &str, rest: &str) -> Result<Source, SyntaxError> {
    let (suite, packages) = match rest.split_once('+') {
        None => (rest, Vec::new()),
        Some((suite, packages)) => (suite, packages.split(',').collect()),
    };
    if !is_suite(suite) {
        return Err(SyntaxError::Suite { text: text.to_owned(), word: suite.to_owned() });
    }
    let wrong = packages.iter().find(|package| !is_package(package));
    if let Some(word) = wrong.or(packages.get(MAX_PACKAGES)) {
        return Err(SyntaxError::Package { text: text.to_owned(), word: (*word).to_owned() });
    }
    Ok(Source::Debian { suite: suite.to_owned(), packages: packages.into_iter().map(str::to_owned).collect() })
}

/// Whether `word` can be a suite. It becomes an argument of a program and a part of a URI: a letter first, and nothing
/// that means something there.
pub(crate) fn is_suite(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    word.len() <= 64
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(plain)
        && !word.contains("..")
}

/// Whether `word` can be a package, by Debian policy 5.6.7.
pub(crate) fn is_package(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
    let first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (2..=128).contains(&word.len()) && word.starts_with(first) && word.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Source, SyntaxError> {
        text.parse()
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(read("host"), Ok(Source::Host));
        assert_eq!(read("/srv/a"), Ok(Source::Directory("/srv/a".into())));
        assert_eq!(read("./a"), Ok(Source::Directory("./a".into())));
        for name in ["a.tar", "/x/a.tar.gz", "a.tgz", "a.tar.zst", "./a.tar.xz"] {
            assert_eq!(read(name), Ok(Source::Tarball(name.into())), "{name}");
        }
        assert_eq!(read("oci:/a"), Ok(Source::Oci { path: "/a".into(), tag: None }));
        assert_eq!(read("oci:a.tar:x:1"), Ok(Source::Oci { path: "a.tar".into(), tag: Some("x:1".into()) }));
        for name in ["docker:nginx", "docker://docker.io/library/nginx:latest", "docker://nginx:latest"] {
            assert_eq!(read(name).unwrap().to_string(), "docker://docker.io/library/nginx:latest");
        }
        assert_eq!(read("debian:sid"), Ok(Source::Debian { suite: "sid".into(), packages: vec![] }));
        let packages = vec!["nginx".to_owned(), "g++".to_owned()];
        assert_eq!(read("debian:bookworm+nginx,g++"), Ok(Source::Debian { suite: "bookworm".into(), packages }));
        assert_eq!(read("guest:web"), Ok(Source::Guest("web".into())));
    }

    #[test]
    fn a_directory_whose_name_ends_like_a_tarball_is_written_with_a_slash() {
        assert_eq!(read("/x/a.tar/"), Ok(Source::Directory("/x/a.tar/".into())));
    }

    #[test]
    fn what_no_form_fits_is_refused_in_a_sentence_that_names_it() {
        for wrong in [
            "",
            "Host",
            "dir",
            ".tar",
            "a.zip",
            "oci:",
            "oci::x",
            "oci:a:",
            "debian:",
            "debian:--help",
            "debian:a/b",
            "docker:",
            "docker://A b",
        ] {
            let message = read(wrong).unwrap_err().to_string();
            assert!(message.contains(&format!("'{wrong}'")), "{message}");
        }
        for wrong in
            ["debian:sid+", "debian:sid+a,,b", "debian:sid+-x", "debian:sid+a b", "guest:", "guest:../x", "guest:a/b"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_are_made_absolute() {
        let source = read("oci:x:1").unwrap().absolute(Path::new("/w"));
        assert_eq!(source.to_string(), "oci:/w/x:1");
        assert_eq!(read("/a").unwrap().absolute(Path::new("/w")).to_string(), "/a");
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "(oci:|debian:|guest:|/|\\./)?[a-z0-9.:+,/-]{0,24}") {
            if let Ok(source) = read(&text) {
                prop_assert_eq!(source.to_string(), text);
            }
        }

        #[test]
        fn no_text_is_too_strange(text in ".{0,64}") {
            let _ = read(&text);
        }
    }
}

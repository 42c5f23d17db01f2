//! The word after `--from`: what a guest's files are made from.

use pando_guest::source::registry::Reference;

/// The words that are not paths.
const PREFIXES: [&str; 2] = ["debian:", "guest:"];

/// What an image of a registry is written with.
pub(crate) const REGISTRY: &str = "docker://";

/// The source as the daemon takes it: paths are absolute, since the daemon stands elsewhere, and images of registries
/// have their full names.
pub(crate) fn source(word: &str) -> Result<String, String> {
    if word.is_empty() {
        return Err(
            "a source is host, DIR, FILE.tar[.gz|.zst], oci:DIR, docker://IMAGE, debian:SUITE or guest:NAME".to_owned()
        );
    }
    if word == "host" || PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
        return Ok(word.to_owned());
    }
    if let Some(image) = word.strip_prefix("docker:") {
        return full_name(image).map(|name| format!("{REGISTRY}{name}"));
    }
    match word.strip_prefix("oci:") {
        Some(directory) => Ok(format!("oci:{}", absolute(directory)?)),
        None => path_or_image(word),
    }
}

/// A path where there is something, or where it is written as one; else an image of a registry, if it can be one.
fn path_or_image(word: &str) -> Result<String, String> {
    let is_path = word.starts_with(['/', '.']) || std::path::Path::new(word).exists();
    match full_name(word) {
        Ok(name) if !is_path && !is_tarball(word) => Ok(format!("{REGISTRY}{name}")),
        _ => absolute(word),
    }
}

/// Whether a file is meant, which is not there.
fn is_tarball(word: &str) -> bool {
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.xz", ".txz"].iter().any(|ending| word.ends_with(ending))
}

/// The full name of an image: `nginx` is `docker.io/library/nginx:latest`.
pub(crate) fn full_name(word: &str) -> Result<String, String> {
    let word = word.strip_prefix("docker:").unwrap_or(word);
    let name = word.strip_prefix("//").unwrap_or(word);
    let wrong = |reason: String| format!("'{name}' cannot be the name of an image: {reason}; for example nginx:1.27");
    name.parse::<Reference>().map(|reference| reference.whole()).map_err(|error| wrong(error.to_string()))
}

/// A path of the caller's, from the root directory.
pub(crate) fn absolute(path: &str) -> Result<String, String> {
    let absolute = std::path::absolute(path).map_err(|error| crate::errno_words::reason(&error))?;
    absolute.into_os_string().into_string().map_err(|_| format!("the path '{path}' is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_are_made_absolute() {
        for kept in ["host", "debian:bookworm", "guest:web", "/srv/root", "oci:/srv/image"] {
            assert_eq!(source(kept).unwrap(), kept);
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(source("./root.tar").unwrap(), here.join("root.tar").to_str().unwrap());
        assert_eq!(source("root.tar.gz").unwrap(), here.join("root.tar.gz").to_str().unwrap());
        assert_eq!(source("src").unwrap(), here.join("src").to_str().unwrap());
        assert_eq!(source("./host").unwrap(), here.join("host").to_str().unwrap());
        assert_eq!(source("oci:image").unwrap(), format!("oci:{}", here.join("image").display()));
        assert!(source("").is_err() && source("oci:").is_err());
    }

    #[test]
    fn images_of_registries_get_their_full_names() {
        for (word, name) in [
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("docker://nginx", "docker.io/library/nginx:latest"),
            ("docker:team/app", "docker.io/team/app:latest"),
            ("localhost:5000/app:1", "localhost:5000/app:1"),
            ("quay.io/team/app", "quay.io/team/app:latest"),
        ] {
            assert_eq!(source(word).unwrap(), format!("docker://{name}"), "{word}");
        }
        assert!(source("docker:").is_err() && source("docker://A b").unwrap_err().contains("A b"));
    }
}

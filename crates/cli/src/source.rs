//! The word after `--from`: what a guest's files are made from.

use crate::foreign_words::fetching;

/// The words that are not paths.
const PREFIXES: [&str; 2] = ["debian:", "guest:"];

/// The source as the daemon takes it: paths are absolute, since the daemon stands elsewhere.
pub(crate) fn source(word: &str) -> Result<String, String> {
    if word.is_empty() {
        return Err("a source is host, DIR, FILE.tar[.gz|.zst], oci:DIR, debian:SUITE or guest:NAME".to_owned());
    }
    if word == "host" || PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
        return Ok(word.to_owned());
    }
    match word.strip_prefix("oci:") {
        Some(directory) => Ok(format!("oci:{}", absolute(directory)?)),
        None => path(word),
    }
}

/// A path, or a word that could be one. What is not there may be meant as an image of a registry.
fn path(word: &str) -> Result<String, String> {
    let is_plainly_a_path = word.starts_with(['/', '.']) || std::path::Path::new(word).exists();
    match fetching(word).filter(|_| !is_plainly_a_path) {
        Some(how) => Err(format!("there is no file or directory of that name here. {how}")),
        None => absolute(word),
    }
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
        assert_eq!(source("src").unwrap(), here.join("src").to_str().unwrap());
        assert!(source("nginx:1.27").unwrap_err().contains("skopeo"));
        assert_eq!(source("./host").unwrap(), here.join("host").to_str().unwrap());
        assert_eq!(source("oci:image").unwrap(), format!("oci:{}", here.join("image").display()));
        assert!(source("").is_err() && source("oci:").is_err());
    }
}

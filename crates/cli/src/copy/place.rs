//! The two words of `cp`: a path here, a path in a guest, or a stream.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a copy comes from or goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `GUEST:PATH`; the path is absolute.
    Guest { name: String, path: String },
    /// A path of the host's.
    Host(PathBuf),
    /// `-`: a tar stream on standard input or output.
    Stream,
}

impl FromStr for Place {
    type Err = Infallible;

    /// As docker reads it: a colon makes it a guest's, unless a slash or a dot in front says that it is a path.
    fn from_str(word: &str) -> Result<Self, Infallible> {
        if word == "-" {
            return Ok(Self::Stream);
        }
        match word.split_once(':') {
            Some((name, path)) if !name.is_empty() && !name.contains('/') && !name.starts_with('.') => {
                let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
                Ok(Self::Guest { name: name.to_owned(), path })
            }
            _ => Ok(Self::Host(word.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        let guest = |path: &str| Place::Guest { name: "web".into(), path: path.into() };
        assert_eq!("web:/etc/x".parse(), Ok(guest("/etc/x")));
        assert_eq!("web:etc/x:y".parse(), Ok(guest("/etc/x:y")));
        assert_eq!("web:".parse(), Ok(guest("/")));
        assert_eq!("-".parse(), Ok(Place::Stream));
        for path in ["./web:x", "/web:x", "web", "../a:b", "a/b:c", ":x"] {
            assert_eq!(path.parse(), Ok(Place::Host(path.into())));
        }
    }
}

//! A file system in memory, as users ask for one.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A file system in memory that a guest has from its start: `PATH[:size=SIZE,mode=MODE,exec]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tmpfs {
    /// Absolute path in the guest; made if it is missing.
    pub target: String,
    /// How much it holds, in the kernel's words: `64m`, `10%`. Default: half of the memory.
    pub size: Option<String>,
    /// The mode of its top directory, in octal. Default: 1777.
    pub mode: Option<String>,
    /// Whether programs on it can be executed.
    pub exec: bool,
}

/// A word that is no such file system.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "'{0}' is not PATH or PATH:OPTION,… with size=SIZE, mode=MODE and exec; for example --tmpfs /run:size=64m,mode=755"
)]
pub struct TmpfsError(String);

fn is_size(word: &str) -> bool {
    let number = word.strip_suffix(['k', 'm', 'g', 'K', 'M', 'G', '%']).unwrap_or(word);
    !number.is_empty() && number.len() <= 12 && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_mode(word: &str) -> bool {
    (3..=5).contains(&word.len()) && word.bytes().all(|byte| (b'0'..=b'7').contains(&byte))
}

impl FromStr for Tmpfs {
    type Err = TmpfsError;

    fn from_str(text: &str) -> Result<Self, TmpfsError> {
        let wrong = || TmpfsError(text.to_owned());
        let (target, options) = text.split_once(':').unwrap_or((text, ""));
        // One place has one name: it is compared with what is mounted.
        let is_plain = |path: &str| !path.split('/').any(|part| part.is_empty() || part == "." || part == "..");
        if target.contains(char::is_control) || !target.strip_prefix('/').is_some_and(is_plain) {
            return Err(wrong());
        }
        let mut made = Self { target: target.to_owned(), size: None, mode: None, exec: false };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("size", size)) if is_size(size) => made.size = Some(size.to_owned()),
                Some(("mode", mode)) if is_mode(mode) => made.mode = Some(mode.to_owned()),
                None if option == "exec" => made.exec = true,
                // As it is without them.
                None if matches!(option, "rw" | "noexec" | "nosuid" | "nodev") => {}
                _ => return Err(wrong()),
            }
        }
        Ok(made)
    }
}

impl fmt::Display for Tmpfs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size.as_ref().map(|size| format!("size={size}"));
        let mode = self.mode.as_ref().map(|mode| format!("mode={mode}"));
        let options: Vec<String> = size.into_iter().chain(mode).chain(self.exec.then(|| "exec".to_owned())).collect();
        out.write_str(&self.target)?;
        if options.is_empty() { Ok(()) } else { write!(out, ":{}", options.join(",")) }
    }
}

impl From<Tmpfs> for String {
    fn from(tmpfs: Tmpfs) -> Self {
        tmpfs.to_string()
    }
}

impl TryFrom<String> for Tmpfs {
    type Error = TmpfsError;

    fn try_from(text: String) -> Result<Self, TmpfsError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reads_as_it_is_written() {
        for text in ["/run", "/run:size=64m", "/tmp:size=10%,mode=1777", "/x:mode=755,exec"] {
            assert_eq!(text.parse::<Tmpfs>().unwrap().to_string(), text);
        }
        assert_eq!("/run:rw,noexec,nosuid,size=1G".parse::<Tmpfs>().unwrap().to_string(), "/run:size=1G");
    }

    #[test]
    fn what_the_kernel_would_take_for_something_else_is_refused() {
        for text in [
            "",
            "run",
            "/run:size=",
            "/run:size=x",
            "/run:size=1t",
            "/run:mode=9",
            "/run:mode=7",
            "/run:uid=0",
            "/run/",
            "/a//b",
            "/a/../b",
            "/r:ro",
        ] {
            assert!(text.parse::<Tmpfs>().unwrap_err().to_string().contains("for example --tmpfs"), "{text}");
        }
    }
}

//! `--env-file FILE`: variables, a line each, as docker reads them.

use crate::guest_options::environment;
use anyhow::{Context, anyhow, ensure};
use std::io::Read;

/// The most bytes of such a file: a device, or what a program went astray with, has no end.
const LONGEST: u64 = 1 << 20;

/// The variables of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EnvFile(pub(crate) Vec<(String, String)>);

/// Reads `NAME=VALUE` lines. `NAME` alone takes the caller's value; lines that begin with # say nothing. A value goes
/// to the end of its line, quotes and blanks included.
pub(crate) fn read(path: &str) -> anyhow::Result<EnvFile> {
    let unread = || format!("cannot read the variables in '{path}'");
    let mut text = String::new();
    std::fs::File::open(path).with_context(unread)?.take(LONGEST + 1).read_to_string(&mut text).with_context(unread)?;
    ensure!(text.len() as u64 <= LONGEST, "'{path}' has more than {} KiB; is it the right file?", LONGEST >> 10);
    let mut variables = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: String| anyhow!("line {} of '{path}': {why}", number + 1);
        let name = line.split('=').next().unwrap_or_default();
        if name.contains(char::is_whitespace) {
            return Err(wrong(format!("'{name}' has a blank in it, and is no variable's name")));
        }
        variables.extend(environment(line).map_err(wrong)?);
    }
    Ok(EnvFile(variables))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> anyhow::Result<EnvFile> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path().to_str().unwrap())
    }

    #[test]
    fn lines_are_variables_as_they_stand() {
        let read = of("# said\n\nA=b=c # d\n  B=\"q\"\r\nC=\nPANDO_NO_SUCH_VARIABLE\n").unwrap().0;
        let expected = [("A", "b=c # d"), ("B", "\"q\""), ("C", "")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, place) in [("A=1\nexport B=2\n", "line 2"), ("=x\n", "line 1")] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
        }
        assert!(read("/dev/zero").unwrap_err().to_string().contains("more than"));
        assert!(read("/no/such/file").is_err());
    }
}

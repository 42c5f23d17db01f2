//! `--env-file FILE`: variables, a line each, as docker reads them.

use crate::guest_options::environment;
use crate::host_path;
use crate::state_root::StateRoot;
use anyhow::{Context, anyhow, ensure};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes of such a file: a device, or what a program went astray with, has no end.
const LONGEST: u64 = 1 << 20;

/// The variables of several files, in their order.
pub(crate) fn read_all(root: &StateRoot, paths: &[PathBuf]) -> anyhow::Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for path in paths {
        let unread = || format!("cannot read the variables in '{}'", path.display());
        let file = host_path::read(root, path).with_context(unread)?;
        variables.extend(read(file, path)?);
    }
    Ok(variables)
}

/// Reads `NAME=VALUE` lines. `NAME` alone takes the caller's value; lines that begin with # say nothing. A value goes
/// to the end of its line, quotes and blanks included.
fn read(file: impl Read, path: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let path = path.display();
    let mut text = String::new();
    let read = file.take(LONGEST + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read the variables in '{path}'"))?;
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
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> anyhow::Result<Vec<(String, String)>> {
        read(text.as_bytes(), Path::new("variables"))
    }

    #[test]
    fn lines_are_variables_as_they_stand() {
        let read = of("# said\n\nA=b=c # d\n  B=\"q\"\r\nC=\nPANDO_NO_SUCH_VARIABLE\n").unwrap();
        let expected = [("A", "b=c # d"), ("B", "\"q\""), ("C", "")];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, place) in [("A=1\nexport B=2\n", "line 2"), ("=x\n", "line 1")] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
        }
        assert!(read(std::io::repeat(b'a'), Path::new("endless")).unwrap_err().to_string().contains("more than"));
    }
}

//! `--spec FILE`: a guest's spec as TOML.

use crate::host_path;
use crate::state_root::StateRoot;
use anyhow::{Context, bail, ensure};
use pando_api::Spec;
use std::io::Read;
use std::path::Path;

/// The most bytes of a spec. One that people write has a few hundred; a device, or what a program went astray with, has
/// no end.
const LONGEST: u64 = 256 << 10;

/// Reads a spec; a mistake is told with its line and column.
pub(crate) fn read(root: &StateRoot, path: &Path) -> anyhow::Result<Spec> {
    let unread = || format!("cannot read the spec '{}'", path.display());
    let mut text = String::new();
    let file = host_path::read(root, path).with_context(unread)?;
    file.take(LONGEST + 1).read_to_string(&mut text).with_context(unread)?;
    ensure!(
        text.len() as u64 <= LONGEST,
        "the spec '{}' has more than {} KiB, and no spec needs so much; is it the right file?",
        path.display(),
        LONGEST >> 10
    );
    match toml::from_str(&text) {
        Ok(spec) => Ok(spec),
        Err(error) => bail!("the spec '{}' is wrong{}: {}", path.display(), place(&text, &error), error.message()),
    }
}

fn place(text: &str, error: &toml::de::Error) -> String {
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return String::new();
    };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!(" in line {line}, column {column}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> StateRoot {
        StateRoot::at("/").unwrap()
    }

    fn complaint(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(&root(), file.path()).unwrap_err().to_string()
    }

    #[test]
    fn a_spec_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "command = [\"sleep\", \"1\"]\nnetwork = \"host\"\n[env]\nA = \"b\"\n[[volumes]]\nsource = \"/a\"\ntarget = \"/b\"\n";
        std::fs::write(file.path(), text).unwrap();
        let spec = read(&root(), file.path()).unwrap();
        assert_eq!(spec.command, ["sleep", "1"]);
        assert_eq!(spec.network, pando_api::Network::Host);
        assert_eq!(spec.volumes[0].target, "/b");
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let error = read(&root(), Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("more than 256 KiB"), "{error}");
        let many: String =
            (0..100_000).map(|number| format!("[[volumes]]\nsource = \"/a\"\ntarget = \"/{number}\"\n")).collect();
        assert!(complaint(&many).contains("more than 256 KiB"));
    }

    #[test]
    fn a_wrong_key_is_told_with_its_place_and_the_right_ones() {
        let text = complaint("hostname = \"h\"\ncomand = [\"x\"]\n");
        assert!(text.contains("line 2, column 1"), "{text}");
        assert!(text.contains("comand") && text.contains("`command`") && text.contains("`volumes`"), "{text}");
    }

    #[test]
    fn a_wrong_value_and_wrong_toml_are_told_with_their_place() {
        let text = complaint("\n  network = \"maybe\"\n");
        assert!(text.contains("line 2, column 13") && text.contains("`none`"), "{text}");
        let text = complaint("command = [\n");
        assert!(text.contains("in line"), "{text}");
    }
}

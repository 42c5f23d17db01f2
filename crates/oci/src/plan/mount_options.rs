//! Options of a mount, as mount(8) and runc know them.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// What mount_setattr(2) changes of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// `MOUNT_ATTR_*` that are set.
    pub(crate) set: u32,
    /// Those that are taken away.
    pub(crate) clear: u32,
    /// The same for the mounts below, too.
    pub(crate) set_below: u32,
    /// Those that are taken away there.
    pub(crate) clear_below: u32,
    /// `MS_SHARED` and the like, or 0, and whether for the mounts below too.
    pub(crate) propagation: u32,
    /// Whether the propagation is that of the mounts below, too.
    pub(crate) propagation_below: bool,
}

/// The options of one mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether it is a mount of the host, and with those below.
    pub(crate) bind: Option<Bind>,
    /// Attributes and propagation.
    pub(crate) change: Change,
    /// Options of the file system.
    pub(crate) data: Vec<String>,
    /// Whether its files are shown by a map of ids, and those of the mounts below.
    pub(crate) mapped: Option<Bind>,
    /// Whether a new file system begins with what lies below it.
    pub(crate) copy_up: bool,
}

/// A mount of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bind {
    /// Alone.
    Single,
    /// With the mounts below.
    Recursive,
}

const READ_ONLY: u32 = 0x1;
const NO_SUID: u32 = 0x2;
const NO_DEV: u32 = 0x4;
const NO_EXEC: u32 = 0x8;
/// The mask of what is said of access times, and its values; 0 is relatime.
const ATIME: u32 = 0x70;
const NO_ATIME: u32 = 0x10;
const STRICT_ATIME: u32 = 0x20;
const NO_DIR_ATIME: u32 = 0x80;
const NO_SYMFOLLOW: u32 = 0x20_0000;

const ATTRIBUTES: [(&str, u32, u32); 18] = [
    ("ro", READ_ONLY, 0),
    ("rw", 0, READ_ONLY),
    ("nosuid", NO_SUID, 0),
    ("suid", 0, NO_SUID),
    ("nodev", NO_DEV, 0),
    ("dev", 0, NO_DEV),
    ("noexec", NO_EXEC, 0),
    ("exec", 0, NO_EXEC),
    ("noatime", NO_ATIME, ATIME),
    ("atime", 0, ATIME),
    ("relatime", 0, ATIME),
    ("norelatime", 0, 0),
    ("strictatime", STRICT_ATIME, ATIME),
    ("nostrictatime", 0, ATIME),
    ("nodiratime", NO_DIR_ATIME, 0),
    ("diratime", 0, NO_DIR_ATIME),
    ("nosymfollow", NO_SYMFOLLOW, 0),
    ("symfollow", 0, NO_SYMFOLLOW),
];

const UNBINDABLE: u32 = 1 << 17;
const PRIVATE: u32 = 1 << 18;
const SLAVE: u32 = 1 << 19;
const SHARED: u32 = 1 << 20;

const PROPAGATIONS: [(&str, u32); 4] =
    [("private", PRIVATE), ("slave", SLAVE), ("shared", SHARED), ("unbindable", UNBINDABLE)];

/// The propagation of a word such as `rslave`, and whether it is that of the mounts below, too.
pub(crate) fn propagation(word: &str) -> Option<(u32, bool)> {
    let of = |word: &str| PROPAGATIONS.iter().find(|(name, _)| *name == word).map(|(_, flag)| *flag);
    of(word).map(|flag| (flag, false)).or_else(|| Some((of(word.strip_prefix('r')?)?, true)))
}

fn attribute(word: &str) -> Option<(u32, u32)> {
    ATTRIBUTES.iter().find(|(name, ..)| *name == word).map(|(_, set, clear)| (*set, *clear))
}

/// Reads the options of a mount.
pub(crate) fn read(kind: &str, words: &[String]) -> Result<Options> {
    let mut options = Options { bind: (kind == "bind").then_some(Bind::Single), ..Options::default() };
    let change = &mut options.change;
    for word in words {
        if let Some((set, clear)) = attribute(word) {
            (change.set, change.clear) = ((change.set & !clear) | set, (change.clear & !set) | clear);
            continue;
        }
        if let Some((set, clear)) = word.strip_prefix('r').and_then(attribute) {
            change.set_below = (change.set_below & !clear) | set;
            change.clear_below = (change.clear_below & !set) | clear;
            continue;
        }
        if let Some((flag, below)) = propagation(word) {
            (change.propagation, change.propagation_below) = (flag, below);
            continue;
        }
        match word.as_str() {
            "bind" => options.bind = options.bind.or(Some(Bind::Single)),
            "rbind" => options.bind = Some(Bind::Recursive),
            "tmpcopyup" => options.copy_up = true,
            "defaults" | "silent" | "loud" | "iversion" | "noiversion" | "acl" | "noacl" | "nomand" => {}
            "idmap" => options.mapped = Some(Bind::Single),
            "ridmap" => options.mapped = Some(Bind::Recursive),
            "remount" => bail!("mount option 'remount' is not supported by this runtime"),
            _ => options.data.push(word.clone()),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: &str, words: &[&str]) -> Options {
        read(kind, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_last_word_counts() {
        let change = options("tmpfs", &["ro", "nosuid", "rw", "noatime", "strictatime"]).change;
        assert_eq!((change.set, change.clear), (NO_SUID | STRICT_ATIME, READ_ONLY | ATIME));
    }

    #[test]
    fn what_is_recursive_is_so_by_its_first_letter() {
        let options = options("none", &["rbind", "rro", "rslave"]);
        assert_eq!(options.bind, Some(Bind::Recursive));
        assert_eq!((options.change.set, options.change.set_below), (0, READ_ONLY));
        assert_eq!((options.change.propagation, options.change.propagation_below), (SLAVE, true));
        assert_eq!(propagation("rw"), None);
    }

    #[test]
    fn what_nobody_knows_is_the_file_systems() {
        assert_eq!(options("tmpfs", &["mode=755", "size=64k", "nosuid"]).data, ["mode=755", "size=64k"]);
        assert_eq!(options("none", &["bind", "ridmap"]).mapped, Some(Bind::Recursive));
        let refused = read("bind", &["remount".to_owned()]).unwrap_err();
        assert!(refused.to_string().contains("'remount'"));
    }
}

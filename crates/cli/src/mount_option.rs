//! `--mount type=KIND,…`, as docker and podman write it.

use crate::source;
use pando_api::{Tmpfs, Volume, is_volume_name};
use std::collections::BTreeMap;

/// What is to be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mount {
    /// A directory or file of the host's, or a volume that is known by its name.
    Volume(Volume),
    /// A file system in memory.
    Memory(Tmpfs),
}

const KINDS: &str = "type=bind,src=/HOST,dst=/GUEST[,ro], type=volume,src=NAME,dst=/GUEST[,ro] or type=tmpfs,dst=/GUEST[,tmpfs-size=SIZE,tmpfs-mode=MODE]";

/// Reads one. Every word counts: one that says nothing here is refused.
pub(crate) fn mount(text: &str) -> Result<Mount, String> {
    let mut words: BTreeMap<&str, &str> = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, "true"));
        let key = match key {
            "source" | "src" => "src",
            "target" | "dst" | "destination" => "dst",
            "readonly" | "ro" => "ro",
            other => other,
        };
        words.insert(key, value);
    }
    let wrong = |why: String| format!("mount '{text}' cannot be made: {why}; write {KINDS}");
    let target = words.remove("dst").filter(|target| target.starts_with('/'));
    let target = target.ok_or_else(|| wrong("it says no absolute path in the guest (dst)".to_owned()))?.to_owned();
    let kind = words.remove("type").unwrap_or("volume");
    let read_only = match words.remove("ro") {
        None | Some("false" | "0") => false,
        Some("true" | "1") => true,
        Some(other) => return Err(wrong(format!("ro is true or false, and not '{other}'"))),
    };
    let source = words.remove("src");
    let made = match (kind, source) {
        ("bind", Some(host)) => {
            // As it is without them: what is mounted below comes along, and what is mounted later is not seen.
            words.remove("bind-propagation").filter(|how| !matches!(*how, "rprivate" | "private")).map_or(
                Ok(()),
                |how| {
                    Err(wrong(format!(
                        "what is mounted later is seen by neither side, and bind-propagation={how} is not"
                    )))
                },
            )?;
            let host = source::absolute(host).map_err(&wrong)?;
            Mount::Volume(Volume { source: host, target, read_only })
        }
        ("volume", Some(name)) if is_volume_name(name) => {
            Mount::Volume(Volume { source: name.to_owned(), target, read_only })
        }
        ("volume", Some(name)) => return Err(wrong(format!("'{name}' is no name of a volume"))),
        ("tmpfs", None) => {
            let size = words.remove("tmpfs-size").map(|size| format!("size={size}"));
            let mode = words.remove("tmpfs-mode").map(|mode| format!("mode={mode}"));
            let options: Vec<_> = size.into_iter().chain(mode).collect();
            if read_only {
                return Err(wrong("a file system in memory that nobody writes to stays empty".to_owned()));
            }
            Mount::Memory(format!("{target}:{}", options.join(",")).parse().map_err(|error| format!("{error}"))?)
        }
        ("bind" | "volume", None) => {
            return Err(wrong("it says no source (src); Pando has no volumes without a name".to_owned()));
        }
        ("tmpfs", Some(_)) => return Err(wrong("a file system in memory has no source".to_owned())),
        (other, _) => return Err(wrong(format!("there is no kind '{other}'"))),
    };
    match words.keys().next() {
        Some(unknown) => Err(wrong(format!("'{unknown}' says nothing here"))),
        None => Ok(made),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_docker_reads_them() {
        let volume = |source: &str, read_only| {
            Ok(Mount::Volume(Volume { source: source.into(), target: "/b".into(), read_only }))
        };
        assert_eq!(mount("type=bind,src=/a,dst=/b,ro"), volume("/a", true));
        assert_eq!(
            mount("type=bind,source=/a,target=/b,readonly=false,bind-propagation=rprivate"),
            volume("/a", false)
        );
        assert_eq!(mount("src=data,destination=/b"), volume("data", false));
        let tmpfs = "/b:size=1m,mode=755".parse().unwrap();
        assert_eq!(mount("type=tmpfs,dst=/b,tmpfs-size=1m,tmpfs-mode=755"), Ok(Mount::Memory(tmpfs)));
    }

    #[test]
    fn what_says_nothing_is_refused_with_an_example() {
        for (wrong, because) in [
            ("", "dst"),
            ("type=bind,dst=/b", "src"),
            ("type=volume,dst=/b", "without a name"),
            ("type=bind,src=/a,dst=b", "dst"),
            ("type=image,src=a,dst=/b", "'image'"),
            ("type=bind,src=/a,dst=/b,volume-opt=x", "volume-opt"),
            ("type=bind,src=/a,dst=/b,bind-propagation=shared", "later"),
            ("type=volume,src=/a,dst=/b", "'/a'"),
            ("type=tmpfs,src=a,dst=/b", "no source"),
        ] {
            let refused = mount(wrong).unwrap_err();
            assert!(refused.contains(because) && refused.contains("type=bind,src="), "{wrong}: {refused}");
        }
    }
}

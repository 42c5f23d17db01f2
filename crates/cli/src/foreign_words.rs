//! Words of other container tools that mean something else here, or nothing: what does the same.

/// Verbs of docker, podman and incus, and what does here what they do there.
const VERBS: &[(&str, &str)] = &[
    (
        "build",
        "Pando builds no images: buildah, docker, mkosi or mmdebstrap make what `pando create NAME --from oci:DIR` (or DIR, FILE.tar) takes",
    ),
    (
        "checkpoint",
        "`pando freeze NAME` makes an image of a running guest, `pando restore` and `pando clone` make guests of it",
    ),
    (
        "compose",
        "`pando create` makes a guest each, `--restart` and `pando set NAME boot.priority=N` say what runs and in which order",
    ),
    ("config", "`pando set NAME KEY=VALUE` changes a guest's settings, `pando inspect NAME` shows them"),
    ("console", "`pando shell NAME` opens a shell in a guest, `pando logs -f NAME` shows its console"),
    ("container", "leave the word out: `pando ls`, `pando inspect NAME`, `pando rm NAME`"),
    (
        "copy",
        "`pando clone` makes guests of a frozen image, `pando create NEW --from guest:NAME` copies a stopped one, `pando cp` copies files",
    ),
    ("delete", "`pando rm NAME` removes a guest"),
    ("destroy", "`pando rm --force NAME` removes a guest, running or not"),
    ("df", "`pando store usage` says what guests and their common files take of the disk"),
    (
        "diff",
        "`pando tx` shows what a command would change; a guest's own files lie where `pando inspect NAME` says (directory)",
    ),
    ("enter", "`pando shell NAME` opens a shell in a guest"),
    (
        "export",
        "`pando image export IMAGE FILE` writes a frozen image, `pando cp NAME:/ -` a guest's files as a tar archive",
    ),
    ("file", "`pando cp FILE NAME:/PATH` and `pando cp NAME:/PATH FILE` copy files"),
    ("history", "`pando inspect NAME` names the layers that a guest stands on"),
    (
        "import",
        "`pando image import FILE` reads a frozen image, `pando create NAME --from FILE.tar` makes a guest of an archive",
    ),
    ("info", "`pando doctor` says what this machine offers, `pando inspect NAME` all that is known of a guest"),
    ("init", "`pando create NAME --from SOURCE` makes a guest and does not start it"),
    ("kube", "`pando create` makes a guest each; there are no pods"),
    ("launch", "`pando create NAME --from debian:bookworm --start` makes a guest and starts it"),
    ("list", "`pando ls` lists the guests, `pando images` the frozen images"),
    (
        "load",
        "`pando create NAME --from oci:FILE.tar` takes what `docker save` writes, `pando image import FILE` a frozen image",
    ),
    ("login", "`skopeo login REGISTRY` (or podman's, or docker's) leaves credentials where `pando pull` finds them"),
    ("machine", "guests share this machine's kernel: there is nothing to set up"),
    ("pod", "guests stand alone; several processes of one guest are started by `pando exec -d`"),
    ("remove", "`pando rm NAME` removes a guest"),
    (
        "rmi",
        "`pando image rm IMAGE` removes an image, frozen or pulled; layers go by themselves when no guest stands on them",
    ),
    ("save", "`pando image export IMAGE FILE` writes a frozen image to a file"),
    ("search", "`skopeo list-tags docker://IMAGE` lists what a registry has; `--from debian:bookworm` needs none"),
    ("snapshot", "`pando freeze NAME` makes an image of a running guest, `pando restore IMAGE` brings it back"),
    ("system", "`pando store usage`, `pando store gc` and `pando doctor` tell of the store and of the machine"),
    ("stack", "`pando create` makes a guest each; `pando set NAME boot.after=OTHER` says which comes first"),
    (
        "tag",
        "`pando image tag IMAGE NEW` gives an image of a registry another name; a frozen one is named when it is made: `pando freeze NAME IMAGE`",
    ),
    ("update", "`pando set NAME memory.limit=1G cpu.limit=2` changes limits, at once where that can be"),
];

/// Options of `docker run`, and what is said here instead.
const OPTIONS: &[(&str, &str)] = &[
    ("--cgroup-parent", "every guest has groups of its own; limits are `--memory`, `--cpu-limit`, `--pids`"),
    ("--cidfile", "`pando run -d --name NAME` has the name that you give it, and prints it"),
    (
        "--gpus",
        "`--device /dev/dri` gives a guest the graphics cards of the machine as they are; cards are not shared out, and nothing is put into the guest for them",
    ),
    (
        "--health-start-interval",
        "`--health-interval` holds from the start on; failures within `--health-start-period` do not count",
    ),
    ("--ipc", "a guest has an IPC namespace of its own always"),
    ("--isolation", "`--profile strict` keeps a guest from most"),
    ("--log-driver", "what a command prints is the guest's log: `pando logs`"),
    ("--log-opt", "`[logs] size` in /etc/pando/pando.toml bounds the logs"),
    ("--mac-address", "addresses of the link are made by the kernel; `--address` gives a guest an IP"),
    ("--ip", "`--address IP` gives a guest this address of its network"),
    (
        "--network-alias",
        "guests on one private network find each other by their names and host names: `--name`, `--hostname`",
    ),
    ("--oom-kill-disable", "`--memory-reserve` keeps a guest's memory from others"),
    ("--pid", "a guest has a pid namespace of its own always"),
    ("--platform", "a guest runs programs of this machine's kind"),
    (
        "--privileged",
        "it would make root inside root of this machine. `--profile system --init /sbin/init` runs a whole distribution, `--cap-add CAP` grants a single power, `--device /dev/X` a device, `--userns host` and `--seccomp off` lift single walls",
    ),
    ("--pull", "`--from IMAGE` pulls what is not here, and `pando pull IMAGE` what is new"),
    ("--runtime", "there is one"),
    ("--security-opt", "`--profile`, `--seccomp`, `--cap-add` and `--cap-drop` say what a guest may do"),
    ("--uts", "a guest has a host name of its own always; `--hostname` sets it"),
    ("--volume-driver", "mount it on the host, and show it by `-v HOST:GUEST`"),
    ("--volumes-from", "`-v NAME:GUEST` shows the same volume in several guests"),
];

/// What does here what a verb does elsewhere.
pub(crate) fn verb(word: &str) -> Option<&'static str> {
    VERBS.iter().find(|(name, _)| *name == word).map(|(_, advice)| *advice)
}

/// What is said here instead of an option, which may have a value behind it.
pub(crate) fn option(word: &str) -> Option<&'static str> {
    let name = word.split('=').next().unwrap_or(word);
    OPTIONS.iter().find(|(option, _)| *option == name).map(|(_, advice)| *advice)
}

/// How a word is said that was meant as an image of a registry: `nginx`, `ubuntu:24.04`, `quay.io/team/app`.
pub(crate) fn image(word: &str) -> Option<String> {
    let name = crate::source::full_name(word).ok()?;
    Some(format!("`pando run --from {word}` runs the image {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_one_of_ours() {
        let mut definition = crate::command_line::definition();
        definition.build();
        for (word, _) in VERBS {
            assert!(definition.find_subcommand(word).is_none(), "`pando {word}` is a command of ours");
        }
        for verb in ["run", "create"] {
            let verb = definition.find_subcommand(verb).expect("a verb");
            for (word, _) in OPTIONS {
                let name = word.trim_start_matches('-');
                assert!(
                    verb.get_arguments().all(|option| option.get_long() != Some(name)),
                    "{word} is an option of ours"
                );
            }
        }
    }

    #[test]
    fn images_of_registries_are_named_in_full() {
        let said = image("ubuntu:24.04").unwrap();
        assert!(said.contains("--from ubuntu:24.04`") && said.ends_with("docker.io/library/ubuntu:24.04"), "{said}");
        assert!(image("/srv/x").is_none() && image("a b").is_none() && image("").is_none());
    }
}

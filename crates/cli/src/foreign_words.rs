//! Words of other container tools that mean something else here, or nothing: what does the same.

/// Verbs of docker, podman and incus, and what does here what they do there.
const VERBS: [(&str, &str); 40] = [
    ("attach", "`pando logs -f NAME` shows what a guest prints, `pando shell NAME` opens a shell in it"),
    (
        "build",
        "Pando builds no images: buildah, docker, mkosi or mmdebstrap make what `pando create NAME --from oci:DIR` (or DIR, FILE.tar) takes",
    ),
    (
        "commit",
        "`pando freeze NAME` makes an image of a running guest with its memory, `pando create NEW --from guest:NAME` copies one that is stopped",
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
    ("login", "Pando talks to no registry: skopeo does (`skopeo login`, `skopeo copy docker://IMAGE oci:DIR`)"),
    ("machine", "guests share this machine's kernel: there is nothing to set up"),
    (
        "network",
        "`--net private` is a network of the guests' own, made when the first is on it; `pando address` gives a guest addresses of the host's network",
    ),
    ("pod", "guests stand alone; several processes of one guest are started by `pando exec -d`"),
    ("port", "`pando inspect NAME` shows a guest's ports (spec.publish) and addresses"),
    (
        "pull",
        "Pando talks to no registry: `skopeo copy docker://docker.io/library/nginx:latest oci:nginx` fetches an image, and `pando create web --from oci:nginx` takes it",
    ),
    ("push", "Pando talks to no registry: `pando image export IMAGE FILE` writes a frozen image to a file"),
    ("remove", "`pando rm NAME` removes a guest"),
    ("rmi", "`pando image rm IMAGE` removes a frozen image; layers go by themselves when no guest stands on them"),
    ("save", "`pando image export IMAGE FILE` writes a frozen image to a file"),
    ("search", "Pando talks to no registry; `--from debian:bookworm` needs none"),
    ("snapshot", "`pando freeze NAME` makes an image of a running guest, `pando restore IMAGE` brings it back"),
    ("system", "`pando store usage`, `pando store gc` and `pando doctor` tell of the store and of the machine"),
    ("tag", "`pando freeze NAME IMAGE` names an image when it is made"),
    ("update", "`pando set NAME memory.limit=1G cpu.limit=2` changes limits, at once where that can be"),
    ("volume", "`-v HOST:GUEST[:ro]` shows a directory of the host inside"),
];

/// Options of `docker run`, and what is said here instead.
const OPTIONS: [(&str, &str); 20] = [
    ("--add-host", "write it into the guest's /etc/hosts: `pando exec NAME -- sh -c 'echo 10.0.0.5 db >>/etc/hosts'`"),
    ("--cgroup-parent", "every guest has groups of its own; limits are `--memory`, `--cpu-limit`, `--pids`"),
    ("--device", "a guest gets no devices of the host's; docs/security.md says what it has"),
    (
        "--gpus",
        "a guest gets no devices of the host's, graphics cards neither: their drivers trust whoever opens them. Run what needs one on the host",
    ),
    ("--health-cmd", "let the command end when it is not well, with `--restart on-failure`"),
    ("--ipc", "a guest has an IPC namespace of its own always"),
    ("--isolation", "`--profile strict` keeps a guest from most"),
    ("--log-driver", "what a command prints is the guest's log: `pando logs`"),
    ("--log-opt", "`[logs] size` in /etc/pando/pando.toml bounds the logs"),
    ("--mac-address", "addresses of the link are made by the kernel; `--address` gives a guest an IP"),
    ("--mount", "`-v HOST:GUEST[:ro]` shows a directory or a file of the host inside"),
    ("--network-alias", "guests with `--net private` find each other by their names"),
    ("--oom-kill-disable", "`--memory-reserve` keeps a guest's memory from others"),
    ("--pid", "a guest has a pid namespace of its own always"),
    ("--platform", "a guest runs programs of this machine's kind"),
    (
        "--privileged",
        "it would make root inside root of this machine. `--profile system --init /sbin/init` runs a whole distribution, `--cap-add CAP` grants a single power, `--userns host` and `--seccomp off` lift single walls",
    ),
    ("--pull", "Pando talks to no registry: `skopeo copy docker://IMAGE oci:DIR` fetches an image"),
    ("--read-only", "`pando run` drops what the command writes; give volumes with `:ro`"),
    ("--runtime", "there is one"),
    ("--security-opt", "`--profile`, `--seccomp`, `--cap-add` and `--cap-drop` say what a guest may do"),
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

/// How an image of a registry becomes a source: `nginx`, `ubuntu:24.04`, `quay.io/team/app`, `docker://…`.
pub(crate) fn fetching(reference: &str) -> Option<String> {
    let reference = ["docker://", "docker:", "oci://"]
        .iter()
        .find_map(|prefix| reference.strip_prefix(prefix))
        .unwrap_or(reference);
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if reference.is_empty()
        || !reference.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !reference.chars().all(fits)
    {
        return None;
    }
    let full = match reference.split_once('/') {
        None => format!("docker.io/library/{reference}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => reference.to_owned(),
        Some(_) => format!("docker.io/{reference}"),
    };
    let last = full.rsplit('/').next().unwrap_or(&full);
    let directory = last.split([':', '@']).next().unwrap_or(last);
    let tag = if last.contains([':', '@']) { "" } else { ":latest" };
    let fetch = format!(
        "`skopeo copy docker://{full}{tag} oci:{directory}` fetches the image, and `--from oci:{directory}` takes it"
    );
    Some(match directory {
        "debian" => format!("`--from debian:bookworm` makes a Debian system from this machine's mirrors; {fetch}"),
        _ => fetch,
    })
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
        let named = |reference: &str| fetching(reference).unwrap_or_default();
        assert!(named("nginx").contains("docker://docker.io/library/nginx:latest oci:nginx`"));
        assert!(named("ubuntu:24.04").contains("docker://docker.io/library/ubuntu:24.04 oci:ubuntu`"));
        assert!(named("team/app").contains("docker://docker.io/team/app:latest oci:app`"));
        assert!(named("localhost:5000/app:1").contains("docker://localhost:5000/app:1 oci:app`"));
        assert!(named("docker://quay.io/team/app").contains("docker://quay.io/team/app:latest oci:app`"));
        assert!(named("debian").starts_with("`--from debian:bookworm`"));
        assert!(fetching("/srv/x").is_none() && fetching("a b").is_none() && fetching("").is_none());
    }
}

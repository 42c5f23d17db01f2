//! Every page of the guide: its commands end as the page says and print what it shows, and its settings and specs are
//! taken.
//!
//! A block says by the words at its fence what it needs, and [`PLACES`] has it made before each of its commands. What
//! no test can run stands in [`ELSEWHERE`] with the reason: a test that is skipped names and counts it.

use super::images::layout_of;
use crate::case::{Case, Tag, skip};
use crate::debian_image;
use crate::line::{Ended, Line};
use crate::need::Need;
use crate::page::{self, Block, Command};
use crate::sandbox::Sandbox;
use nix::sched::{CloneFlags, unshare};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A page: where it lies, and what is on it.
type Page = (&'static str, &'static str);

macro_rules! page {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../", $path)))
    };
}

/// Every page of the guide. docs/getting-started.md has a test of its own besides, with real sources.
const PAGES: &[Page] = &[
    page!("README.md"),
    page!("docs/benchmarks.md"),
    page!("docs/benchmarks-clones.md"),
    page!("docs/benchmarks-network.md"),
    page!("docs/benchmarks-resources.md"),
    page!("docs/benchmarks-sharing.md"),
    page!("docs/benchmarks-transactions.md"),
    page!("docs/clones.md"),
    page!("docs/commands.md"),
    page!("docs/comparison.md"),
    page!("docs/configuration.md"),
    page!("docs/daemon.md"),
    page!("docs/doctor.md"),
    page!("docs/engines.md"),
    page!("docs/getting-started.md"),
    page!("docs/guests.md"),
    page!("docs/image-format.md"),
    page!("docs/images.md"),
    page!("docs/install.md"),
    page!("docs/isolation.md"),
    page!("docs/kernels.md"),
    page!("docs/memory.md"),
    page!("docs/network.md"),
    page!("docs/resources.md"),
    page!("docs/security.md"),
    page!("docs/sources.md"),
    page!("docs/store.md"),
    page!("docs/transactions.md"),
    page!("docs/transactions-calls.md"),
    page!("docs/transactions-guarantees.md"),
    page!("docs/transactions-guests.md"),
    page!("docs/transactions-programs.md"),
    page!("docs/transactions-storage.md"),
    page!("docs/transactions-undo.md"),
    page!("docs/transactions-users.md"),
    page!("docs/troubleshooting.md"),
];

macro_rules! followed {
    ($($name:literal $path:literal),* $(,)?) => {
        pub(crate) const CASES: &[Case] = &[
            $(Case::new(concat!("pages::", $name), |sandbox| follow(sandbox, &page!($path))).needs(NEEDS),)*
            Case::new("pages::a_page_that_says_otherwise_is_noticed", otherwise).needs(&[]).tags(&[Tag::Vm]),
            Case::new("pages::commands_that_no_test_can_run", elsewhere).needs(&[]),
        ];
        #[cfg(test)]
        const FOLLOWED: &[&str] = &[$($path),*];
    };
}

followed![
    "readme" "README.md",
    "clones" "docs/clones.md",
    "configuration" "docs/configuration.md",
    "doctor" "docs/doctor.md",
    "engines" "docs/engines.md",
    "guests" "docs/guests.md",
    "images" "docs/images.md",
    "memory" "docs/memory.md",
    "network" "docs/network.md",
    "resources" "docs/resources.md",
    "security" "docs/security.md",
    "store" "docs/store.md",
    "transactions" "docs/transactions.md",
    "transactions_guests" "docs/transactions-guests.md",
    "transactions_storage" "docs/transactions-storage.md",
    "transactions_undo" "docs/transactions-undo.md",
    "transactions_users" "docs/transactions-users.md",
    "troubleshooting" "docs/troubleshooting.md",
];

const NEEDS: &[Need] = &[
    Need::Root,
    Need::Program("mmdebstrap", "mmdebstrap"),
    Need::Program("python3", "python3"),
    Need::Program("jq", "jq"),
    Need::Program("make", "make"),
    Need::Program("script", "bsdutils"),
    Need::Program("ip", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("ssh-keygen", "openssh-client"),
];

/// Seconds that a command of a page may take: the first on a page unpacks a Debian system.
const LIMIT: u64 = 300;

/// What pages call the Debian system that tests have as an archive.
const DEBIAN: &str = "debian:bookworm";

/// What makes a place, by the word that asks for it: lines of a shell, which do nothing where all is there already.
const PLACES: &[(&str, &str)] = &[
    (
        "web",
        "pando ls -q | grep -qx web || pando create web --from debian:bookworm --start -- nginx -g 'daemon off;'; \
         pando ls -q --filter status=running | grep -qx web || pando start web",
    ),
    (
        "project",
        "printf 'check:\\n\\t@echo checked\\ninstall:\\n\\t@echo installed >installed\\n' >Makefile; mkdir -p site; \
         echo page >site/index.html; for name in install.sh report.sh; do printf '#!/bin/sh\\necho run >>ran\\n' >$name; done; \
         chmod +x install.sh report.sh; [ -e settings.conf ] || echo old >settings.conf",
    ),
    (
        "work",
        "pando tx ls | grep -q '^work ' || { pando tx begin work; pando tx enter work -- sh -c 'echo new >settings.conf'; }",
    ),
    (
        "commits",
        "printf '[transactions]\\nkeep = \"2G, 30d\"\\n' >\"$SETTINGS\"; \
         [ -e numbers ] || for number in 1 2 3 4 5 6 7 8 9 10 11 12; do \
         pando tx run -- sh -c \"echo $number >numbers; mkdir -p conf; echo $number >conf/of-$number\"; done",
    ),
    (
        "turn",
        "[ -e turned ] || for number in 1 2 3; do pando tx run --name turn-7-$number -- sh -c \"echo $number >turned\"; done",
    ),
    ("download", r"printf '#!/bin/sh\necho hello\n' >downloaded; chmod +x downloaded"),
    (
        "asking",
        "[ -e web.pando ] || { pando create web --from debian:bookworm -v /srv:/data --start; pando freeze web; \
         pando image export web web.pando; pando image rm web; pando rm --force web; }",
    ),
    (
        "signer",
        "[ -e allowed_signers ] || { mkdir -p ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; \
         echo \"ada@example.org namespaces=\\\"pando-image\\\" $(cut -d' ' -f1,2 ~/.ssh/id_ed25519.pub)\" >allowed_signers; \
         pando create cache --from debian:bookworm --start; pando freeze cache warm; }",
    ),
];

/// Commands that no test can run, by the page, how they begin, and why not.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("README.md", "sudo apt install", INSTALLS),
    ("README.md", "sudo ./x", "it builds Pando, or runs all tests: this one among them"),
    ("docs/install.md", "sudo apt install", INSTALLS),
    ("docs/install.md", "sudo tar -C /usr/local", INSTALLS),
    ("docs/install.md", "sudo systemctl enable", INSTALLS),
    ("docs/install.md", "sudo pando doctor --try", "it tries what was installed: docs/doctor.md has it too"),
    ("docs/install.md", "curl ", "it installs Rust from the network"),
    ("docs/install.md", ". \"$HOME", "it belongs to an installation of Rust"),
    ("docs/clones.md", "pando-freeze", "a guest's own processes say it: self_freeze:: has them do so"),
    ("docs/clones.md", "pando create web --from debian:bookworm --allow-freeze", "self_freeze:: has such guests"),
    ("docs/images.md", "pando move 4711", "a pid is another each time: moving:: moves processes"),
    (
        "docs/memory.md",
        "pando clone web-warm -n 1000",
        "how many fit is the machine's: admission:: fills a bounded room",
    ),
    ("docs/network.md", "systemctl enable", INSTALLS),
    (
        "docs/network.md",
        "pando host-mode on",
        "it changes servers of this machine: network::host_mode:: has a machine of its own",
    ),
    (
        "docs/resources.md",
        "pando set web disk.size",
        "it needs CAP_SYS_RESOURCE, which some machines' roots lack: limits:: tries both",
    ),
    ("docs/resources.md", "pando set web disk.inodes", "it needs a disk with project quotas: limits:: makes one"),
    ("docs/sources.md", "pando pull", DOWNLOADS),
    ("docs/sources.md", "pando create web --from nginx", DOWNLOADS),
    ("docs/sources.md", "pando images --sources", DOWNLOADS),
    ("docs/transactions.md", "pando tx run -- apt-get install", INSTALLS),
    ("docs/transactions-guests.md", "pando tx run --guest web -- sh -c 'SYSTEMD_OFFLINE=1", SYSTEMD),
    ("docs/transactions-guests.md", "pando exec web -- sh -c 'systemctl", SYSTEMD),
    ("docs/transactions-programs.md", "pip install", "capi:: runs the module from its directory"),
    ("docs/transactions-programs.md", "npm install", "capi:: runs the module from its directory"),
];

const INSTALLS: &str = "it changes this machine for good";
const DOWNLOADS: &str = "it downloads from docker.io: registry:: does the same with a registry of its own";
const SYSTEMD: &str = "it needs a guest that systemd has booted, and a mirror";

/// Commands that show what happens until they are interrupted; some want a terminal.
const ENDLESS: &[&str] = &["pando logs -f", "pando top", "pando events"];

/// A page that is followed in a sandbox.
struct Reader<'a> {
    sandbox: &'a Sandbox,
    page: &'a str,
    /// An archive with the Debian system.
    archive: String,
}

fn follow(sandbox: &Sandbox, (path, text): &Page) {
    let reader = Reader { sandbox, page: path, archive: debian_image::tarball(sandbox) };
    // Where that had to be made first, its daemon is on the machine's network.
    sandbox.end_daemon();
    reader.prepares();
    for block in page::blocks(text) {
        reader.reads(&block);
    }
    // What a page leaves open goes with it.
    reader.types("pando tx ls | tail -n +2 | while read -r name rest; do pando tx abort \"$name\"; done");
}

impl Reader<'_> {
    /// The commands that pages call, in a directory of their own; a network that nobody else is on.
    #[track_caller]
    fn prepares(&self) {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace of the test's own");
        let network = "ip link set lo up; ip link add lan0 type veth peer name lan1; ip link set lan1 up; \
            ip link set lan0 up; ip address add 10.9.0.1/24 dev lan0; ip address add fd00:9::1/64 dev lan0 nodad; \
            ip route add default via 10.9.0.254";
        Line::new("sh").args(["-euc", network]).ok();
        let programs = self.sandbox.scratch().join("bin");
        std::fs::create_dir_all(&programs).expect("a directory");
        // Sources that are downloaded come from an archive, which the page's word stands for.
        let pando = format!(
            "#!/bin/bash\nwords=()\nfor word; do case $word in {DEBIAN}*) word='{}';; esac; words+=(\"$word\"); done\n\
             exec '{}' --root '{}' \"${{words[@]}}\"\n",
            self.archive,
            self.sandbox.program().display(),
            self.sandbox.root().display()
        );
        for (name, script) in [("pando", pando.as_str()), ("sudo", "#!/bin/sh\nexec \"$@\"\n")] {
            program(&programs.join(name), script);
        }
        // The device is a virtual one, which knows none.
        self.sandbox.settings("[network.link_rate]\nlan0 = \"1gbit\"\n");
        let layout = layout_of(self.sandbox, r#""Cmd":["sleep","infinity"],"Env":["PATH=/bin"]"#);
        let layout = layout.trim_start_matches("oci:");
        std::fs::rename(layout, self.sandbox.scratch().join("db")).expect("a layout of an image");
    }

    /// A command line as a reader of the page types it.
    fn types(&self, command: &str) -> Ended {
        let scratch = self.sandbox.scratch();
        let path = format!("{}:{}", scratch.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let line = Line::new("bash").args(["-o", "pipefail", "-c", &format!("{{ {command}\n}} 2>&1")]);
        let line = line.env("PATH", path).env("HOME", &scratch).env("SETTINGS", self.sandbox.places().settings());
        line.env("LC_ALL", "C.UTF-8").directory(scratch).limit(LIMIT).run()
    }

    #[track_caller]
    fn reads(&self, block: &Block<'_>) {
        if block.language == "toml" {
            self.takes(block);
        }
        for command in block.commands() {
            if reason_of(self.page, &command.line).is_some() {
                continue;
            }
            for place in &block.needs {
                let (_, script) = PLACES.iter().find(|(name, _)| name == place).expect("a place that is known");
                let made = self.types(script);
                assert_eq!(made.code(), 0, "{place}, which {} needs: {}", command.line, made.out());
            }
            self.agrees(&command);
        }
    }

    /// Runs a command, and compares how it ends and what it prints with what the page says.
    #[track_caller]
    fn agrees(&self, command: &Command) {
        let endless = ENDLESS.iter().any(|begin| command.line.starts_with(begin));
        let ended = if endless {
            let line = command.line.split(" #").next().unwrap_or_default();
            self.types(&format!("timeout --signal=INT 3 script -qec '{line}' /dev/null"))
        } else {
            self.types(&command.line)
        };
        let printed = ended.out().replace(&self.archive, &format!("{DEBIAN}+nginx"));
        let about = format!("{}: {}\nended with {} and printed: {printed}", self.page, command.line, ended.code());
        match (endless, fails(command)) {
            // 124 is timeout's word for having ended it.
            (true, _) => assert!([0, 124, 130].contains(&ended.code()) && !printed.contains("pando: "), "{about}"),
            (false, true) => assert_ne!(ended.code(), 0, "{about}"),
            (false, false) => assert_eq!(ended.code(), 0, "{about}"),
        }
        if command.shows {
            let said: Vec<String> = command.prints.iter().map(|line| page::shape(line)).collect();
            let lines: Vec<String> = printed.lines().map(page::shape).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            assert!(page::agrees(&said, &lines), "{about}\nthe page says: {said:#?}\nit printed: {lines:#?}");
        }
    }

    /// Gives a block to the program as what the block says that it is.
    #[track_caller]
    fn takes(&self, block: &Block<'_>) {
        let text = block.lines.join("\n");
        match block.needs[..] {
            ["pando.toml"] => {
                self.sandbox.settings(&text);
                let said = self.types("pando daemon reload");
                assert_eq!(said.code(), 0, "{}: {text}\n{}", self.page, said.out());
                std::fs::remove_file(self.sandbox.places().settings()).expect("it was written");
                self.types("pando daemon reload");
            }
            ["spec.toml"] => {
                std::fs::write(self.sandbox.scratch().join("spec.toml"), &text).expect("a file");
                let line = format!("pando create of-spec --from '{}' --spec spec.toml", self.sandbox.busybox());
                let said = self.types(&line);
                assert_eq!(said.code(), 0, "{}: {text}\n{}", self.page, said.out());
            }
            _ => assert!(text.parse::<toml::Table>().is_ok(), "{}: {text}", self.page),
        }
    }
}

fn program(path: &Path, script: &str) {
    std::fs::write(path, script).expect("a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// Whether the page shows that a command fails.
fn fails(command: &Command) -> bool {
    let harmless = ["pando: warning", "pando: committed"];
    command.prints.iter().any(|line| line.starts_with("pando: ") && !harmless.iter().any(|word| line.starts_with(word)))
}

/// Why a command of a page is not run here, if so.
fn reason_of(page: &str, line: &str) -> Option<&'static str> {
    let is = |(at, begin, _): &&(&str, &str, &str)| *at == page && line.starts_with(begin);
    ELSEWHERE.iter().find(is).map(|(_, _, reason)| *reason)
}

/// Every command that is left out, with its page and the reason.
fn left_out() -> Vec<String> {
    let commands = PAGES.iter().flat_map(|(path, text)| {
        let blocks = page::blocks(text).into_iter();
        blocks.flat_map(|block| block.commands()).map(move |command| (*path, command.line))
    });
    let named = commands.filter_map(|(path, line)| Some(format!("{path}: {line}: {}", reason_of(path, &line)?)));
    named.collect()
}

fn elsewhere(_: &Sandbox) {
    let named = left_out();
    skip(format!("{} commands of the guide:\n  {}", named.len(), named.join("\n  ")));
}

fn otherwise(_: &Sandbox) {
    assert_eq!(
        page::shape("warm: 3 processes, 64 MiB; it stood for 21.4 ms"),
        "warm: # processes, # unit; it stood for # unit"
    );
    assert_eq!(page::shape("NAME   PID"), page::shape("NAME  PID"));
    assert_eq!(page::shape("web  1,204  sha256:0123456789abcdef,"), "web # sha256:#,");
    assert_ne!(page::shape("web running"), page::shape("web stopped"));
    let blocks = page::blocks("```sh web\nls |\nwc -l\nset \\\n x\n```\n```toml\n[a]\n```\n");
    let lines: Vec<String> = blocks[0].commands().into_iter().map(|command| command.line).collect();
    assert_eq!(
        (&blocks[0].needs[..], &lines[..]),
        (&["web"][..], &["ls |\nwc -l".to_owned(), "set \\\n x".to_owned()][..])
    );
    assert!(blocks[1].commands().is_empty() && blocks[1].lines == ["[a]"]);
    let failing =
        page::commands("```console\n$ pando x\npando: there is no x\n$ pando y\npando: committed: 1 path\n```\n");
    assert!(fails(&failing[0]) && !fails(&failing[1]));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that nobody runs: what is printed, what a file has, drawings; programs, which capi:: runs.
    const NOT_RUN: &[&str] = &["text", "python", "c", "js", "go", "json"];

    #[test]
    fn every_page_is_known() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let found = std::fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let found = found.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
        let mut found: Vec<String> = found.chain(["README.md".to_owned()]).collect();
        found.sort();
        let mut known: Vec<&str> = PAGES.iter().map(|(path, _)| *path).collect();
        known.sort_unstable();
        assert_eq!(known, found);
    }

    #[test]
    fn every_block_is_run_or_named() {
        for (path, text) in PAGES {
            for block in page::blocks(text) {
                let shown = format!("{path}: {:?}", block.lines.first());
                match block.language {
                    "toml" => assert!(matches!(block.needs[..], [] | ["pando.toml" | "spec.toml"]), "{shown}"),
                    "sh" | "console" => {
                        let known = |need: &&str| PLACES.iter().any(|(name, _)| name == need);
                        assert!(block.needs.iter().all(known), "{shown} needs {:?}", block.needs);
                    }
                    other => {
                        assert!(NOT_RUN.contains(&other), "{shown} is marked '{other}'");
                        let typed = |line: &&&str| ["$ ", "sudo ", "pando "].iter().any(|word| line.starts_with(word));
                        let typed = block.lines.iter().find(typed);
                        assert!(typed.is_none_or(|line| *line == "pando image export 2"), "{shown} has {typed:?}");
                    }
                }
            }
        }
    }

    /// Blocks that are merely indented are no blocks to this.
    #[test]
    fn every_command_stands_between_fences() {
        let typed = |line: &&str| ["pando ", "sudo ", "$ "].iter().any(|word| line.trim_start().starts_with(word));
        for (path, text) in PAGES {
            let mut inside = false;
            for line in text.lines() {
                inside ^= line.starts_with("```");
                let loose = !inside && line.starts_with("    ") && typed(&line);
                assert!(!loose, "{path}: '{line}' stands between no fences");
            }
        }
    }

    #[test]
    fn every_page_with_something_to_run_is_followed() {
        let runs = |(path, text): &&Page| {
            page::blocks(text).iter().any(|block| {
                let commands = block.commands();
                block.language == "toml" || commands.iter().any(|command| reason_of(path, &command.line).is_none())
            })
        };
        let mut followed = FOLLOWED.to_vec();
        // It has a test of its own.
        followed.push("docs/getting-started.md");
        followed.sort_unstable();
        let mut wanted: Vec<&str> = PAGES.iter().filter(runs).map(|(path, _)| *path).collect();
        wanted.sort_unstable();
        assert_eq!(followed, wanted);
    }

    #[test]
    fn what_is_left_out_is_on_its_page() {
        for (path, begin, _) in ELSEWHERE {
            let (_, text) = PAGES.iter().find(|(known, _)| known == path).expect("a page");
            let mut commands = page::blocks(text).into_iter().flat_map(|block| block.commands());
            assert!(commands.any(|command| command.line.starts_with(begin)), "{path} has no '{begin}'");
        }
    }
}

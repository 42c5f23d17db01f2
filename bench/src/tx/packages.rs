//! TxOS, table 5: the programs that work on packages. A package is compiled, installed by `make install`, and installed
//! by dpkg, in a Debian on each file system that is measured.

use super::programs::{WAYS, Way, compare};
use super::{Bed, done, settle};
use crate::report::Report;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What is needed to compile, and the packages that the measurements are made with: they are fetched when the Debian is
/// installed.
const TOOLS: &str = "gcc,make,libc6-dev,libncurses-dev,dpkg-dev";
const FETCHED: &str = "openssh-server";
const SOURCE: &str = "nano";
/// The files of a package as large as the paper's Subversion: itself.
const INSTALLED: &str = "subversion libsvn1 libsvn-dev";

const SOURCES: &str = "\
deb http://deb.debian.org/debian bookworm main
deb-src http://deb.debian.org/debian bookworm main
";

/// One of them: its name, and what it may cost here.
struct Job {
    name: &'static str,
    most: f64,
    /// A script of a shell in the Debian.
    script: &'static str,
}

const JOBS: [Job; 3] = [
    Job { name: "dpkg", most: 1.1, script: "exec dpkg --force-confdef -i /var/cache/apt/archives/*.deb" },
    Job { name: "make", most: 1.1, script: "exec make -s -j1 -C /build" },
    Job { name: "make install", most: 1.4, script: "exec make -s -C /tree install" },
];

/// Makes a tree that has a package's files, and a Makefile that installs them as automake's do: a program each
/// directory, for all of its files.
const TREE: &str = r#"mkdir /tree /tree/files
cd /tree
for deb in /fetched/*.deb; do dpkg-deb -x "$deb" files; done
{
    printf 'install:\n'
    find files -type d -printf '\tinstall -d /target/%P\n'
    find files -type d | while read -r directory; do
        list=$(find "$directory" -maxdepth 1 -type f -printf '%p ')
        [ -z "$list" ] || printf '\tinstall -m 644 %s /target/%s\n' "$list" "${directory#files}"
    done
    find files -type l -printf '\tln -sf %l /target/%P\n'
} >Makefile
"#;

/// Nothing is started by a package's scripts.
fn quiet_services() -> String {
    "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d; chmod 755 /usr/sbin/policy-rc.d".to_owned()
}

fn fetch() -> String {
    format!(
        "rm -f /var/cache/apt/archives/*.deb; mkdir /fetched /target; cd /fetched; apt-get -qq download {INSTALLED}\n\
         apt-get -qq -y -d --no-install-recommends install {FETCHED}\n"
    )
}

/// A host's keys are there before the package is installed, which would make some: finding primes takes from a tenth of
/// a second to a whole one, by chance.
const KEYS: &str = r#"mkdir /keys
for deb in /var/cache/apt/archives/*.deb; do dpkg-deb -x "$deb" /keys; done
export LD_LIBRARY_PATH=$(find /keys -type d -name '*-linux-gnu*' -printf '%p:')
for kind in rsa ecdsa ed25519; do
    mkdir -p /etc/ssh
    /keys/usr/bin/ssh-keygen -q -t $kind -N '' -f /etc/ssh/ssh_host_${kind}_key
done
rm -r /keys
"#;

fn compile() -> String {
    format!(
        "cd /; apt-get -qq --download-only source {SOURCE}; dpkg-source -x {SOURCE}_*.dsc /build >/dev/null\n\
         cd /build; ./configure -q --disable-nls --disable-libmagic\n"
    )
}

/// A Debian with all of that in it, as a file that is unpacked where it is measured.
#[derive(Debug)]
pub(super) struct Debian {
    archive: PathBuf,
}

impl Debian {
    /// The one that an earlier run has kept, or a new one. That is slow: it comes from the network.
    pub(super) fn kept_in(directory: &Path) -> anyhow::Result<Self> {
        let archive = directory.join("tx-debian-with-keys.tar");
        if archive.exists() {
            return Ok(Self { archive });
        }
        std::fs::create_dir_all(directory)?;
        let beside = tempfile::tempdir_in(directory)?;
        let list = beside.path().join("sources.list");
        std::fs::write(&list, SOURCES)?;
        let made = beside.path().join("debian.tar");
        // What it mounts goes with its namespace, even if it is killed.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "mmdebstrap", "--quiet", "--mode=root"]);
        command.args(["--variant=apt", "--skip=cleanup/apt", "--aptopt=Acquire::Check-Valid-Until \"false\""]);
        command.arg(format!("--include={TOOLS}"));
        for script in [quiet_services(), fetch(), KEYS.to_owned(), compile(), TREE.to_owned()] {
            let path = beside.path().join("script");
            let number = command.get_args().count();
            let path = path.with_extension(number.to_string());
            std::fs::write(&path, script)?;
            command.arg(format!("--customize-hook=chroot \"$1\" sh -e <{}", path.display()));
        }
        command.arg("bookworm").arg(&made).arg(&list).current_dir("/").env("LC_ALL", "C.UTF-8");
        done(command.env("DEBIAN_FRONTEND", "noninteractive")).context("installing a Debian")?;
        std::fs::rename(made, &archive)?;
        Ok(Self { archive })
    }

    fn unpack(&self, bed: &Bed<'_>) -> anyhow::Result<PathBuf> {
        let at = bed.fresh("debian")?;
        done(Command::new("tar").args(["--numeric-owner", "--xattrs", "-xf"]).arg(&self.archive).arg("-C").arg(&at))?;
        settle(&at)?;
        Ok(at)
    }
}

/// Each of them in each way.
pub(super) fn measure(
    plain: &Bed<'_>,
    journalled: &Bed<'_>,
    debian: &Debian,
    report: &mut Report,
) -> anyhow::Result<()> {
    for job in &JOBS {
        let name = format!("{}: {}", plain.name, job.name);
        for _ in 0..plain.settings.samples(3, 1) {
            for way in &WAYS {
                let bed = if way.lasts_outside() { journalled } else { plain };
                let root = debian.unpack(bed)?;
                report.add(&way.series(&name), "s", one(bed, job, &root, way)?);
            }
        }
        let durable = compare(&name, job.name, report);
        report.hold(format!("{name}: durable, against the same outside"), durable, job.most, "times");
    }
    Ok(())
}

fn one(bed: &Bed<'_>, job: &Job, root: &Path, way: &Way) -> anyhow::Result<f64> {
    let mut command = bed.command(way.inside, way.durable, "chroot");
    command.arg(root).args(["sh", "-ec", job.script]).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    let begun = Instant::now();
    done(&mut command)?;
    // Outside it is to last as well: a transaction waits for that.
    if way.lasts_outside() {
        settle(root)?;
    }
    let time = begun.elapsed().as_secs_f64();
    settle(root)?;
    Ok(time)
}

//! `debian:SUITE`: a minimal Debian, installed by mmdebstrap or debootstrap from the mirrors that the host itself uses.

use super::apt_settings::AptSettings;
use super::meter::Cancelled;
use super::package_tool::{Ending, Patience, run};
use super::syntax::{is_package, is_suite};
use super::{Progress, Summary};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::NamedTempFile;

/// Between two lines of output there may be a large package on a slow line, or a slow maintainer script.
const PATIENCE: Patience = Patience {
    silent: Duration::from_secs(15 * 60),
    whole: Duration::from_secs(12 * 3600),
    grace: Duration::from_secs(5),
};

/// How much of the tool's output an error shows.
const LAST_LINES: usize = 12;

/// Why no Debian system was installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DebianError {
    /// Neither mmdebstrap nor debootstrap is installed.
    #[error(
        "cannot install Debian '{0}': neither mmdebstrap nor debootstrap is on this machine; install one (on Debian and Ubuntu: \
         apt-get install mmdebstrap), or start from another source, for example a rootfs tarball or oci:DIR"
    )]
    NoTool(String),
    /// Another user than root cannot install it.
    #[error("cannot install Debian '{0}': only root can, since packages bring files of many owners")]
    NotRoot(String),
    /// The suite or a package has a name that cannot be one.
    #[error("'{0}' cannot be the name of a Debian suite or package: lower-case letters, digits, + - .")]
    Name(String),
    /// The tool could not be started, or what it needs could not be written.
    #[error("cannot install Debian '{suite}': {action} failed: {source}; check that {tool} is installed whole")]
    Start {
        /// The suite that is installed.
        suite: String,
        /// The program that was run.
        tool: &'static str,
        /// What was tried with that program.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program that installs it failed.
    #[error(
        "cannot install Debian '{suite}' into '{into}': {tool} {how}; its last lines:\n{lines}\ncheck the suite's name, the \
         packages' names, and with `apt-get update` that the host reaches its mirror"
    )]
    Failed {
        /// The suite that is installed.
        suite: String,
        /// The directory that it is installed into.
        into: PathBuf,
        /// The program that was run.
        tool: &'static str,
        /// How the program ended.
        how: String,
        /// The end of its output.
        lines: String,
    },
    /// The file system of the destination is full.
    #[error(
        "cannot install Debian '{suite}' into '{into}': no space left on the file system that holds it; free some, or use a larger one with --root"
    )]
    NoSpace {
        /// The suite that is installed.
        suite: String,
        /// The directory that it is installed into.
        into: PathBuf,
    },
    /// What was installed could not be counted.
    #[error(
        "cannot look through '{into}' after Debian was installed there: {source}; check the file system that holds it"
    )]
    Count {
        /// The directory that it is installed into.
        into: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The user stopped the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Files that a tool reads while it runs.
struct Inputs {
    sources: NamedTempFile,
    configuration: NamedTempFile,
}

pub(crate) fn install(
    suite: &str,
    packages: &[String],
    into: &Path,
    progress: &dyn Progress,
) -> Result<Summary, DebianError> {
    // They become arguments of a program; a Source may be made without being read from text.
    if !is_suite(suite) {
        return Err(DebianError::Name(suite.to_owned()));
    }
    if let Some(package) = packages.iter().find(|package| !is_package(package)) {
        return Err(DebianError::Name(package.clone()));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(DebianError::NotRoot(suite.to_owned()));
    }
    let tool = tool().ok_or_else(|| DebianError::NoTool(suite.to_owned()))?;
    progress.stage(&format!("installing Debian {suite}"));
    let settings = AptSettings::of_host(suite, &|| progress.cancelled());
    let failed = |action| move |source| DebianError::Start { suite: suite.to_owned(), tool, action, source };
    let inputs = Inputs {
        sources: written(&settings.sources).map_err(failed("writing a temporary list of mirrors"))?,
        configuration: written(&settings.configuration).map_err(failed("writing temporary settings of apt"))?,
    };
    let command = match tool {
        "mmdebstrap" => mmdebstrap(suite, packages, into, &settings, &inputs),
        _ => debootstrap(suite, packages, into, &settings),
    };
    let mut last = VecDeque::new();
    let mut hear = |line: &str| {
        if let Some(stage) = line.strip_prefix("I: ") {
            progress.stage(stage.trim_end_matches("..."));
        }
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    };
    let ending = run(command, PATIENCE, &|| progress.cancelled(), &mut hear).map_err(failed("starting it"))?;
    let how = match ending {
        Ending::Exited(status) if status.success() => return count(into),
        Ending::Exited(status) => format!("failed ({status})"),
        Ending::Silent => format!("was stopped after {} minutes without a word", PATIENCE.silent.as_secs() / 60),
        Ending::Late => format!("was stopped after {} hours", PATIENCE.whole.as_secs() / 3600),
        Ending::Cancelled => return Err(Cancelled.into()),
    };
    let (suite, into) = (suite.to_owned(), into.to_owned());
    if last.iter().any(|line| line.contains("No space left on device")) {
        return Err(DebianError::NoSpace { suite, into });
    }
    let lines: Vec<_> = last.iter().map(|line| format!("  {line}")).collect();
    Err(DebianError::Failed { suite, into, tool, how, lines: lines.join("\n") })
}

fn tool() -> Option<&'static str> {
    ["mmdebstrap", "debootstrap"].into_iter().find(|tool| find(tool).is_some())
}

/// Where a program is. The administrators' directories count even if the caller's PATH has them not.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from));
    places.map(|place| place.join(program)).find(|file| file.metadata().is_ok_and(|file| file.mode() & 0o111 != 0))
}

/// A command for `tool` in a mount namespace of its own: what it mounts in the tree goes when it goes, even if it is
/// killed.
fn contained(tool: &str) -> Command {
    let program = find(tool).unwrap_or_else(|| PathBuf::from(tool));
    let mut command = match find("unshare") {
        Some(unshare) => {
            let mut command = Command::new(unshare);
            command.args(["--mount", "--propagation", "private", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive").current_dir("/");
    command
}

fn mmdebstrap(suite: &str, packages: &[String], into: &Path, settings: &AptSettings, inputs: &Inputs) -> Command {
    let mut command = contained("mmdebstrap");
    command.args(["--mode=root", "--format=directory", "--variant=minbase"]);
    if !packages.is_empty() {
        command.arg(format!("--include={}", packages.join(",")));
    }
    if !settings.configuration.is_empty() {
        command.arg(with_path("--aptopt=", inputs.configuration.path()));
    }
    command.arg(suite).arg(into);
    if !settings.sources.is_empty() {
        command.arg(inputs.sources.path());
    }
    command
}

fn debootstrap(suite: &str, packages: &[String], into: &Path, settings: &AptSettings) -> Command {
    let mut command = contained("debootstrap");
    command.arg("--variant=minbase");
    if !packages.is_empty() {
        command.arg(format!("--include={}", packages.join(",")));
    }
    command.arg(suite).arg(into).args(&settings.mirror);
    if let Some(proxy) = &settings.proxy {
        command.env("http_proxy", proxy);
    }
    command
}

fn with_path(option: &str, path: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(option);
    argument.push(path);
    argument
}

fn written(lines: &[String]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    for line in lines {
        writeln!(file, "{line}")?;
    }
    // mmdebstrap's children read it as another user.
    file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    Ok(file)
}

/// What there is now.
fn count(into: &Path) -> Result<Summary, DebianError> {
    let failed = |source| DebianError::Count { into: into.to_owned(), source };
    let mut summary = Summary::default();
    let mut todo = vec![into.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = entry.metadata().map_err(failed)?;
            if metadata.is_dir() {
                todo.push(entry.path());
                continue;
            }
            summary.files += 1;
            if metadata.is_file() {
                summary.bytes += metadata.len();
            }
        }
    }
    Ok(summary)
}

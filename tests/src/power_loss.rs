//! Commits on a disk that loses power: `pando-tests --power-loss KIND SEED COMMITS CUTS PANDO DIRECTORY [BUG]`, in a
//! mount namespace of its own.
//!
//! ```text
//!   disk, file system, tree ─▶ durable transaction ─▶ recording ─▶ cut (many) ─▶ mount, recover
//!   ─▶ before or after? nothing else
//! ```

use crate::dice::Dice;
use crate::recording_disk::{Attached, Recording, RecordingDisk};
use crate::{disorder, tree_state};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The word that asks this program for it.
pub(crate) const WORD: &str = "--power-loss";

/// Bytes of the disk.
const SIZE: usize = 24 << 20;

/// What the disk is formatted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    fn named(name: &str) -> io::Result<Self> {
        let kind = [Self::Ext4, Self::Xfs].into_iter().find(|kind| kind.name() == name);
        kind.ok_or(io::ErrorKind::InvalidInput.into())
    }

    fn format(self, device: &Path) -> io::Result<()> {
        match self {
            Self::Ext4 => {
                let words = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", "-J", "size=4"];
                done(Command::new("mkfs.ext4").args(words).arg(device))
            }
            // So small a one it makes for tests alone, by which it means those that set these.
            Self::Xfs => {
                let small = ["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"].map(|name| (name, "1"));
                done(Command::new("mkfs.xfs").envs(small).args(["-q", "-f", "-K"]).arg(device))
            }
        }
        .map(drop)
    }

    fn mount(self, device: &Path, at: &Path) -> io::Result<()> {
        let options = match self {
            // Nothing is written because of a clock, and nothing because a file takes another's name.
            Self::Ext4 => "commit=600,noauto_da_alloc",
            // What lets go of the last transaction's view may not have done so yet.
            Self::Xfs => "nouuid",
        };
        done(Command::new("mount").args(["-t", self.name(), "-o", options]).arg(device).arg(at)).map(drop)
    }
}

/// What was asked for.
struct Order {
    kind: Kind,
    pando: PathBuf,
    directory: PathBuf,
    bug: Option<String>,
}

/// One commit, recorded.
struct Recorded {
    recording: Recording,
    /// Where in it the command said that it had committed.
    acknowledged: usize,
    before: Vec<String>,
    after: Vec<String>,
}

/// Makes the commits and cuts, and says how many; the first wrong one is an error.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let (words, bug) = words.split_at_checked(6).ok_or(io::ErrorKind::InvalidInput)?;
    let number = |at: usize| words[at].parse::<u64>().map_err(io::Error::other);
    let (kind, seed, commits, cuts) = (Kind::named(&words[0])?, number(1)?, number(2)?, number(3)?);
    let order = Order { kind, pando: (&words[4]).into(), directory: (&words[5]).into(), bug: bug.first().cloned() };
    let (mut seen, mut lost) = ([0_u64; 2], 0_u64);
    for commit in 0..commits {
        let seed = seed * 1_000_000 + commit;
        let recorded = order.record(seed)?;
        let mut dice = Dice::new(seed + 7);
        for cut in 0..cuts {
            let moment = dice.throw(recorded.recording.len() as u64 + 1) as usize;
            let Some(now) = order.after_cut(&recorded.recording.cut(moment, &mut dice))? else {
                lost += 1;
                continue;
            };
            let is = [&recorded.before, &recorded.after].map(|tree| now.as_ref() == Ok(tree));
            let right = if moment >= recorded.acknowledged { is[1] } else { is[0] || is[1] };
            if !right {
                let what = match now {
                    Ok(lines) => difference(&lines, &recorded),
                    Err(words) => words,
                };
                let (of, told) = (recorded.recording.len(), recorded.acknowledged);
                let words = format!("commit {seed}, cut {cut} before event {moment} of {of}, told at {told}: {what}");
                return Err(io::Error::other(words));
            }
            seen[usize::from(is[1])] += 1;
        }
    }
    if lost * 10 > commits * cuts {
        return Err(io::Error::other(format!("{lost} times the file system itself did not come back")));
    }
    println!("{} cuts: {} before, {} after", seen[0] + seen[1] + lost, seen[0], seen[1]);
    Ok(())
}

fn difference(now: &[String], recorded: &Recorded) -> String {
    let beyond =
        |other: &[String]| now.iter().filter(|line| !other.contains(line)).take(4).cloned().collect::<Vec<_>>();
    format!("neither before, having {:#?}, nor after, having {:#?}", beyond(&recorded.before), beyond(&recorded.after))
}

impl Order {
    fn mounted(&self) -> PathBuf {
        self.directory.join("mounted")
    }

    fn tree(&self) -> PathBuf {
        self.mounted().join("tree")
    }

    fn pando(&self) -> Command {
        let mut command = Command::new(&self.pando);
        command.arg("--root").arg(self.mounted().join("state")).arg("tx");
        if let Some(bug) = &self.bug {
            command.env("PANDO_TX_PLANT", bug);
        }
        command
    }

    fn attach(&self, disk: &RecordingDisk) -> io::Result<Attached> {
        let at = self.directory.join("recorder");
        std::fs::create_dir_all(&at)?;
        std::fs::create_dir_all(self.mounted())?;
        disk.attach(&at)
    }

    fn mount(&self, device: &Path) -> io::Result<Mounted> {
        self.kind.mount(device, &self.mounted())?;
        Ok(Mounted(self.mounted()))
    }

    /// A transaction on a new disk, and all that it writes.
    fn record(&self, seed: u64) -> io::Result<Recorded> {
        let disk = RecordingDisk::new(&vec![0; SIZE])?;
        let attached = self.attach(&disk)?;
        self.kind.format(attached.device.path())?;
        let mounted = self.mount(attached.device.path())?;
        std::fs::create_dir(self.tree())?;
        let mut dice = Dice::new(seed);
        disorder::make(&self.tree(), &mut dice, 50);
        let before = tree_state::lines(&self.tree());
        rustix::fs::syncfs(std::fs::File::open(self.mounted())?)?;
        let start = disk.bytes()?;
        disk.start()?;
        let program = std::env::current_exe()?;
        let count = [1, 2, 3, 10, 40][dice.throw(5) as usize];
        let mut command = self.pando();
        command.args(["run", "-q", "--retry", "0", "--"]).arg(program).arg(disorder::WORD);
        command.args([(seed + 500_000).to_string(), count.to_string()]).arg(self.tree());
        let after = done(&mut command)?;
        let acknowledged = disk.position()?;
        drop(mounted);
        let after = after.lines().map(str::to_owned).collect();
        Ok(Recorded { recording: disk.recording(start)?, acknowledged, before, after })
    }

    /// The tree after the power has come back; in words, if it cannot be had; none if the file system itself is lost.
    ///
    /// That happens, seldom: requests reach the server of the disk in another order than the kernel's file system
    /// counts on, where the machine has much else to do. It says nothing of what lies in the file system.
    fn after_cut(&self, bytes: &[u8]) -> io::Result<Option<Result<Vec<String>, String>>> {
        let disk = RecordingDisk::new(bytes)?;
        let attached = self.attach(&disk)?;
        let _mounted = match self.mount(attached.device.path()) {
            Ok(mounted) => mounted,
            Err(error) => {
                eprintln!("after a cut no file system was there: {error}");
                return Ok(None);
            }
        };
        // The disk alone has lost its power: to Pando the machine has been powered on after whatever lies on it.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let since = (since + 1000).to_string();
        if let Err(error) = done(self.pando().arg("recover").env("PANDO_TX_POWERED_ON", since)) {
            return Ok(Some(Err(error.to_string())));
        }
        Ok(Some(Ok(tree_state::lines(&self.tree()))))
    }
}

/// A mount, until it is dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // What lets go of the last transaction's view may take a moment longer.
        for _ in 0..200 {
            if done(Command::new("umount").arg(&self.0)).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = done(Command::new("umount").arg("-l").arg(&self.0));
    }
}

fn done(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(std::process::Stdio::null()).output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("{command:?}: {}: {words}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

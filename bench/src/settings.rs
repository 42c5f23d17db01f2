//! What the caller of a benchmark wants.

use anyhow::{Context, bail};
use std::path::PathBuf;

/// The arguments, read.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Which benchmark.
    pub(crate) benchmark: String,
    /// The command to measure.
    pub(crate) pando: PathBuf,
    /// Where the raw samples go.
    pub(crate) output: PathBuf,
    /// How many samples, if not as many as the benchmark itself finds right.
    pub(crate) samples: Option<usize>,
    /// Few samples and small crowds: whether it works, not what it is worth.
    pub(crate) quick: bool,
    /// How many guests, where the benchmark lets one choose.
    pub(crate) guests: Option<usize>,
    /// How many separate guests at most, where unified ones take less room than they.
    pub(crate) separate: Option<usize>,
    /// Only the parts whose names hold this.
    pub(crate) only: Option<String>,
    /// Debian roots to use, instead of those installed for the benchmark.
    pub(crate) trees: Vec<PathBuf>,
    /// With the papers' daemons in each guest.
    pub(crate) daemons: bool,
    /// A command that makes the machine quiet for a measurement; see `quiesce.rs`.
    pub(crate) quiesce: Option<String>,
    /// CRIU, as built from its sources.
    pub(crate) criu: Option<PathBuf>,
}

impl Settings {
    /// Reads `NAME --pando PATH --output DIR [--samples N] [--guests N] [--separate N] [--tree DIR]... [--only WORDS]
    /// [--daemons] [--quiesce COMMAND] [--criu PATH] [--quick]`.
    pub(crate) fn from_arguments(arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let (mut benchmark, mut pando, mut output, mut samples, mut quick) = (None, None, None, None, false);
        let (mut guests, mut separate, mut trees, mut only) = (None, None, Vec::new(), None);
        let (mut daemons, mut quiesce) = (false, None);
        let mut criu = std::env::var_os("PANDO_CRIU").map(PathBuf::from);
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--pando" => pando = Some(PathBuf::from(value()?)),
                "--output" => output = Some(PathBuf::from(value()?)),
                "--samples" => samples = Some(value()?.parse().context("--samples needs a number")?),
                "--guests" => guests = Some(value()?.parse().context("--guests needs a number")?),
                "--separate" => separate = Some(value()?.parse().context("--separate needs a number")?),
                "--tree" => trees.push(PathBuf::from(value()?)),
                "--quiesce" => quiesce = Some(value()?),
                "--daemons" => daemons = true,
                "--only" => only = Some(value()?),
                "--criu" => criu = Some(PathBuf::from(value()?)),
                "--quick" => quick = true,
                option if option.starts_with('-') => bail!("there is no option '{option}'; see docs/benchmarks.md"),
                _ if benchmark.is_some() => bail!("one benchmark at a time"),
                _ => benchmark = Some(argument),
            }
        }
        if samples == Some(0) {
            bail!("--samples needs at least 1");
        }
        if guests.is_some_and(|guests: usize| guests < 2) {
            bail!("--guests needs at least 2: what one alone shares is nothing");
        }
        let pando = pando.context("--pando PATH is missing; ./x bench gives it")?;
        Ok(Self {
            benchmark: benchmark.context("which benchmark? ./x bench start, or many")?,
            pando: pando.canonicalize().with_context(|| format!("there is no command {}", pando.display()))?,
            output: output.context("--output DIR is missing; ./x bench gives it")?,
            samples,
            quick,
            only,
            guests,
            separate,
            trees,
            daemons,
            quiesce,
            criu,
        })
    }

    /// Whether a part of that name is to be measured.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|words| part.contains(words.as_str()))
    }

    /// How many samples to take: as asked for, or `usual`, or `few` of them when it has to be quick.
    pub(crate) fn samples(&self, usual: usize, few: usize) -> usize {
        self.samples.unwrap_or(if self.quick { few } else { usual })
    }
}

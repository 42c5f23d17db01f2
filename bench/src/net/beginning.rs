//! What two addresses on the shared stack add to the start of a guest.

use super::{Wire, pando_on};
use crate::report::Report;
use crate::settings::Settings;
use crate::start::inside;
use crate::{busybox_root, interrupt};
use anyhow::Context;
use pando_api::{Network, Spec};
use std::time::Duration;

/// Between two starts: in a tight loop everybody is quicker.
const PAUSE: Duration = Duration::from_millis(200);

const ALONE: &str = "start without network";
const ADDRESSED: &str = "start with two addresses";

/// The most that they may add, in milliseconds.
const MOST: f64 = 0.3;

pub(super) fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let wire = Wire::new()?;
    let pando = pando_on(settings, &wire)?;
    let root = pando.directory().join("busybox");
    busybox_root::make(&root)?;
    let source = root.to_str().context("a path is not text")?;
    let addresses = ["10.9.0.5", "10.9.0.6"].map(str::parse).into_iter().collect::<Result<Vec<_>, _>>()?;
    let alone = Spec { network: Network::None, ..Spec::default() };
    let addressed = Spec { network: Network::Shared, addresses, ..Spec::default() };
    let mut client = pando.connect()?;
    for round in 0..=settings.samples(50, 5) {
        let mut both = [(ALONE, &alone), (ADDRESSED, &addressed)];
        both.rotate_left(round % 2);
        for (name, spec) in both {
            interrupt::pause(PAUSE)?;
            let took = inside(&mut client, source, spec.clone())?;
            if round > 0 {
                report.add(name, "ms", took);
            }
        }
    }
    let adds = report.median(ADDRESSED).zip(report.median(ALONE)).map(|(with, without)| with - without);
    report.hold("two addresses on the shared stack add to a start", adds, MOST, "ms");
    Ok(())
}

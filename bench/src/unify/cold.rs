//! A tree of which nothing is known and nothing is in memory becomes a layer of an empty store.

use super::crowd;
use super::footprint;
use super::roots::Roots;
use crate::own_pando::OwnPando;
use crate::quiesce::Quiesce;
use crate::report::Report;
use crate::settings::Settings;

const TOOK: &str = "cold: create in an empty store";

pub(super) fn measure(roots: &Roots, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let _quiet = Quiesce::begin(settings.quiesce.as_deref())?;
    for tree in roots.trees().iter().take(settings.samples(7, 2)) {
        let pando = OwnPando::start(&settings.pando)?;
        footprint::evict(std::slice::from_ref(tree))?;
        report.add(TOOK, "s", crowd::create(&pando, "cold", tree, crowd::WORK)?);
        crowd::remove(&pando, "cold")?;
    }
    let rate = report.median(TOOK).map(|seconds| roots.files() as f64 / seconds);
    if let Some(rate) = rate {
        report.add("cold: files a second", "1/s", rate);
    }
    report.hold("cold: seconds for 5,000 files", rate.map(|rate| 5_000.0 / rate), 1.0, "s");
    Ok(())
}

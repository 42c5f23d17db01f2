//! The experiments: who is there, who is busy when, and what each ought to get.

use pando_api::{Amount, CpuRequest};

/// The experiment that gaps are judged by.
pub(crate) const CAPPED: &str = "capped at a quarter, alone";

/// A guest of an experiment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// What it is granted.
    pub(crate) cpu: CpuRequest,
    /// When it begins to want everything, in seconds; `None`: it sleeps throughout.
    pub(crate) from: Option<u64>,
    /// The part of what is delivered that it ought to get while all others want theirs, in percent.
    pub(crate) due: f64,
    /// Whether it is due that part of the machine, and no more: a bound is time by the clock, however much of that
    /// others take.
    pub(crate) bounded: bool,
}

/// An experiment.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) parts: Vec<Part>,
    /// Seconds from the beginning on that do not count: until the last has woken, and a second more.
    pub(crate) settle: u64,
}

fn request(reserve: Option<&str>, share: Option<&str>, limit: Option<&str>) -> CpuRequest {
    let amount = |text: Option<&str>| text.map(Amount::from);
    CpuRequest { reserve: amount(reserve), share: amount(share), limit: amount(limit), cpus: None }
}

fn busy(cpu: CpuRequest, due: f64) -> Part {
    Part { cpu, from: Some(0), due, bounded: false }
}

fn bounded(cpu: CpuRequest, due: f64) -> Part {
    Part { bounded: true, ..busy(cpu, due) }
}

fn plain(due: f64) -> Part {
    busy(CpuRequest::default(), due)
}

fn with(first: Vec<Part>, number: usize, other: &Part) -> Vec<Part> {
    first.into_iter().chain(std::iter::repeat_n(other.clone(), number)).collect()
}

/// The papers' (figure 8 of EuroSys 2007 and section 3.3), and those that a static weight gets wrong.
pub(crate) fn all(processors: f64) -> Vec<Scenario> {
    let asleep = Part { from: None, ..Part::default() };
    let scenario = |name, parts| Scenario { name, parts, settle: 2 };
    let quarter = request(Some("25%"), None, None);
    let quarter_and_more = request(Some("25%"), Some("100"), None);
    let limit = (processors / 4.0).to_string();
    vec![
        scenario("8 equal", vec![plain(12.5); 8]),
        scenario("4 equal", vec![plain(25.0); 4]),
        scenario("8, one has 25 % reserved", with(vec![bounded(quarter, 25.0)], 7, &plain(75.0 / 7.0))),
        scenario(
            "8, one has 25 % reserved and a share",
            with(vec![busy(quarter_and_more.clone(), 25.0 + 75.0 / 8.0)], 7, &plain(75.0 / 8.0)),
        ),
        scenario(CAPPED, vec![bounded(request(None, None, Some(&limit)), 25.0)]),
        scenario("8, one capped at a sixteenth", {
            let cap = (processors / 16.0).to_string();
            with(vec![bounded(request(None, None, Some(&cap)), 6.25)], 7, &plain(93.75 / 7.0))
        }),
        scenario(
            "2 busy of 8, unequal shares, 25 % reserved",
            with(
                vec![
                    busy(request(Some("25%"), Some("50"), None), 25.0 + 15.0),
                    busy(request(None, Some("200"), None), 60.0),
                ],
                6,
                &asleep,
            ),
        ),
        Scenario {
            settle: 5,
            ..scenario(
                "8, one with 30 % reserved wakes",
                with(
                    vec![Part { from: Some(4), ..busy(request(Some("30%"), Some("100"), None), 30.0 + 70.0 / 8.0) }],
                    7,
                    &plain(70.0 / 8.0),
                ),
            )
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_all_there_is() {
        for scenario in all(2.0).iter().filter(|scenario| scenario.parts.len() > 1) {
            let sum: f64 = scenario.parts.iter().map(|part| part.due).sum();
            assert!((sum - 100.0).abs() < 1e-9, "{}: {sum}", scenario.name);
        }
    }
}

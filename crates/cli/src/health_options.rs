//! The options by which a guest is asked how it is.

use pando_api::{HealthCheck, OnFailure, Spec};

/// `--health-…`, by docker's and podman's names.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Its health")]
pub(crate) struct HealthOptions {
    /// Run this in the guest now and then, by /bin/sh; exit code 0 says that it is well [default: the image's]
    #[arg(long, value_name = "LINE")]
    health_cmd: Option<String>,
    /// The time between two checks, such as 30s or 1m30s [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    health_interval: Option<u32>,
    /// How many checks have to fail, one after another, until it is unhealthy [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    health_retries: Option<u32>,
    /// The time after its start in which failures do not count [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    health_start_period: Option<u32>,
    /// The time that a check may take [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    health_timeout: Option<u32>,
    /// What is done with it once it is unhealthy: none, kill (its restart policy says what follows), restart or stop
    /// [default: none]
    #[arg(long, value_name = "ACTION")]
    health_on_failure: Option<OnFailure>,
    /// Do not check, whatever the image says
    #[arg(long, conflicts_with = "health_cmd")]
    no_healthcheck: bool,
}

impl HealthOptions {
    /// Lays them over a spec.
    pub(crate) fn lay_over(self, spec: &mut Spec) {
        let command = match (self.health_cmd, self.no_healthcheck) {
            (Some(line), _) if line != "none" => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
            (Some(_), _) | (None, true) => vec![HealthCheck::NONE.to_owned()],
            (None, false) => Vec::new(),
        };
        let before = spec.health.take().unwrap_or_default();
        let said = HealthCheck {
            command,
            interval: self.health_interval,
            timeout: self.health_timeout,
            retries: self.health_retries,
            start_period: self.health_start_period,
            on_failure: self.health_on_failure.unwrap_or(before.on_failure),
        };
        spec.health = Some(said.or(before)).filter(|health| *health != HealthCheck::default());
    }
}

/// `30s`, `1m30s`, `2h`, or seconds.
fn seconds(text: &str) -> Result<u32, String> {
    let read = text.parse::<u32>().ok().or_else(|| {
        let span: jiff::SignedDuration = text.parse().ok()?;
        (span.subsec_nanos() == 0).then(|| u32::try_from(span.as_secs()).ok()).flatten()
    });
    read.ok_or_else(|| format!("'{text}' is no time in whole seconds; write for example 30s or 1m30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds() {
        assert_eq!((seconds("30s"), seconds("1m30s"), seconds("2h"), seconds("7")), (Ok(30), Ok(90), Ok(7200), Ok(7)));
        for wrong in ["", "soon", "-5s", "500ms", "1.5s"] {
            assert!(seconds(wrong).unwrap_err().contains("1m30s"), "{wrong}");
        }
    }

    #[test]
    fn options_win_over_the_file() {
        let mut spec = Spec::default();
        HealthOptions::default().lay_over(&mut spec);
        assert_eq!(spec.health, None);
        let cmd =
            HealthOptions { health_cmd: Some("true".into()), health_retries: Some(2), ..HealthOptions::default() };
        cmd.lay_over(&mut spec);
        HealthOptions { health_interval: Some(5), ..HealthOptions::default() }.lay_over(&mut spec);
        let health = spec.health.clone().unwrap();
        assert_eq!((health.command[2].as_str(), health.retries, health.interval), ("true", Some(2), Some(5)));
        HealthOptions { no_healthcheck: true, ..HealthOptions::default() }.lay_over(&mut spec);
        assert_eq!(spec.health.unwrap().wanted(), None);
    }
}

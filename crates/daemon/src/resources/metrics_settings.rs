//! Where metrics are served: the table `[metrics]` of pando.toml.

use pando_guest::settings::{Problem, Settings};
use serde::Deserialize;

/// The table `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct MetricsSettings {
    /// `127.0.0.1:9464`, or the absolute path of a socket. Nothing: nobody is answered.
    pub(crate) listen: Option<String>,
}

impl MetricsSettings {
    /// What the settings say of metrics, and what is wrong with that.
    pub(crate) fn read(settings: &Settings) -> (Self, Vec<Problem>) {
        settings.table("metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn nobody_is_answered_unless_somebody_wants_it() {
        let listen = |text: &str| {
            let (metrics, problems) = MetricsSettings::read(&Settings::parse(Path::new("pando.toml"), text));
            (metrics.listen, problems.len())
        };
        assert_eq!(listen("[other]\n"), (None, 0));
        assert_eq!(listen("[metrics]\nlisten = \"127.0.0.1:9464\"\n"), (Some("127.0.0.1:9464".to_owned()), 0));
        assert_eq!(listen("[metrics]\nport = 1\n"), (None, 1));
    }
}

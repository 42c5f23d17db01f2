//! The part of pando.toml that is for networks; others read the rest.

use pando_guest::Places;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The table `[network]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct NetworkSettings {
    /// The private network's addresses. Default: one that no network of the host's overlaps.
    pub(crate) private: Option<String>,
    /// The rates of devices, where they do not know their own or shall be held to less: `eth0 = "1gbit"`.
    pub(crate) link_rate: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    network: NetworkSettings,
}

impl NetworkSettings {
    /// What pando.toml says; nothing where it cannot be read.
    pub(crate) fn read(places: &Places) -> Self {
        let path = places.settings();
        let Ok(text) = std::fs::read_to_string(&path) else { return Self::default() };
        match toml::from_str::<Settings>(&text) {
            Ok(settings) => settings.network,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "the settings cannot be read; networks are as usual");
                Self::default()
            }
        }
    }
}

//! What pando.toml says of networks: the table `[network]`.

use pando_guest::Places;
use pando_guest::settings::Settings;
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

impl NetworkSettings {
    /// Reads what pando.toml says of networks.
    pub(crate) fn read(places: &Places) -> Self {
        Settings::read(places).table("network").0
    }
}

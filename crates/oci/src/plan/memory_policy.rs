//! On which nodes of the machine a process's memory lies (set_mempolicy(2)).

use anyhow::{Context, Result, bail};
use pando_shim::Step;
use serde_json::Value;

/// Modes, by their numbers (linux/mempolicy.h).
pub(crate) const MODES: [&str; 7] = [
    "MPOL_DEFAULT",
    "MPOL_PREFERRED",
    "MPOL_BIND",
    "MPOL_INTERLEAVE",
    "MPOL_LOCAL",
    "MPOL_PREFERRED_MANY",
    "MPOL_WEIGHTED_INTERLEAVE",
];

const FLAGS: [(&str, u32); 3] =
    [("MPOL_F_STATIC_NODES", 1 << 15), ("MPOL_F_RELATIVE_NODES", 1 << 14), ("MPOL_F_NUMA_BALANCING", 1 << 13)];

/// The names of the flags.
pub(crate) fn flags() -> Vec<&'static str> {
    FLAGS.iter().map(|(name, _)| *name).collect()
}

/// The most nodes that a kernel is built for.
const MOST_NODES: usize = 1024;

/// A policy, as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryPolicy {
    mode: u32,
    /// A bit a node.
    nodes: Vec<u8>,
}

impl MemoryPolicy {
    /// Reads `linux.memoryPolicy`, if there is one.
    pub(crate) fn read(config: &Value) -> Result<Option<Self>> {
        let Some(given) = config.pointer("/linux/memoryPolicy").filter(|given| !given.is_null()) else {
            return Ok(None);
        };
        let name = given["mode"].as_str().unwrap_or_default();
        let mode = MODES.iter().position(|known| *known == name);
        let mode = mode.with_context(|| format!("invalid memory policy mode '{name}'"))?;
        let mut word = u32::try_from(mode)?;
        for flag in given["flags"].as_array().into_iter().flatten() {
            let known = FLAGS.iter().find(|(name, _)| flag == name);
            word |= known.with_context(|| format!("invalid memory policy flag {flag}"))?.1;
        }
        let nodes = nodes(given["nodes"].as_str().unwrap_or_default())?;
        let count = nodes.iter().map(|byte| byte.count_ones()).sum::<u32>();
        match (name, count) {
            ("MPOL_DEFAULT" | "MPOL_LOCAL", 1..) => {
                bail!("invalid memory policy: {name} mode requires 0 nodes but got {count}")
            }
            ("MPOL_DEFAULT" | "MPOL_LOCAL" | "MPOL_PREFERRED", 0) | (_, 1..) => {}
            _ => bail!("invalid memory policy: {name} mode requires at least 1 node but got 0"),
        }
        Ok(Some(Self { mode: word, nodes }))
    }

    /// The step that sets it.
    pub(crate) fn step(&self) -> Step<'_> {
        Step::MemoryPolicy { mode: self.mode, nodes: &self.nodes }
    }
}

/// A list such as `0-3,7`, as bits. Words of eight bytes, as the kernel reads them.
fn nodes(text: &str) -> Result<Vec<u8>> {
    const WORD: usize = 8;
    let mut bits = Vec::new();
    let wrong = || format!("invalid memory policy nodes '{text}': write 0-3,7, of numbers below {MOST_NODES}");
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|number| *number < MOST_NODES);
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = number(first).zip(number(last)).with_context(wrong)?;
        if first > last {
            bail!("{}", wrong());
        }
        if bits.len() <= last / 8 {
            bits.resize((last / 8 / WORD + 1) * WORD, 0);
        }
        (first..=last).for_each(|node| bits[node / 8] |= 1 << (node % 8));
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(policy: &Value) -> Result<Option<MemoryPolicy>> {
        MemoryPolicy::read(&json!({"linux": {"memoryPolicy": policy}}))
    }

    #[test]
    fn a_mode_its_flags_and_its_nodes_are_numbers() {
        let policy = read(&json!({"mode": "MPOL_BIND", "nodes": "0-1,9", "flags": ["MPOL_F_STATIC_NODES"]})).unwrap();
        let expected = MemoryPolicy { mode: 2 | 1 << 15, nodes: vec![0b11, 0b10, 0, 0, 0, 0, 0, 0] };
        assert_eq!(policy, Some(expected));
        assert_eq!(MemoryPolicy::read(&json!({"linux": {}})).unwrap(), None);
        assert!(read(&json!({"mode": "MPOL_DEFAULT"})).unwrap().unwrap().nodes.is_empty());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (policy, complaint) in [
            (json!({}), "mode ''"),
            (json!({"mode": "BIND"}), "mode 'BIND'"),
            (json!({"mode": "MPOL_BIND", "nodes": "0", "flags": ["x"]}), "flag \"x\""),
            (json!({"mode": "MPOL_BIND"}), "at least 1 node"),
            (json!({"mode": "MPOL_DEFAULT", "nodes": "0-7"}), "requires 0 nodes but got 8"),
            (json!({"mode": "MPOL_BIND", "nodes": "0-9876543210"}), "nodes '0-9876543210'"),
            (json!({"mode": "MPOL_BIND", "nodes": "2-1"}), "nodes '2-1'"),
        ] {
            let refused = read(&policy).unwrap_err().to_string();
            assert!(refused.contains("invalid memory policy") && refused.contains(complaint), "{refused}");
        }
    }
}

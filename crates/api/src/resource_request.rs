//! What a user requests a guest to be granted, or kept from, in the user's own words: `25%`, `512M`, `1.5`.
//!
//! Words are kept as they were said, so that a spec reads as it was written; what they mean on a machine is found out
//! where they are used.

use serde::{Deserialize, Deserializer, Serialize};

/// A quantity as the user wrote it. In a file it may be a number or a string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

impl From<&str> for Amount {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Amount {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl serde::de::Visitor<'_> for Words {
            type Value = Amount;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a number, or a quantity such as \"512M\"")
            }

            fn visit_str<E>(self, text: &str) -> Result<Amount, E> {
                Ok(text.into())
            }

            fn visit_i64<E>(self, number: i64) -> Result<Amount, E> {
                Ok(number.to_string().into())
            }

            fn visit_u64<E>(self, number: u64) -> Result<Amount, E> {
                Ok(number.to_string().into())
            }

            fn visit_f64<E>(self, number: f64) -> Result<Amount, E> {
                Ok(number.to_string().into())
            }
        }
        deserializer.deserialize_any(Words)
    }
}

/// Declares a table of requests, and how its fields are listed by their keys.
macro_rules! requests {
    ($(#[$about:meta])* $name:ident, $prefix:literal, { $($(#[$meaning:meta])* $field:ident),* $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$meaning])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<Amount>,)*
        }

        impl $name {
            /// Whether the table asks for nothing.
            pub fn is_empty(&self) -> bool {
                *self == Self::default()
            }

            /// What is requested, by key.
            pub fn pairs(&self) -> Vec<(&'static str, &str)> {
                let all = [$((concat!($prefix, ".", stringify!($field)), &self.$field)),*];
                all.into_iter().filter_map(|(key, amount)| Some((key, amount.as_ref()?.0.as_str()))).collect()
            }
        }
    };
}

requests! {
    /// Processor time.
    CpuRequest, "cpu", {
        /// The part of the machine that is guaranteed: `25%`. Without a share it is an upper bound too.
        reserve,
        /// The weight in what is not reserved or not used; 100 is usual.
        share,
        /// The hard upper bound in processors: `1.5`.
        limit,
        /// The processors that may be used: `0-1`.
        cpus,
    }
}

requests! {
    /// Memory, in bytes with K, M, G.
    MemoryRequest, "memory", {
        /// The most in all, page cache included.
        limit,
        /// What is not taken away while it is used.
        reserve,
        /// The most in swap.
        swap,
        /// The most that one process may lock.
        locked,
        /// The most private writable memory of one process.
        anonymous,
        /// The largest address space of one process.
        virtual_size,
        /// System V shared memory.
        sysv,
        /// The size of /dev/shm.
        shm,
    }
}

requests! {
    /// Traffic with the disk.
    IoRequest, "io", {
        /// The weight among those that wait for the disk; 100 is usual.
        weight,
        /// Bytes read a second.
        read_rate,
        /// Bytes written a second.
        write_rate,
        /// Reads a second.
        read_ops,
        /// Writes a second.
        write_ops,
    }
}

requests! {
    /// Room on the disk.
    DiskRequest, "disk", {
        /// Bytes.
        size,
        /// Files and directories.
        inodes,
    }
}

requests! {
    /// Bandwidth, in bits a second with kbit, mbit, gbit.
    NetRequest, "net", {
        /// What is guaranteed in what leaves the machine. Without a share it is an upper bound too.
        reserve,
        /// The weight in what is not reserved or not used; 100 is usual.
        share,
        /// The most that leaves.
        limit,
        /// The most that comes in; what is more is dropped.
        limit_in,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_are_amounts() {
        let request: CpuRequest = serde_json::from_str(r#"{"reserve": "25%", "share": 100, "limit": 1.5}"#).unwrap();
        assert_eq!(request.pairs(), [("cpu.reserve", "25%"), ("cpu.share", "100"), ("cpu.limit", "1.5")]);
        let request: MemoryRequest = serde_json::from_str(r#"{"virtual_size": "1G"}"#).unwrap();
        assert_eq!(request.pairs(), [("memory.virtual_size", "1G")]);
        assert!(serde_json::from_str::<CpuRequest>(r#"{"reserve": []}"#).is_err());
        assert!(serde_json::from_str::<CpuRequest>(r#"{"colour": "red"}"#).unwrap_err().to_string().contains("colour"));
    }
}

//! Which ranges of ids the machine has given to users for namespaces of their own (subuid(5), subgid(5)).
//!
//! A user maps such a range with newuidmap(1), and is then the owner of whatever runs with these ids: that user could
//! signal a guest that had some of them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

const FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// The users that have the range that was set aside for guests.
const OWN: &str = "pando";

/// More than such a file has in it.
const LONGEST: u64 = 1 << 20;

/// Ranges of others, each by its first id and the one after its last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivenIds(Vec<(u64, u64)>);

impl GivenIds {
    /// What the machine's files say now. A file that is not there gives nobody anything.
    pub(crate) fn of_this_machine() -> Self {
        Self::of(&FILES.map(|path| read(Path::new(path)).unwrap_or_default()))
    }

    fn of(texts: &[String]) -> Self {
        Self(texts.iter().flat_map(|text| text.lines()).filter_map(range).collect())
    }

    /// Whether any of `count` ids from `first` on belongs to a user.
    pub(crate) fn has_any(&self, first: u32, count: u32) -> bool {
        let (first, behind) = (u64::from(first), u64::from(first) + u64::from(count));
        self.0.iter().any(|(start, end)| first < *end && *start < behind)
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A line's range: `USER:FIRST:COUNT`.
fn range(line: &str) -> Option<(u64, u64)> {
    let mut parts = line.trim().split(':');
    let user = parts.next().filter(|user| *user != OWN && !user.starts_with('#'))?;
    let [first, count] = [parts.next()?, parts.next()?].map(|number| number.trim().parse::<u64>().ok());
    let first = first.filter(|_| !user.is_empty())?;
    Some((first, first.saturating_add(count?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_others_have_is_not_for_guests() {
        let text =
            "ada:493216:65536\npando:524288:268435456\n# x:0:9999999999\nnonsense\n:1:2\nb:x:3\n1000:1000000:1\n";
        let given = GivenIds::of(&[text.to_owned(), "grace:2000000:5\n".to_owned()]);
        assert_eq!(given.0, [(493_216, 558_752), (1_000_000, 1_000_001), (2_000_000, 2_000_005)]);
        assert!(given.has_any(524_288, 65_536), "its range goes over the first of guests'");
        assert!(!given.has_any(589_824, 65_536));
        assert!(given.has_any(983_040, 65_536) && given.has_any(2_000_004, 1) && !given.has_any(2_000_005, 1));
    }
}

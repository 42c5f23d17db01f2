//! Why a transaction cannot be committed any more, though its command may have done well: it has to be run again.

use crate::validate::changes::Conflict;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    words: String,
    of_memory: bool,
    to_a_commit: bool,
    file: Option<PathBuf>,
    directory: Option<PathBuf>,
}

impl Loss {
    /// To others, who have done something.
    pub fn to_others(what: impl Into<String>) -> Self {
        Self { words: what.into(), of_memory: false, to_a_commit: false, file: None, directory: None }
    }

    /// To another transaction, which has committed.
    pub(crate) fn to_a_commit(what: String) -> Self {
        Self { to_a_commit: true, ..Self::to_others(what) }
    }

    /// Whether whoever it is lost to has ended: then there is nothing to wait for.
    pub fn is_to_a_commit(&self) -> bool {
        self.to_a_commit
    }

    /// As a sentence has it.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// Whether it is that memory ran short, so that it is not known any more what was read. Another run may be helped by
    /// [writing through](crate::Transaction::write_through).
    pub fn is_of_memory(&self) -> bool {
        self.of_memory
    }

    /// What others have changed, if it is there still. Another run may be helped by [telling who changes what of it](crate::Transaction::tell_apart).
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

impl Loss {
    /// The directory in which others have changed names, where it is not known which. Another run may be helped by [knowing the names](crate::Transaction::know_names) in it.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}

impl From<Conflict> for Loss {
    fn from(conflict: Conflict) -> Self {
        let file = conflict.is_of_a_change().then(|| PathBuf::from(&conflict.path));
        let directory = conflict.is_of_a_name().then(|| Path::new(&conflict.path).parent().map(Path::to_owned));
        let (words, directory) = (conflict.to_string(), directory.flatten());
        Self { words, of_memory: conflict.is_of_memory(), to_a_commit: false, file, directory }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words)
    }
}

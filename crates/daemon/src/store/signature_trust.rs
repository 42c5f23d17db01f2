//! Whose signatures of imported images are believed: what the caller says, or `[images]` of pando.toml.

use crate::store::image_stream::Unpacked;
use pando_guest::Places;
use pando_guest::settings::Settings;
use pando_reader::signature::{LONGEST_LIST, SignatureError, Signed, Signers, check};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The table `[images]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ImageSettings {
    /// Where the allowed signers are. Default: allowed_signers beside pando.toml, if it is there.
    signers: Option<PathBuf>,
    /// Where the keys are that are not believed any more.
    revoked: Option<PathBuf>,
    /// Whether everything that is imported has to be signed.
    require_signature: bool,
    /// How much of pulled images that nobody uses stays. Default: all of it.
    #[serde(deserialize_with = "pando_tx::KeepBounds::setting")]
    pub(crate) keep: Option<pando_tx::KeepBounds>,
}

/// What is asked of the signature of an import.
#[derive(Debug)]
pub(crate) struct SignatureTrust {
    /// Who is believed; none where nobody said.
    signers: Option<Signers>,
    /// Whether there has to be one.
    required: bool,
}

impl SignatureTrust {
    /// That for an import, to which a list of signers may have come along: one of them has to have signed it.
    pub(crate) fn of(places: &Places, given: Option<OwnedFd>) -> io::Result<Self> {
        let read = Settings::read(places);
        let (settings, problems) = read.table::<ImageSettings>("images");
        if let Some(problem) = problems.first() {
            // Who mistyped it may have wanted to be asked for signatures.
            return Err(io::Error::other(format!("{problem}; put that right first")));
        }
        let revoked = settings.revoked.as_deref().map(file).transpose()?;
        let required = given.is_some() || settings.require_signature;
        let list = match (given, settings.signers) {
            (Some(given), _) => Some(content(File::from(given), "the list of signers")?),
            (None, Some(path)) => Some(file(&path)?),
            (None, None) => match file(&places.allowed_signers()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                read => Some(read?),
            },
        };
        if required && list.is_none() {
            let message = "pando.toml wants imported images to be signed ([images] require_signature), and nobody has said by whom: name the file with the allowed \
                 signers there (signers = \"FILE\"), or with --verify FILE";
            return Err(io::Error::other(message));
        }
        Ok(Self { signers: list.map(|list| Signers { list, revoked }), required })
    }

    /// Who signed it, if it was signed. An error where that is not believed, or missing and wanted.
    pub(crate) fn judge(&self, unpacked: &Unpacked) -> io::Result<Option<Signed>> {
        let refusal = |words: String| io::Error::new(io::ErrorKind::PermissionDenied, words);
        if unpacked.signature.is_empty() {
            let words =
                "it is not signed, and has to be; have whoever made it export it with --sign. Nothing was imported";
            return if self.required { Err(refusal(words.to_owned())) } else { Ok(None) };
        }
        match check(unpacked.statement.as_bytes(), &unpacked.signature, self.signers.as_ref()) {
            Ok(signed) => Ok(Some(signed)),
            // Nobody has asked for it: then it is as good as none.
            Err(SignatureError::Unchecked(why)) if self.signers.is_none() => {
                tracing::warn!(why, image = unpacked.name, "the signature of an import was not looked at");
                Ok(None)
            }
            Err(error) => Err(refusal(format!("{error}. Nothing was imported"))),
        }
    }
}

fn file(path: &Path) -> io::Result<Vec<u8>> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("'{}' cannot be read: {error}", path.display()));
    content(File::open(path).map_err(named)?, &format!("'{}'", path.display()))
}

fn content(file: File, name: &str) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(LONGEST_LIST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LONGEST_LIST {
        return Err(io::Error::other(format!("{name} is longer than 4 MiB, and no list of keys")));
    }
    Ok(content)
}

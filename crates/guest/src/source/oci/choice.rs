//! From an index to one manifest: by tag, by platform.

use super::layer::Wanted;
use super::store::{Store, blob_path};
use super::{Blobs, MAX_LAYERS, OciError, Resolved, Understood, this_platform};
use pando_reader::{Descriptor, Document, Shape};
use std::collections::BTreeSet;

/// An index may name indexes; no tool makes more than two levels.
const MAX_DEPTH: u32 = 4;

pub(super) fn resolve(store: &Store, tag: Option<&str>) -> Result<Resolved, OciError> {
    let Blobs { config, layers, .. } = locate(store, tag)?;
    manifest(store, &config, &layers)
}

/// Finds the manifest of an image, and what that names.
pub(super) fn locate(store: &Store, tag: Option<&str>) -> Result<Blobs, OciError> {
    let Document::Index(manifests) = store.parse("index.json", Shape::Index, &store.small("index.json")?)? else {
        return Err(store.document("index.json", "it is no index"));
    };
    let mut descriptor = tagged(store, &manifests, tag)?;
    for _ in 0..MAX_DEPTH {
        match understand(store, &store.described("manifest", &descriptor)?)? {
            Understood::Elsewhere(other) => descriptor = other,
            Understood::Image { config, layers } => return Ok(Blobs { manifest: descriptor, config, layers }),
        }
    }
    Err(store.document("index", format!("it leads through more than {MAX_DEPTH} indexes")))
}

/// What an index or a manifest says to this machine.
pub(super) fn understand(store: &Store, content: &[u8]) -> Result<Understood, OciError> {
    match store.parse("manifest", Shape::IndexOrManifest, content)? {
        Document::Index(manifests) => Ok(Understood::Elsewhere(for_this_machine(store, manifests.iter().collect())?)),
        Document::Manifest { config, layers } => Ok(Understood::Image { config, layers }),
        _ => Err(store.document("manifest", "it is neither an index nor a manifest with layers")),
    }
}

fn manifest(store: &Store, config: &Descriptor, descriptors: &[Descriptor]) -> Result<Resolved, OciError> {
    let configuration = store.configuration(&store.described("configuration", config)?)?;
    let plain = &configuration.diff_ids;
    if plain.len() != descriptors.len() || plain.len() > MAX_LAYERS {
        let reason = format!("its manifest has {} layers, its configuration {}", descriptors.len(), plain.len());
        return Err(store.document("manifest", reason));
    }
    let mut layers = Vec::new();
    for (descriptor, plain) in descriptors.iter().zip(plain) {
        if descriptor.media_type.ends_with("+encrypted") {
            return Err(
                store.document("layer", "it is encrypted; decrypt the image first (`skopeo copy --decryption-key`)")
            );
        }
        let digest = store.digest("manifest", &descriptor.digest)?;
        layers.push(Wanted {
            member: blob_path(&digest),
            size: Some(descriptor.size),
            packed: Some(digest),
            plain: store.digest("configuration", plain)?,
        });
    }
    Ok(Resolved { configuration, layers })
}

/// The one that `tag` names, or the only one.
fn tagged(store: &Store, manifests: &[Descriptor], tag: Option<&str>) -> Result<Descriptor, OciError> {
    let names = |descriptor: &Descriptor| descriptor.names.clone();
    let all: BTreeSet<String> = manifests.iter().flat_map(names).collect();
    let has = || {
        let list: Vec<_> = all.iter().map(|name| format!("'{name}'")).collect();
        if list.is_empty() { "no tags at all".to_owned() } else { list.join(", ") }
    };
    let Some(tag) = tag else {
        // Several without a name are the variants of one image.
        let named: BTreeSet<_> = manifests.iter().map(|descriptor| names(descriptor).into_iter().next()).collect();
        if named.len() > 1 {
            return Err(OciError::Several { image: store.image().to_owned(), has: has() });
        }
        return for_this_machine(store, manifests.iter().collect());
    };
    // In full, or by what stands after the last colon of a full name.
    let short = |name: &String| name.rsplit_once(':').is_some_and(|(_, short)| short == tag && !short.contains('/'));
    let exact: Vec<_> =
        manifests.iter().filter(|descriptor| names(descriptor).iter().any(|name| name == tag)).collect();
    let fitting = if exact.is_empty() {
        manifests.iter().filter(|descriptor| names(descriptor).iter().any(short)).collect()
    } else {
        exact
    };
    if fitting.is_empty() {
        return Err(OciError::NoTag { image: store.image().to_owned(), tag: tag.to_owned(), has: has() });
    }
    for_this_machine(store, fitting)
}

/// The first that runs here. One without a platform may: its configuration tells.
fn for_this_machine(store: &Store, manifests: Vec<&Descriptor>) -> Result<Descriptor, OciError> {
    let here = this_platform();
    let fits = |descriptor: &&&Descriptor| descriptor.platform.as_ref() == Some(&here);
    let silent = |descriptor: &&&Descriptor| descriptor.platform.is_none();
    if let Some(found) = manifests.iter().find(fits).or_else(|| manifests.iter().find(silent)) {
        return Ok((**found).clone());
    }
    let has: BTreeSet<_> = manifests
        .iter()
        .filter_map(|descriptor| descriptor.platform.as_ref())
        .map(|(os, architecture)| format!("{os}/{architecture}"))
        .collect();
    let (os, architecture) = here;
    let has = if has.is_empty() { "nothing: it is empty".to_owned() } else { Vec::from_iter(has).join(", ") };
    Err(OciError::NoPlatform { image: store.image().to_owned(), wanted: format!("{os}/{architecture}"), has })
}

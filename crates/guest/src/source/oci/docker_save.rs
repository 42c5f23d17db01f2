//! Archives of `docker save` before Docker 25, which have a `manifest.json` and no index.

use super::layer::Wanted;
use super::store::Store;
use super::{OciError, Resolved};
use oci_spec::image::Digest;
use pando_reader::{Document, SavedImage, Shape};
use std::path::Path;
use std::str::FromStr;

pub(super) fn resolve(store: &Store, tag: Option<&str>) -> Result<Resolved, OciError> {
    let Document::Saved(images) = store.parse("manifest.json", Shape::Saved, &store.small("manifest.json")?)? else {
        return Err(store.document("manifest.json", "it lists no images"));
    };
    let image = choose(store, images, tag)?;
    let content = store.small(&image.config)?;
    // The file is named by its digest: the one thing here that can be checked.
    let stem = Path::new(&image.config).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if let Ok(digest) = Digest::from_str(&format!("sha256:{stem}")) {
        store.check("configuration", &digest, &content)?;
    }
    let configuration = store.configuration(&content)?;
    let plain = &configuration.diff_ids;
    if plain.len() != image.layers.len() {
        let reason = format!("it has {} layers, its configuration {}", image.layers.len(), plain.len());
        return Err(store.document("manifest.json", reason));
    }
    let mut layers = Vec::new();
    for (member, plain) in image.layers.into_iter().zip(plain) {
        let plain = store.digest("configuration", plain)?;
        layers.push(Wanted { member, size: None, packed: None, plain });
    }
    Ok(Resolved { configuration, layers })
}

fn choose(store: &Store, images: Vec<SavedImage>, tag: Option<&str>) -> Result<SavedImage, OciError> {
    let tags: Vec<_> = images.iter().flat_map(|image| image.tags.iter().cloned()).collect();
    let fits = |image: &SavedImage| match tag {
        None => true,
        Some(tag) => {
            let named = |name: &String| name == tag || name.rsplit_once(':').is_some_and(|(_, short)| short == tag);
            image.tags.iter().any(named)
        }
    };
    let mut fitting: Vec<_> = images.into_iter().filter(fits).collect();
    let (count, found) = (fitting.len(), fitting.pop());
    match (found, tag) {
        (Some(image), _) if count == 1 => Ok(image),
        (Some(_), _) => Err(OciError::Several { image: store.image().to_owned(), has: tags.join(", ") }),
        (None, Some(tag)) => {
            let (tag, has) = (tag.to_owned(), format!("'{}'", tags.join("', '")));
            Err(OciError::NoTag { image: store.image().to_owned(), tag, has })
        }
        (None, None) => Err(OciError::NotAnImage(store.image().to_owned())),
    }
}

//! Archives of `docker save` before Docker 25, which have a `manifest.json` and no index.

use super::layer::Wanted;
use super::store::Store;
use super::{OciError, Resolved};
use oci_spec::image::{Digest, ImageConfiguration};
use serde::Deserialize;
use std::path::Path;
use std::str::FromStr;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn resolve(store: &Store, tag: Option<&str>) -> Result<Resolved, OciError> {
    let images: Vec<Image> = store.parse("manifest.json", &store.small("manifest.json")?)?;
    let image = choose(store, images, tag)?;
    let content = store.small(&image.config)?;
    // The file is named by its digest: the one thing here that can be checked.
    let stem = Path::new(&image.config).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if let Ok(digest) = Digest::from_str(&format!("sha256:{stem}")) {
        store.check("configuration", &digest, &content)?;
    }
    let configuration: ImageConfiguration = store.parse("configuration", &content)?;
    let plain = configuration.rootfs().diff_ids();
    if plain.len() != image.layers.len() {
        let reason = format!("it has {} layers, its configuration {}", image.layers.len(), plain.len());
        return Err(store.document("manifest.json", reason));
    }
    let mut layers = Vec::new();
    for (member, plain) in image.layers.into_iter().zip(plain) {
        let plain = Digest::from_str(plain).map_err(|error| store.document("configuration", error))?;
        layers.push(Wanted { member, size: None, packed: None, plain });
    }
    Ok(Resolved { configuration, layers })
}

fn choose(store: &Store, images: Vec<Image>, tag: Option<&str>) -> Result<Image, OciError> {
    let tags: Vec<_> = images.iter().flat_map(|image| image.repo_tags.iter().flatten().cloned()).collect();
    let fits = |image: &Image| match tag {
        None => true,
        Some(tag) => {
            let named = |name: &String| name == tag || name.rsplit_once(':').is_some_and(|(_, short)| short == tag);
            image.repo_tags.iter().flatten().any(named)
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

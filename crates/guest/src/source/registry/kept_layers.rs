//! The layers of an image that is kept, for one that is made of it.

use crate::source::oci::{OciError, layers_of_layout};
use std::path::Path;

/// A layer of an image that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLayer {
    /// Its kind, in OCI's words also where the image is in docker's form.
    pub media_type: String,
    /// The digest of its blob, as the manifest writes it.
    pub digest: String,
    /// The size of its blob, in bytes.
    pub size: u64,
    /// The digest of its plain content.
    pub plain: String,
}

impl KeptLayer {
    /// The file of its blob in a layout.
    pub fn member(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

/// The layers of the image in a layout that was kept under the name `image`, lowest first.
///
/// # Errors
///
/// The layout is damaged.
pub fn kept_layers(layout: &Path, image: &str) -> Result<Vec<KeptLayer>, OciError> {
    let layers = layers_of_layout(layout, image)?.into_iter();
    let kept = layers.map(|(layer, plain)| KeptLayer {
        media_type: as_oci(&layer.media_type),
        digest: layer.digest,
        size: layer.size,
        plain: plain.to_string(),
    });
    Ok(kept.collect())
}

/// A kind of layer in OCI's words: the same bytes, whatever docker calls them.
fn as_oci(kind: &str) -> String {
    match kind {
        "application/vnd.docker.image.rootfs.diff.tar" => "application/vnd.oci.image.layer.v1.tar".to_owned(),
        "application/vnd.docker.image.rootfs.diff.tar.gzip" => "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
        "application/vnd.docker.image.rootfs.diff.tar.zstd" => "application/vnd.oci.image.layer.v1.tar+zstd".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockers_layers_are_layers_of_oci() {
        let gzip = "application/vnd.oci.image.layer.v1.tar+gzip";
        assert_eq!(as_oci("application/vnd.docker.image.rootfs.diff.tar.gzip"), gzip);
        assert_eq!(as_oci(gzip), gzip);
    }
}

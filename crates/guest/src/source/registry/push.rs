//! From a layout that is kept to a registry.

use super::client::{Bounds, Preparation, here};
use super::{Reference, RegistryError, RegistrySettings};
use crate::source::Progress;
use crate::source::oci::{OciError, blobs_of_layout};
use std::path::Path;

/// What a client may write that only reads: what it keeps of its talk with the registry.
const BESIDES: u64 = 64 << 20;

/// What is to be pushed, and where to.
#[derive(Debug)]
pub struct PushOrder<'a> {
    /// The name under which the image is kept.
    pub image: &'a str,
    /// Its layout, which only root can change.
    pub layout: &'a Path,
    /// The name that it gets in the registry.
    pub to: &'a Reference,
    /// A file of credentials, as containers-auth.json(5) describes it.
    pub credentials: Option<&'a [u8]>,
    /// What the machine says of registries.
    pub settings: &'a RegistrySettings,
    /// A directory on the layout's file system, which only root can enter.
    pub beside: &'a Path,
}

/// Pushes an image: the blobs that the registry does not have, then the manifest. Blocking.
///
/// # Errors
///
/// What the registry has got by then it keeps, under no name.
pub fn push(order: &PushOrder<'_>, progress: &dyn Progress) -> Result<(), RegistryError> {
    let image = |source: OciError| RegistryError::Image { reference: order.image.to_owned(), source };
    let failed = |source| here(order.to, "taking the image", source);
    let place = Preparation::new(order.to, order.beside, (order.settings, order.credentials), progress)?;
    let blobs = blobs_of_layout(order.layout, order.image).map_err(image)?;
    let layout = place.layout();
    for name in ["index.json", "oci-layout"] {
        std::fs::copy(order.layout.join(name), layout.join(name)).map_err(failed)?;
    }
    for (member, _) in blobs.members() {
        let to = layout.join(&member);
        if !to.exists() {
            std::fs::hard_link(order.layout.join(&member), to).map_err(failed)?;
        }
    }
    progress.stage(&format!("sending {} to {}", order.image, order.to.registry()));
    place.begin()?.send(&order.to.whole(), Bounds::of_sending(BESIDES))
}

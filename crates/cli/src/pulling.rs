//! Having the daemon pull, push or make an image as registries have them, with the caller's credentials.

use crate::progress_line::ProgressLine;
use crate::registry_credentials;
use crate::replies::Pulled;
use crate::source::REGISTRY;
use crate::state_root::StateRoot;
use anyhow::Context;
use pando_api::{Method, PulledImage};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Pulls an image by its full name. With `missing` one that is here is taken as it is. Tells whether anything came.
pub(crate) fn pull(
    root: &StateRoot,
    name: &str,
    missing: bool,
    authfile: Option<&Path>,
) -> anyhow::Result<(PulledImage, bool)> {
    let credentials = registry_credentials::file(name, authfile)?;
    follow(root, Method::PullImage { reference: name.to_owned(), missing }, credentials)
}

/// Pushes an image that is here, under a name in a registry.
pub(crate) fn push(root: &StateRoot, image: &str, to: &str, authfile: Option<&Path>) -> anyhow::Result<PulledImage> {
    let credentials = registry_credentials::file(to, authfile)?;
    let method = Method::PushImage { image: image.to_owned(), to: Some(to.to_owned()) };
    follow(root, method, credentials).map(|(image, _)| image)
}

/// Makes an image of a guest.
pub(crate) fn commit(root: &StateRoot, guest: &str, image: &str) -> anyhow::Result<PulledImage> {
    follow(root, Method::Commit { name: guest.to_owned(), image: image.to_owned() }, None).map(|(image, _)| image)
}

/// Has something long done to an image, and shows how it gets on.
fn follow(root: &StateRoot, method: Method, credentials: Option<OwnedFd>) -> anyhow::Result<(PulledImage, bool)> {
    let mut client = crate::daemon_start::connected(root)?;
    client.send(method, true, credentials.into_iter().collect())?;
    let line = ProgressLine::new();
    loop {
        let answer = client.receive::<Pulled>()?;
        answer.reply.progress.iter().for_each(|progress| line.show(progress));
        if !answer.continues {
            drop(line);
            let pulled = answer.reply.pulled.context("the daemon did not say what came of it")?;
            return Ok((pulled, answer.reply.changed));
        }
    }
}

/// Pulls what a guest is to be made of, if that is an image of a registry and not here yet, and says so: a short name
/// means one that somebody else has given out.
pub(crate) fn have(root: &StateRoot, source: Option<&str>) -> anyhow::Result<()> {
    let Some(name) = source.and_then(|source| source.strip_prefix(REGISTRY)) else { return Ok(()) };
    let (pulled, changed) = pull(root, name, true, None)?;
    if changed {
        eprintln!("pando: {} was pulled ({})", pulled.reference, crate::size::size(pulled.size));
    }
    Ok(())
}

//! From the name of an image to a layout that is kept.

use super::adoption::{Kept, adopt};
use super::arrivals::Arrivals;
use super::client::{Bounds, Client, LAYOUT, Preparation, here};
use super::{Reference, RegistryError, RegistrySettings};
use crate::source::Progress;
use crate::source::oci::{OciError, Part, Understood, parts, understand};
use crate::source::root::read_file;
use pando_kernel::file::tree_removal::TemporaryDirectory;
use pando_kernel::filesystem::spare_room::{Refusal, SpareRoom};
use pando_reader::{Descriptor, sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// No registry gives a larger manifest; skopeo takes no larger one either.
const LONGEST_MANIFEST: u64 = 4 << 20;

/// An index may name indexes; no tool makes more than two levels.
const MAX_DEPTH: u32 = 4;

/// How the kinds of documents begin that are as docker makes them.
const DOCKERS: &str = "application/vnd.docker.";

/// The kinds of a manifest: docker's, and OCI's.
const MANIFESTS: [&str; 2] =
    ["application/vnd.docker.distribution.manifest.v2+json", "application/vnd.oci.image.manifest.v1+json"];

/// The file that a client writes a configuration to.
const CONFIGURATION: &str = "configuration";

/// What comes besides blobs: an index, and manifests in another form.
const BESIDES: u64 = 4 * LONGEST_MANIFEST;

/// What is to be pulled, and where to.
#[derive(Debug)]
pub struct PullOrder<'a> {
    /// The full name of the image.
    pub reference: &'a Reference,
    /// A file of credentials, as containers-auth.json(5) describes it.
    pub credentials: Option<&'a [u8]>,
    /// What the machine says of registries.
    pub settings: &'a RegistrySettings,
    /// The directory where layouts are kept, which only root can enter.
    pub beside: &'a Path,
    /// The layouts that are kept there, whose blobs are not pulled again.
    pub kept: &'a [PathBuf],
    /// The directory of what arrived whole before a pull broke off, which only root can enter.
    pub arrived: &'a Path,
    /// The digest that the registry had for the image the last time: if it has the same now, nothing is pulled.
    pub known: Option<&'a str>,
}

/// What came of asking a registry.
#[derive(Debug)]
pub enum Pulled {
    /// The registry has what was known.
    UpToDate,
    /// An image that was not here.
    New(NewImage),
}

/// An image that was pulled.
#[derive(Debug)]
pub struct NewImage {
    /// Its layout. Nothing but its documents was looked at so far; it goes with this value.
    pub layout: TemporaryDirectory,
    /// The digest by which the registry names it: of an index, where there are several variants.
    pub digest: String,
    /// How many layers it has.
    pub layers: u64,
    /// Bytes of its blobs, as they are stored.
    pub size: u64,
    /// Bytes of those that had to be downloaded.
    pub downloaded: u64,
}

/// Pulls an image. Blocking.
///
/// # Errors
///
/// Every one leaves nothing behind but parts that arrived whole, for the next pull.
pub fn pull(order: &PullOrder<'_>, progress: &dyn Progress) -> Result<Pulled, RegistryError> {
    let reference = order.reference;
    let image = |source| RegistryError::Image { reference: reference.whole(), source };
    progress.stage(&format!("asking {} for {}", reference.registry(), reference.repository()));
    let prepare = || Preparation::new(reference, order.beside, (order.settings, order.credentials), progress);
    let found = find(&prepare()?.begin()?)?;
    if order.known == Some(&*found.digest) {
        return Ok(Pulled::UpToDate);
    }
    let parts = parts(&reference.whole(), &found.config, &found.layers).map_err(image)?;
    let arrived = Arrivals::of(order.arrived);
    let using = arrived.begin();
    let kept = Kept { layouts: order.kept, arrived };
    // Another directory: nothing has run in this one when root puts links to what is kept there.
    let place = prepare()?;
    let mut missing = BTreeMap::new();
    for part in &parts {
        let member = part.member();
        match kept.find(part) {
            Some(_) if missing.contains_key(&member) => {}
            Some(path) => lend(&place, &path, &member)?,
            None => drop(missing.insert(member, part.size)),
        }
    }
    let client = place.begin()?;
    let downloaded = missing.values().fold(0_u64, |sum, size| sum.saturating_add(*size));
    check_room(order, downloaded).or_else(|_| {
        arrived.make_room(&using, &parts);
        check_room(order, downloaded)
    })?;
    let count = missing.len();
    progress.stage(&match count {
        0 => "nothing has to be downloaded".to_owned(),
        _ => format!("downloading {count} of {} parts", parts.len()),
    });
    let largest = missing.values().copied().max().unwrap_or(0).max(LONGEST_MANIFEST);
    let bounds = Bounds::of_fetching(largest, downloaded, BESIDES);
    let by_digest = by_digest(reference, &found.manifest.digest);
    client.copy(&by_digest, bounds).inspect_err(|ending| arrived.keep(client.root(), ending))?;
    let sent = sent(&client, &by_digest, &found, &parts)?;
    let layout = adopt(&client, order.beside, &found.manifest, (&sent, &kept))?;
    arrived.used(&using, &parts, &found.manifest.digest);
    let size = parts.iter().fold(found.manifest.content.len() as u64, |sum, part| sum.saturating_add(part.size));
    let layers = found.layers.len() as u64;
    Ok(Pulled::New(NewImage { layout, digest: found.digest, layers, size, downloaded }))
}

/// Where in the client's directory each part is, if it has been sent.
fn sent(
    client: &Client<'_>,
    image: &str,
    found: &Found,
    parts: &[Part],
) -> Result<Vec<(Part, PathBuf)>, RegistryError> {
    let mut sent: Vec<_> = parts.iter().map(|part| (part.clone(), Path::new(LAYOUT).join(part.member()))).collect();
    // In the layout there is another one: it was made anew for OCI.
    if let Some((_, path)) = sent.first_mut().filter(|_| found.config.media_type.starts_with(DOCKERS)) {
        client.configuration(image, CONFIGURATION, LONGEST_MANIFEST)?;
        *path = PathBuf::from(CONFIGURATION);
    }
    Ok(sent)
}

/// Shows a client a blob that is kept, under a name of its directory's own. It can read it, and not change it.
fn lend(place: &Preparation<'_>, kept: &Path, member: &str) -> Result<(), RegistryError> {
    let to = place.layout().join(member);
    // An image may have a layer twice.
    if to.symlink_metadata().is_ok() {
        return Ok(());
    }
    let failed = |source| here(place.reference, "taking what other images have already", source);
    std::fs::hard_link(kept, to).map_err(failed)
}

/// The image by the digest of a manifest: what is copied is what was looked at.
fn by_digest(reference: &Reference, digest: &str) -> String {
    format!("{}/{}@{digest}", reference.registry(), reference.repository())
}

/// What a registry has under a name.
struct Found {
    /// The digest of what the name stands for.
    digest: String,
    /// The manifest for this machine.
    manifest: Manifest,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// A manifest as a registry has it.
pub(super) struct Manifest {
    pub(super) digest: String,
    pub(super) kind: &'static str,
    /// The very bytes that were digested and understood.
    pub(super) content: Vec<u8>,
}

impl Manifest {
    /// It need not say what kind it is; its configuration does.
    fn new(digest: String, config: &Descriptor, content: Vec<u8>) -> Self {
        let kind = if config.media_type.starts_with(DOCKERS) { MANIFESTS[0] } else { MANIFESTS[1] };
        Self { digest, kind, content }
    }
}

fn find(client: &Client<'_>) -> Result<Found, RegistryError> {
    let reference = client.reference;
    let image = |source| RegistryError::Image { reference: reference.whole(), source };
    let mut name = match reference.digest() {
        Some(digest) => by_digest(reference, digest),
        None => reference.whole(),
    };
    let mut wanted = reference.digest().map(str::to_owned);
    let mut first = None;
    for depth in 0..MAX_DEPTH {
        let output = format!("manifest-{depth}");
        client.manifest(&name, &output, LONGEST_MANIFEST)?;
        let content = read(client, &output)?;
        let digest = sha256(&content);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != digest) {
            return Err(RegistryError::OtherManifest { reference: reference.whole(), digest: wanted });
        }
        let top = first.get_or_insert_with(|| digest.clone()).clone();
        match understand(&reference.whole(), &content).map_err(image)? {
            Understood::Image { config, layers } => {
                return Ok(Found { digest: top, manifest: Manifest::new(digest, &config, content), config, layers });
            }
            Understood::Elsewhere(other) => {
                name = by_digest(reference, &other.digest);
                wanted = Some(other.digest);
            }
        }
    }
    Err(image(OciError::Document {
        image: reference.whole().into(),
        what: "index".to_owned(),
        reason: format!("it leads through more than {MAX_DEPTH} indexes"),
    }))
}

/// A manifest that the client has written.
fn read(client: &Client<'_>, output: &str) -> Result<Vec<u8>, RegistryError> {
    let failed = |source| here(client.reference, "reading a manifest", source);
    let file = read_file(client.root(), Path::new(output)).map_err(|error| failed(error.into()))?;
    let mut content = Vec::new();
    file.take(LONGEST_MANIFEST).read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

/// Whether there is room for what has to be downloaded. Unpacking it asks again.
fn check_room(order: &PullOrder<'_>, bytes: u64) -> Result<(), RegistryError> {
    let failed = |source| here(order.reference, "looking for room", source);
    let directory = File::open(order.beside).map_err(failed)?;
    let mut room = SpareRoom::at(&directory).map_err(|error| failed(error.into()))?;
    room.ask(bytes.saturating_add(BESIDES)).map_err(|refusal| match refusal {
        Refusal::NoRoom(room) => RegistryError::NoRoom { reference: order.reference.whole(), room },
        Refusal::Look(error) => failed(error.into()),
    })
}

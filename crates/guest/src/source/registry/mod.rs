//! Images of registries.
//!
//! ```text
//!   reference ─┐         staging: the client's, which is nobody            pulled: root's alone
//!              ├─ pull ─▶ client (skopeo) ─▶ manifest ▷ bounds ─▶ blobs ─▶ adoption ─▶ an OCI layout
//!   settings  ─┘                             └─ pando-reader                (links, by descriptor)
//! ```
//!
//! `skopeo` speaks with registries: it knows credentials, mirrors, policies and resumes what broke off. It runs without
//! powers in a directory of its own ([`pando_reader::registry_client`]). What it leaves there is believed no more than
//! the registry: a manifest is what its digest says, nothing larger than the manifest says is kept, and each blob is
//! checked again when the layout is unpacked.
//!
//! The client is the first process of a pid namespace, which ends with it: what it leaves in its directory is looked at
//! when nothing of it runs any more. Root makes something in a client's directory only before that has begun; for blobs
//! that are lent the client gets another directory than the one in which it asked for the manifest.
//!
//! Of a caller's credentials a client gets those for its image alone.
//!
//! Each image is a whole layout, and equal blobs of several are one file with several names: an image that shares four
//! of five layers with one that is here downloads one. What arrived whole before a pull broke off is kept for the next
//! one ([`Arrivals`]).

mod adoption;
mod arrivals;
mod client;
mod credentials;
mod kept_layers;
mod pull;
mod push;
mod settings;

pub use arrivals::Arrivals;
pub use kept_layers::{KeptLayer, kept_layers};
pub use pull::{NewImage, PullOrder, Pulled, pull};
pub use push::{PushOrder, push};
pub use settings::RegistrySettings;

/// The name of an image in a registry, in full: `docker.io/library/nginx:1.27`.
pub use oci_spec::distribution::Reference;

use super::meter::Cancelled;
use super::oci::OciError;
use pando_kernel::filesystem::spare_room::NoRoom;
use std::io;

/// Why an image was not pulled or pushed. Which one and what was tried the caller says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Nothing here speaks with registries.
    #[error(
        "what speaks with registries, skopeo, is not on this machine; install it (on Debian and Ubuntu: \
         apt-get install skopeo), or take an image that is here with oci:DIR or oci:FILE.tar"
    )]
    NoTool(String),
    /// Nobody has said which images are accepted.
    #[error(
        "there is no /etc/containers/policy.json, which says whose images are accepted here; install it (on \
         Debian and Ubuntu: apt-get install golang-github-containers-common), or write one: containers-policy.json(5)"
    )]
    NoPolicy(String),
    /// Only root can start what has another user's id.
    #[error("only root can, since what speaks with registries runs as another user")]
    NotRoot(String),
    /// What is needed here could not be made.
    #[error("{action} failed: {source}; check the file system that the state lies on")]
    Here {
        /// The image.
        reference: String,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The registry, or what speaks with it, refused.
    #[error("{reason}{advice}")]
    Refused {
        /// The image.
        reference: String,
        /// What skopeo said last.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// What was given as credentials cannot be understood.
    #[error("the credentials cannot be used: {reason}; they are a file as containers-auth.json(5) describes it")]
    Credentials {
        /// The image.
        reference: String,
        /// What is wrong with them.
        reason: String,
    },
    /// A manifest is not what it was named by.
    #[error(
        "the registry sent another manifest than '{digest}', which it was asked for; be careful with \
         where the image comes from"
    )]
    OtherManifest {
        /// The image.
        reference: String,
        /// What the manifest was named by.
        digest: String,
    },
    /// More came than was announced.
    #[error("the registry sends more than the image's manifest says; be careful with where it comes from")]
    Endless(String),
    /// Nothing came any more.
    #[error("nothing has come from the registry for {seconds} seconds; try again")]
    Silent {
        /// The image.
        reference: String,
        /// How long nothing came.
        seconds: u64,
    },
    /// It went on and on.
    #[error("what speaks with the registry was at it for {hours} hours, and was ended; try again, or another registry")]
    Late {
        /// The image.
        reference: String,
        /// How long it took.
        hours: u64,
    },
    /// The disk would become full.
    #[error("no space left for it: {room}; free some, or use a larger file system with --root")]
    NoRoom {
        /// The image.
        reference: String,
        /// What it takes, and what there is.
        room: NoRoom,
    },
    /// What came is no image that can be used here.
    #[error("{source}")]
    Image {
        /// The image.
        reference: String,
        /// What is wrong with it.
        source: OciError,
    },
    /// The user stopped the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

//! Layers, images and the disk that they take.

mod archiver;
pub(crate) mod collect;
pub(crate) mod commit;
pub(crate) mod exposed;
pub(crate) mod flatten;
pub(crate) mod hot_layers;
mod image_base;
pub(crate) mod image_garbage;
pub(crate) mod image_stream;
pub(crate) mod image_wants;
pub(crate) mod images;
pub(crate) mod layers;
mod new_layer;
pub(crate) mod pulled_images;
pub(crate) mod signature_trust;
pub(crate) mod storage;
pub(crate) mod tag;
pub(crate) mod trash;
mod tree_difference;
pub(crate) mod unify;
pub(crate) mod unused_layers;
pub(crate) mod volumes;

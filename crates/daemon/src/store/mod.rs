//! Layers, images and the disk that they take.

pub(crate) mod collect;
pub(crate) mod flatten;
pub(crate) mod hot_layers;
pub(crate) mod image_stream;
pub(crate) mod image_wants;
pub(crate) mod images;
pub(crate) mod layers;
pub(crate) mod signature_trust;
pub(crate) mod storage;
pub(crate) mod trash;
pub(crate) mod unify;
pub(crate) mod unused_layers;

//! An image as files: [`save`], [`load`], and the checks of all that was read before anything is made of it.

pub(crate) mod bounded;
pub(crate) mod chain;
pub(crate) mod check;
pub(crate) mod check_namespaces;
pub(crate) mod check_numbers;
pub(crate) mod difference;
pub(crate) mod image_file;
pub(crate) mod load;
pub(crate) mod needed_calls;
pub(crate) mod powers;
pub(crate) mod save;
pub(crate) mod wrong;

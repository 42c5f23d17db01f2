//! Memory: files of it, mappings, pages, and the page cache.

pub mod collapse;
pub mod file;
pub mod heap;
pub mod ksm;
pub mod map;
pub mod page_cache;
pub mod pagemap;

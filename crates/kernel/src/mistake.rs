//! Mistakes that are made on purpose, so that a test can see that it would notice them.

/// Whether a mistake is to be made, by the name that `PANDO_PLANT` gives it. Never in ordinary builds.
pub fn planted(mistake: &str) -> bool {
    plant().is_some_and(|planted| planted == mistake)
}

/// What names the mistake, in the environment.
pub const PLANT: &str = "PANDO_PLANT";

/// The mistake that is to be made, for a program that is started without this one's environment. Never in ordinary
/// builds.
pub fn plant() -> Option<String> {
    if cfg!(feature = "crash-points") { std::env::var(PLANT).ok() } else { None }
}

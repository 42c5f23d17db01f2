//! Mistakes that are made on purpose, so that a test can see that it would notice them.

/// Whether a mistake is to be made, by the name that `PANDO_PLANT` gives it. Never in ordinary builds.
pub fn planted(mistake: &str) -> bool {
    cfg!(feature = "crash-points") && std::env::var("PANDO_PLANT").is_ok_and(|planted| planted == mistake)
}

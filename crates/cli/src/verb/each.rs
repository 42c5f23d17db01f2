//! The same call for each of several names.

use crate::client::Client;
use crate::complaint::{Told, complain};
use crate::replies::Done;
use crate::table::print;
use anyhow::Context;
use pando_api::{Fault, Method};

/// Calls a method for each name and prints those where it worked. A failure to `do_what` is told and the next one
/// tried.
pub(super) fn each(
    client: &mut Client,
    do_what: &str,
    names: &[String],
    method: impl Fn(String) -> Method,
) -> anyhow::Result<u8> {
    let mut failed = false;
    for name in names {
        match client.call::<Done>(method(name.clone())).with_context(|| format!("cannot {do_what} '{name}'")) {
            Ok(_) => print(&format!("{name}\n"))?,
            // Without the daemon the others would fail for the same reason.
            Err(error) if !error.chain().any(|cause| cause.is::<Fault>()) => return Err(error),
            Err(error) => {
                complain(&error);
                failed = true;
            }
        }
    }
    if failed { Err(Told.into()) } else { Ok(0) }
}

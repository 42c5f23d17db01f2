//! Which standard descriptors a transaction's command may have of its caller's.

use anyhow::{Context, bail};
use pando_front::{Passage, passage};

/// Refuses those through which a command gets past its view: paths below a directory, or below an open path, are those
/// of the live tree, and what is changed there is in no change set. Whatever a guest may not have for the same reason a
/// transaction may not either.
pub(super) fn lead_nowhere() -> anyhow::Result<()> {
    let own = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    for (own, name) in own.into_iter().zip(["input", "output", "error"]) {
        if let Passage::Refuse(what) = passage(own).with_context(|| format!("cannot look at standard {name}"))? {
            let instead = if name == "input" { "<" } else { ">" };
            bail!(
                "standard {name} is {what}, through which the command could change what it should only see. Redirect it, for example {instead} /dev/null"
            );
        }
    }
    Ok(())
}

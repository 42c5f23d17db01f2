//! Asking whoever sits at a terminal whether something that cannot be undone is meant.

use crate::complaint::Usage;
use crate::printable::printable;
use anyhow::Context;
use rustix::stdio::stdin;
use rustix::termios::isatty;

/// Whether a question is answered with yes. Where nobody can be asked, `unasked` says what would do it.
pub(crate) fn is_confirmed(question: &str, unasked: String) -> anyhow::Result<bool> {
    if !isatty(stdin()) {
        return Err(Usage::sentence(unasked).into());
    }
    eprint!("{} [y/N] ", printable(question));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

//! One line that tells how something long gets on, on a terminal only: indicatif is silent elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pando_api::Progress;

/// The line. It goes away with this value, before anything else is said.
#[derive(Debug)]
pub(crate) struct ProgressLine(ProgressBar);

impl ProgressLine {
    pub(crate) fn new() -> Self {
        Self(ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()))
    }

    pub(crate) fn show(&self, progress: &Progress) {
        let template = match progress.total {
            Some(_) => "{msg} {bar:30} {percent}%",
            None => "{msg} {human_pos}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        self.0.set_message(crate::printable::printable(&progress.stage));
        if let Some(total) = progress.total {
            self.0.set_length(u64::try_from(total).unwrap_or(0));
        }
        self.0.set_position(u64::try_from(progress.done).unwrap_or(0));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

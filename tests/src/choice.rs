//! Which tests are to run.

use crate::case::{Case, Tag};
use libtest_mimic::Arguments;

/// How many tests run at once, if nobody says: most of a test is waiting.
const AT_ONCE: usize = 4;

/// Which kinds of tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    /// Those that take long, alone.
    slow: bool,
    /// Those that say more on another kernel, alone.
    vm: bool,
}

impl Choice {
    /// Takes our own options off the command line; the rest is libtest's.
    pub(crate) fn read(words: impl Iterator<Item = String>) -> (Self, Arguments) {
        let mut choice = Self::default();
        let rest: Vec<String> = words
            .filter(|word| match word.as_str() {
                "--slow" => {
                    choice.slow = true;
                    false
                }
                "--vm" => {
                    choice.vm = true;
                    false
                }
                _ => true,
            })
            .collect();
        let mut arguments = Arguments::from_iter(rest);
        arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE));
        (choice, arguments)
    }

    /// Whether a case is among them.
    pub(crate) fn takes(&self, case: &Case) -> bool {
        let slow = case.tags.contains(&Tag::Slow);
        slow == self.slow && (!self.vm || case.tags.contains(&Tag::Vm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_options_are_taken_and_the_rest_is_libtests() {
        let words = ["pando-tests", "--slow", "run::", "--exact"].map(str::to_owned);
        let (choice, arguments) = Choice::read(words.into_iter());
        assert!(choice.slow && !choice.vm && arguments.exact);
        assert_eq!(arguments.filter.as_deref(), Some("run::"));
    }
}

//! Which tests are to run.

use crate::case::{Case, Tag};
use crate::selection::SELECTION;
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
    /// Second halves, alone: the emulated machine was booted again since the first ones ran.
    rebooted: bool,
    /// The few that use each part once, alone.
    selection: bool,
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
                "--rebooted" => {
                    choice.rebooted = true;
                    false
                }
                "--selection" => {
                    choice.selection = true;
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
        if self.selection {
            return SELECTION.contains(&case.name);
        }
        let is = |tag: Tag| case.tags.contains(&tag);
        match (is(Tag::BeforeReboot) || is(Tag::VmAlone), is(Tag::AfterReboot)) {
            (_, true) => self.rebooted,
            (true, false) => self.vm,
            (false, false) => !self.rebooted && is(Tag::Slow) == self.slow && (!self.vm || is(Tag::Vm)),
        }
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

    #[test]
    fn a_case_in_halves_needs_two_boots() {
        let case = |tags| Case::new("x::y", |_| {}).tags(tags);
        let (whole, first, second) = (case(&[Tag::Vm]), case(&[Tag::BeforeReboot]), case(&[Tag::AfterReboot]));
        let taken = |choice: Choice| [whole, first, second].map(|case| choice.takes(&case));
        assert_eq!(taken(Choice::default()), [true, false, false]);
        assert_eq!(taken(Choice { vm: true, ..Choice::default() }), [true, true, false]);
        assert_eq!(taken(Choice { rebooted: true, ..Choice::default() }), [false, false, true]);
    }

    #[test]
    fn a_selection_is_a_list_of_names() {
        let choice = Choice { selection: true, ..Choice::default() };
        assert!(choice.takes(&Case::new(SELECTION[0], |_| {})) && !choice.takes(&Case::new("x::y", |_| {})));
    }
}

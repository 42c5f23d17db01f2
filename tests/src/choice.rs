//! Which tests are to run.

use crate::case::{Case, Tag};
use crate::selection::SELECTION;
use crate::unshown;
use libtest_mimic::Arguments;

/// How many tests run at once, if nobody says: most of a test is waiting.
const AT_ONCE: usize = 4;

/// Which kinds of tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Those that take long, alone.
    slow: bool,
    /// Those that say more on another kernel, alone.
    vm: bool,
    /// Second halves, alone: the emulated machine was booted again since the first ones ran.
    rebooted: bool,
    /// The few that use each part once, alone.
    selection: bool,
    /// The same, those of this list, and what is for the emulated machine alone.
    unshown: Option<Vec<String>>,
}

impl Choice {
    /// Takes our own options off the command line; the rest is libtest's.
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<(Self, Arguments), String> {
        let mut choice = Self::default();
        let mut rest = Vec::new();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--slow" => choice.slow = true,
                "--vm" => choice.vm = true,
                "--rebooted" => choice.rebooted = true,
                "--selection" => choice.selection = true,
                "--unshown" => {
                    let file = words.next().ok_or("--unshown is given without a file")?;
                    let names =
                        unshown::read(file.as_ref()).map_err(|error| format!("reading {file} failed: {error}"))?;
                    choice.unshown = Some(names);
                }
                _ => rest.push(word),
            }
        }
        let mut arguments = Arguments::from_iter(rest);
        arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE));
        Ok((choice, arguments))
    }

    /// Whether a case is among them.
    pub(crate) fn takes(&self, case: &Case) -> bool {
        if self.selection {
            return SELECTION.contains(&case.name);
        }
        let is = |tag: Tag| case.tags.contains(&tag);
        let emulated_alone = is(Tag::BeforeReboot) || is(Tag::VmAlone);
        if let Some(names) = &self.unshown {
            return emulated_alone || SELECTION.contains(&case.name) || names.iter().any(|name| name == case.name);
        }
        match (emulated_alone, is(Tag::AfterReboot)) {
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
        let (choice, arguments) = Choice::read(words.into_iter()).expect("all of them are options");
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

    #[test]
    fn what_was_not_shown_elsewhere_runs_with_what_runs_there_anyhow() {
        let choice = Choice { unshown: Some(vec!["x::skipped".to_owned()]), ..Choice::default() };
        let taken = |name, tags| choice.takes(&Case::new(name, |_| {}).tags(tags));
        assert!(
            taken("x::skipped", &[Tag::Vm]) && taken("x::y", &[Tag::VmAlone]) && taken("x::y", &[Tag::BeforeReboot])
        );
        assert!(taken(SELECTION[0], &[]) && !taken("x::y", &[Tag::Vm]) && !taken("x::y", &[Tag::AfterReboot]));
        let words = ["pando-tests", "--unshown"].map(str::to_owned);
        assert!(Choice::read(words.into_iter()).is_err(), "the file is missing");
    }
}

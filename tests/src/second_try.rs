//! A test that fails among others runs again, alone: four at a time on a busy machine, one now and then fails of the
//! company it had. That is no pass like the others: it is named, with what was seen the first time.

use libtest_mimic::{Completion, Failed};
use std::sync::{Mutex, PoisonError, RwLock};

/// With more failures than that it is not the company.
const AT_MOST: usize = 8;

/// Held by every test that runs, and by one that runs alone in the other way.
static COMPANY: RwLock<()> = RwLock::new(());

/// Those that failed and ran again.
static AGAIN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Runs a test among others, and where it fails alone.
pub(crate) fn run(name: &'static str, test: impl Fn() -> Result<Completion, Failed>) -> Result<Completion, Failed> {
    let first = {
        let _among_others = COMPANY.read().unwrap_or_else(PoisonError::into_inner);
        test()
    };
    let Err(failed) = first else { return first };
    {
        let mut again = AGAIN.lock().unwrap_or_else(PoisonError::into_inner);
        if again.len() == AT_MOST {
            return Err(failed);
        }
        again.push(name);
    }
    let _alone = COMPANY.write().unwrap_or_else(PoisonError::into_inner);
    let second = test();
    let how = if second.is_ok() { "passes" } else { "fails again" };
    let seen = failed.message().unwrap_or_default();
    eprintln!("unsteady: {name} failed among others and {how} alone. The first time:\n{seen}\n");
    second
}

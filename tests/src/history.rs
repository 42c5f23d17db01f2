//! A history that can be checked: transactions and outsiders work on one directory, and leave a record from which it is
//! seen whether what they did is what they could have done one after another.
//!
//! ```text
//!   DIR/log      one line an operation: an outsider appends `o ME NUMBER`,
//!                a transaction rewrites the file with `t ID LINES NAMES` at its end
//!   DIR/names/   a file for each line of an outsider, made right before the line
//! ```
//!
//! A transaction that stands in line N has read N lines, all that stand before it, and as many names as outsiders'
//! lines stand there, but for those that were just about to come.

use crate::dice::Dice;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// The word that asks this program for a part in a history.
pub(crate) const WORD: &str = "--history";

/// `transaction DIR ID`, or `outsider DIR ME PAUSE`, with the longest pause in milliseconds.
pub(crate) fn obey(words: &[String]) -> io::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["transaction", directory, id] => transaction(Path::new(directory), id),
        ["outsider", directory, me, pause] => {
            outsider(Path::new(directory), me, pause.parse().map_err(io::Error::other)?)
        }
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Makes an empty one.
pub(crate) fn begin(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory.join("names"))?;
    fs::write(directory.join("log"), "")?;
    fs::write(directory.join("here"), "")
}

fn transaction(directory: &Path, id: &str) -> io::Result<()> {
    let log = fs::read_to_string(directory.join("log"))?;
    let names = fs::read_dir(directory.join("names"))?.count();
    fs::write(directory.join("log"), format!("{log}t {id} {} {names}\n", log.lines().count()))
}

/// Works until there is a file `stop`, and says how many lines it has written.
fn outsider(directory: &Path, me: &str, pause: u64) -> io::Result<()> {
    let mut dice = Dice::new(me.bytes().map(u64::from).sum());
    let mut number = 0;
    while !directory.join("stop").exists() {
        // Several in a row fall into one tick of the clock.
        for _ in 0..=dice.throw(3) {
            File::create(directory.join("names").join(format!("{me}-{number}")))?;
            let mut log = File::options().append(true).open(directory.join("log"))?;
            log.write_all(format!("o {me} {number}\n").as_bytes())?;
            number += 1;
        }
        stir(directory, me, &mut dice)?;
        std::thread::sleep(Duration::from_millis(dice.throw(pause + 1)));
    }
    println!("{number}");
    Ok(())
}

/// What a transaction comes across without reading it, and what it reads.
fn stir(directory: &Path, me: &str, dice: &mut Dice) -> io::Result<()> {
    let own = |name: &str| directory.join(format!("{name}-{me}"));
    fs::write(own("one"), "x")?;
    fs::rename(own("one"), own("other"))?;
    let mode = if dice.throw(2) == 0 { 0o644 } else { 0o664 };
    fs::set_permissions(directory.join("log"), PermissionsExt::from_mode(mode))?;
    fs::read_dir(directory)?.count();
    fs::remove_file(own("other"))
}

/// What a history comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Transactions in it.
    pub(crate) transactions: usize,
    /// Lines of transactions that could not have come about one after another.
    pub(crate) misplaced: Vec<String>,
    /// Lines that were written and are not there, or not once.
    pub(crate) lost: usize,
}

/// Reads the history in `log`: `committed` are the transactions that were said to be, `outsiders` how many lines each
/// outsider has written.
pub(crate) fn judge(log: &str, committed: &BTreeSet<u64>, outsiders: &BTreeMap<String, u64>) -> Verdict {
    let mut verdict = Verdict::default();
    let (mut seen, mut from_outside, mut of_outsiders) = (BTreeSet::new(), 0, BTreeSet::new());
    // Lines that must have been lost before, by the names that are there without them: those who come later are not
    // misplaced for that.
    let mut gone = 0;
    for (number, line) in log.lines().enumerate() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["o", me, at] => {
                from_outside += 1;
                of_outsiders.insert((me.to_owned(), at.parse::<u64>().unwrap_or(u64::MAX)));
            }
            ["t", id, lines, names] => {
                verdict.transactions += 1;
                // A number that is none fits nowhere.
                let names = names.parse::<u32>().map_or(0, |names| names as usize);
                let is_first = seen.insert(id.parse::<u64>().unwrap_or(u64::MAX));
                let written = from_outside + gone;
                let fits = (written..=written + outsiders.len()).contains(&names);
                if !(is_first && fits && lines.parse() == Ok(number)) {
                    verdict.misplaced.push(format!("line {number}: {line}"));
                }
                gone += names.saturating_sub(written + outsiders.len());
            }
            _ => verdict.misplaced.push(format!("line {number}: {line}")),
        }
    }
    let expected = outsiders.iter().flat_map(|(me, count)| (0..*count).map(move |at| (me.clone(), at)));
    verdict.lost = committed.symmetric_difference(&seen).count()
        + expected.filter(|one| !of_outsiders.contains(one)).count()
        + from_outside.saturating_sub(of_outsiders.len());
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Misplaced and lost, of a history in which two outsiders have written `written` lines each.
    fn found(log: &str, committed: &[u64], written: u64) -> (usize, usize) {
        let outsiders = BTreeMap::from([("a".to_owned(), written), ("b".to_owned(), written)]);
        let verdict = judge(log, &committed.iter().copied().collect(), &outsiders);
        (verdict.misplaced.len(), verdict.lost)
    }

    #[test]
    fn one_after_another_is_right() {
        assert_eq!(found("o a 0\nt 0 1 1\no b 0\nt 1 3 2\n", &[0, 1], 1), (0, 0));
        // The names of lines that were just about to come.
        assert_eq!(found("t 0 0 2\no a 0\no b 0\n", &[0], 1), (0, 0));
    }

    #[test]
    fn what_cannot_have_come_about_is_found() {
        let lines_not_seen = found("o a 0\no b 0\nt 0 1 2\n", &[0], 1);
        let names_not_seen = found("o a 0\no b 0\nt 0 2 0\n", &[0], 1);
        let no_number = found("o a 0\no b 0\nt 0 2 x\n", &[0], 1);
        assert_eq!([lines_not_seen, names_not_seen, no_number], [(1, 0); 3]);
        let twice = found("o a 0\no b 0\nt 0 2 2\nt 0 3 2\n", &[0], 1);
        let half = found("o a 0\no b 0\nt 0 2\n", &[], 1);
        assert_eq!([twice, half], [(1, 0); 2]);
    }

    #[test]
    fn what_is_not_there_is_lost() {
        assert_eq!(found("o a 0\nt 0 1 2\n", &[0], 1), (0, 1));
        assert_eq!(found("o a 0\no b 0\n", &[0], 1), (0, 1));
        assert_eq!(found("o a 0\no a 0\no b 0\n", &[], 1), (0, 1));
    }

    #[test]
    fn a_lost_line_is_counted_once() {
        // Both of b's: the first that has come across their names is misplaced, and none of those behind it.
        let log = "o a 0\no a 1\nt 0 2 5\nt 1 3 5\nt 2 4 5\n";
        assert_eq!(found(log, &[0, 1, 2], 2), (1, 2));
    }
}

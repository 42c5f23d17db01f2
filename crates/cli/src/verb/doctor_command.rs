//! `pando doctor`: what this kernel grants, and what Pando makes of it.

use super::Verb;
use crate::printable::printable;
use crate::self_test::{self, Outcome};
use crate::state_root::StateRoot;
use crate::table::{print, print_json};
use pando_guest::Places;
use pando_guest::settings::Settings;
use pando_kernel::probe::{self, Finding, Verdict};
use pando_net::any_sockets::Holder;
use serde_json::{Value, json};
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;

#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Then do what Pando is for, once in small: start a guest, freeze it, clone it, run transactions
    #[arg(long = "try")]
    trial: bool,
    /// Be the program of the guest that is tried
    #[arg(long, hide = true)]
    wait_for_signal: bool,
}

impl Verb for Doctor {
    const NAME: &'static str = "doctor";
    const ABOUT: &'static str = "Say what this kernel grants, and what Pando makes of it";
    const EXAMPLES: &'static str = "\
Examples:
  pando doctor
  pando doctor --json | jq -r '.findings[] | select(.verdict == \"missing\") | .name'
  pando doctor --try             and see it work, on a state of its own that is gone afterwards

Exits with 0 if guests can be had here, and with 1 if something is missing that none can do without, if pando.toml is not understood, or if
something that was tried did not work.";
    const NEEDS_ROOT: bool = false;

    fn run(self, root: &StateRoot) -> anyhow::Result<u8> {
        if self.wait_for_signal {
            loop {
                rustix::event::pause();
            }
        }
        let mut findings = probe::all(&root.directory().join("var/lib/pando"));
        findings.extend(pando_net::offers::find());
        findings.extend(pando_tx::offers());
        let holders = pando_net::any_sockets::holders();
        let problems = pando_daemon::problems_of(&Settings::read(&Places::new(root.directory())));
        let privileged = rustix::process::geteuid().is_root();
        let tried = if self.trial { Some(try_all(root, privileged)?) } else { None };
        if self.json {
            print_json(&as_json(&findings, privileged, &holders, (&problems, tried.as_deref())))?;
        } else {
            let tried = tried.as_deref().map(self_test::as_text).unwrap_or_default();
            print(&(as_text(&findings, privileged) + &held(&holders) + &wrong(&problems) + &tried))?;
        }
        let lacking = findings.iter().any(Finding::stands_in_the_way) || !problems.is_empty();
        Ok(u8::from(lacking || !tried.iter().flatten().all(Outcome::worked)))
    }
}

fn try_all(root: &StateRoot, privileged: bool) -> anyhow::Result<Vec<Outcome>> {
    anyhow::ensure!(privileged, "guests are made by root, and this is another user. Try `sudo pando doctor --try`");
    crate::inside_transaction::refuse("a trial of guests and transactions")?;
    self_test::run(root)
}

fn as_text(findings: &[Finding], privileged: bool) -> String {
    let mut text = String::new();
    if !privileged {
        text += "These are findings of an unprivileged user; Pando runs as root, and root may be granted more.\n\n";
    }
    let width = findings.iter().map(|finding| finding.name.width()).max().unwrap_or(0);
    for (index, area) in findings.chunk_by(|a, b| a.area == b.area).enumerate() {
        text += if index == 0 { "" } else { "\n" };
        text.extend(area.first().map(|first| format!("{}\n", first.area)));
        text.extend(area.iter().map(|finding| lines(finding, width)));
    }
    text + "\n" + &summary(findings)
}

/// A finding's line, and for what falls short a second one.
fn lines(finding: &Finding, width: usize) -> String {
    let words = match &finding.verdict {
        Verdict::Granted => String::new(),
        Verdict::Missing => format!("missing (Linux {} has it)", finding.since),
        Verdict::Refused(why) => format!("refused: {}", printable(why)),
        Verdict::Partial(how) => printable(how),
    };
    let padding = " ".repeat(width.saturating_sub(finding.name.width()));
    let line = format!("  {} {}{padding}  {words}", mark(&finding.verdict), finding.name);
    let mut text = line.trim_end().to_owned() + "\n";
    if finding.verdict != Verdict::Granted {
        let need = if finding.needed { " (needed)" } else { "" };
        // A string takes whatever is written to it.
        let _ = writeln!(text, "      without it{need}: {}", finding.without);
    }
    text
}

fn mark(verdict: &Verdict) -> char {
    match verdict {
        Verdict::Granted => '✓',
        Verdict::Missing | Verdict::Refused(_) => '✗',
        Verdict::Partial(_) => '~',
    }
}

fn summary(findings: &[Finding]) -> String {
    let lacking: Vec<_> = findings.iter().filter(|one| one.stands_in_the_way()).map(|one| one.name).collect();
    let granted = findings.iter().filter(|one| one.verdict == Verdict::Granted).count();
    let count = format!("{granted} of {} granted.", findings.len());
    if lacking.is_empty() {
        format!("{count} Guests can be had here.\n")
    } else {
        format!("{count} No guests can be had here, for the lack of: {}.\n", lacking.join(", "))
    }
}

/// Servers of the host that hold their port on every address.
fn held(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let mut text = "\nServers of the host hold these ports on every address, so that no guest can bind them on an address of its own\n\
        (--address); have them listen on the host's address alone, or start those of TCP again after 'pando host-mode on':\n"
        .to_owned();
    for Holder { protocol, port, process } in holders {
        let process = printable(process.as_deref().unwrap_or("not known"));
        // A string takes whatever is written to it.
        let _ = writeln!(text, "  {protocol} {port:<5}  {process}");
    }
    text
}

/// What is wrong with the settings.
fn wrong(problems: &[String]) -> String {
    let lines = problems.iter().map(|problem| format!("  ✗ {}\n", printable(problem)));
    if problems.is_empty() { String::new() } else { format!("\nSettings\n{}", lines.collect::<String>()) }
}

/// All of it for a program: also what is wrong with the settings, and what was tried.
fn as_json(
    findings: &[Finding],
    privileged: bool,
    holders: &[Holder],
    (settings, tried): (&[String], Option<&[Outcome]>),
) -> Value {
    let mut whole = json!({
        "settings": settings,
        "privileged": privileged,
        "able": !findings.iter().any(Finding::stands_in_the_way),
        "findings": findings.iter().map(entry).collect::<Vec<_>>(),
        "held_ports": holders.iter().map(|one| json!({
            "protocol": one.protocol, "port": one.port, "process": one.process,
        })).collect::<Vec<_>>(),
    });
    if let Some(tried) = tried {
        whole["tried"] = self_test::as_json(tried);
    }
    whole
}

fn entry(finding: &Finding) -> Value {
    let (verdict, detail) = match &finding.verdict {
        Verdict::Granted => ("granted", None),
        Verdict::Missing => ("missing", None),
        Verdict::Refused(why) => ("refused", Some(why)),
        Verdict::Partial(how) => ("partial", Some(how)),
    };
    json!({
        "area": finding.area,
        "name": finding.name,
        "verdict": verdict,
        "detail": detail,
        "without": finding.without,
        "since": finding.since,
        "needed": finding.needed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(area: &'static str, name: &'static str, verdict: Verdict, needed: bool) -> Finding {
        Finding { area, name, verdict, without: "less is possible", since: "5.7", needed }
    }

    fn four() -> [Finding; 4] {
        [
            finding("files", "overlay", Verdict::Granted, true),
            finding("files", "erofs", Verdict::Partial("from block devices alone".into()), false),
            finding("bpf", "lsm", Verdict::Missing, false),
            finding("bpf", "tracing", Verdict::Refused("Operation not permitted".into()), true),
        ]
    }

    #[test]
    fn a_finding_is_a_line_and_what_falls_short_has_a_second() {
        let expected = "\
files
  ✓ overlay
  ~ erofs    from block devices alone
      without it: less is possible

bpf
  ✗ lsm      missing (Linux 5.7 has it)
      without it: less is possible
  ✗ tracing  refused: Operation not permitted
      without it (needed): less is possible

1 of 4 granted. No guests can be had here, for the lack of: tracing.
";
        assert_eq!(as_text(&four(), true), expected);
        assert!(as_text(&four()[..3], true).ends_with("1 of 3 granted. Guests can be had here.\n"));
    }

    #[test]
    fn findings_of_an_unprivileged_user_are_called_so() {
        assert!(as_text(&four(), false).starts_with("These are findings of an unprivileged user"));
        assert_eq!(as_json(&four(), false, &[], (&[], None))["privileged"], json!(false));
    }

    #[test]
    fn programs_get_the_same() {
        let json = as_json(&four(), true, &[], (&[], None));
        assert_eq!(json["able"], json!(false));
        let verdicts: Vec<_> = json["findings"].as_array().unwrap().iter().map(|one| one["verdict"].clone()).collect();
        assert_eq!(verdicts, ["granted", "partial", "missing", "refused"]);
        let last = json!({
            "area": "bpf", "name": "tracing", "verdict": "refused", "detail": "Operation not permitted",
            "without": "less is possible", "since": "5.7", "needed": true,
        });
        assert_eq!(json["findings"][3], last);
    }

    #[test]
    fn a_file_systems_name_has_no_power_over_the_terminal() {
        let text = lines(&finding("files", "a", Verdict::Partial("\u{1b}[2J".into()), false), 1);
        assert!(!text.contains('\u{1b}'));
    }
}

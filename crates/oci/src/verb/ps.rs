//! `ps`: a container's processes.

use crate::command_line::Format;
use crate::container;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

pub(crate) fn run(root: &Path, id: &str, format: Format, options: &[String]) -> Result<()> {
    let (_, record) = container::look(root, id)?;
    let pids = record.groups.processes();
    if format == Format::Json {
        println!("{}", serde_json::to_string(&pids)?);
        return Ok(());
    }
    let options = if options.is_empty() { vec!["-ef".to_owned()] } else { options.to_vec() };
    let listed = Command::new("ps").args(&options).output().context("starting ps(1)")?;
    if !listed.status.success() {
        bail!("ps {}: {}", options.join(" "), String::from_utf8_lossy(&listed.stderr).trim());
    }
    print!("{}", filtered(&String::from_utf8_lossy(&listed.stdout), &pids)?);
    Ok(())
}

/// The lines of these processes, under their heading.
fn filtered(text: &str, pids: &[i32]) -> Result<String> {
    let heading = text.lines().next().unwrap_or_default();
    let column = heading.split_ascii_whitespace().position(|word| word == "PID").context("ps(1) has listed no PID")?;
    let its = |line: &&str| {
        let pid = line.split_ascii_whitespace().nth(column).and_then(|word| word.parse().ok());
        pid.is_some_and(|pid: i32| pids.contains(&pid))
    };
    Ok(std::iter::once(heading).chain(text.lines().skip(1).filter(its)).map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_lines_are_shown_under_their_heading() {
        let text = "UID  PID PPID\nroot 1 0\nroot 22 1\n";
        assert_eq!(filtered(text, &[22]).unwrap(), "UID  PID PPID\nroot 22 1\n");
        assert!(filtered("X\n", &[]).is_err());
    }
}

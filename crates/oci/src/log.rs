//! What engines read of a failure: a line on standard error, and one in the file that they name.

use crate::command_line::{Global, LogFormat};
use pando_kernel::file::trusted_directory::TrustedDirectory;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where messages go.
#[derive(Debug)]
pub(crate) struct Log {
    file: Option<PathBuf>,
    format: LogFormat,
    debug: bool,
}

impl Log {
    pub(crate) fn new(global: &Global) -> Self {
        Self { file: global.log.clone(), format: global.log_format, debug: global.debug }
    }

    /// Why the command failed.
    pub(crate) fn error(&self, message: &str) {
        eprintln!("pando-oci: {}", tame(message));
        self.write("error", message);
    }

    /// What is amiss, and does not stop the command.
    pub(crate) fn warning(&self, message: &str) {
        if self.file.is_none() || self.debug {
            eprintln!("pando-oci: warning: {}", tame(message));
        }
        self.write("warning", message);
    }

    fn write(&self, level: &str, message: &str) {
        let Some(path) = &self.file else { return };
        let time = jiff::Timestamp::now().to_string();
        let line = line(self.format, level, message, &time);
        // An engine that does not find the line finds the message on standard error.
        let _ = open(path).and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// A message in one line and without what drives a terminal: configurations and images have words in it.
fn tame(message: &str) -> String {
    let letter = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    message.chars().map(letter).collect()
}

/// In a directory of a user's no link is followed, which may lead to any file. A named pipe that nobody reads is not
/// waited for (ENXIO), nor one that is full.
fn open(path: &Path) -> std::io::Result<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = match TrustedDirectory::open(parent) {
        Ok(_) => OFlags::empty(),
        Err(_) => OFlags::NOFOLLOW,
    };
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    File::options().create(true).append(true).custom_flags(flags.bits().cast_signed()).open(path)
}

fn line(format: LogFormat, level: &str, message: &str, time: &str) -> String {
    match format {
        LogFormat::Json => format!("{}\n", serde_json::json!({"level": level, "msg": message, "time": time})),
        LogFormat::Text => format!("time={time:?} level={level} msg={message:?}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_drive_no_terminal() {
        assert_eq!(tame("exec: \"a\u{1b}]0;x\u{7}\u{9b}31m\nb\": ä"), r#"exec: "a\u{1b}]0;x\u{7}\u{9b}31m\nb": ä"#);
    }

    #[test]
    fn a_line_is_what_runc_writes() {
        let json = line(LogFormat::Json, "error", "a \"b\"", "2026-01-01T00:00:00Z");
        assert_eq!(json, "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\",\"time\":\"2026-01-01T00:00:00Z\"}\n");
        assert_eq!(line(LogFormat::Text, "error", "a", "t"), "time=\"t\" level=error msg=\"a\"\n");
    }
}

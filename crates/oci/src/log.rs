//! What engines read of a failure: a line on standard error, and one in the file that they name.

use crate::command_line::{Global, LogFormat};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

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
        eprintln!("pando-oci: {message}");
        self.write("error", message);
    }

    /// What is amiss, and does not stop the command.
    pub(crate) fn warning(&self, message: &str) {
        if self.file.is_none() || self.debug {
            eprintln!("pando-oci: warning: {message}");
        }
        self.write("warning", message);
    }

    fn write(&self, level: &str, message: &str) {
        let Some(path) = &self.file else { return };
        let time = jiff::Timestamp::now().to_string();
        let line = line(self.format, level, message, &time);
        // An engine that does not find the line finds the message on standard error.
        let _ =
            File::options().create(true).append(true).open(path).and_then(|mut file| file.write_all(line.as_bytes()));
    }
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
    fn a_line_is_what_runc_writes() {
        let json = line(LogFormat::Json, "error", "a \"b\"", "2026-01-01T00:00:00Z");
        assert_eq!(json, "{\"level\":\"error\",\"msg\":\"a \\\"b\\\"\",\"time\":\"2026-01-01T00:00:00Z\"}\n");
        assert_eq!(line(LogFormat::Text, "error", "a", "t"), "time=\"t\" level=error msg=\"a\"\n");
    }
}

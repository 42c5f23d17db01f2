//! `--format '{{.name}} {{.state}}'`: what is known, as the caller words it.

use crate::printable::{printable, printable_json, printable_lines};
use anyhow::{bail, ensure};
use serde_json::Value;
use std::str::FromStr;

/// Text with fields in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Field { path: Vec<String>, json: bool },
}

/// What docker calls fields of a guest, and what they are here.
const OTHER_NAMES: [(&str, &str); 5] =
    [("id", "name"), ("names", "name"), ("image", "source"), ("status", "state"), ("createdat", "created")];

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = if text == "json" { "{{json .}}" } else { text };
        while let Some((before, after)) = rest.split_once("{{") {
            let (inside, behind) = after.split_once("}}").ok_or_else(|| format!("'{text}' has {{{{ without a }}}}"))?;
            pieces.push(Piece::Text(unescaped(before)));
            pieces.push(field(inside.trim())?);
            rest = behind;
        }
        pieces.push(Piece::Text(unescaped(rest)));
        Ok(Self(pieces))
    }
}

fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

fn field(inside: &str) -> Result<Piece, String> {
    let (json, path) = match inside.strip_prefix("json ") {
        Some(path) => (true, path.trim()),
        None => (false, inside),
    };
    let names = path.strip_prefix('.').filter(|names| !names.contains(char::is_whitespace));
    let names = names.ok_or_else(|| {
        format!("'{{{{{inside}}}}}' is no field; write {{{{.name}}}}, {{{{.spec.user}}}} or {{{{json .spec}}}}")
    })?;
    let path = names.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    Ok(Piece::Field { path, json })
}

impl Template {
    /// The text with the fields of `value`, and a newline.
    pub(crate) fn fill(&self, value: &Value) -> anyhow::Result<String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Field { path, json } => {
                    let found = look(value, path)?;
                    text.push_str(&match found {
                        _ if *json => printable_json(&found.unwrap_or(&Value::Null).to_string()),
                        None | Some(Value::Null) => String::new(),
                        Some(Value::String(text)) => printable_lines(text),
                        Some(other) => printable_json(&other.to_string()),
                    });
                }
            }
        }
        text.push('\n');
        Ok(text)
    }
}

/// Case and underscores do not tell names apart: `ExitCode` is exit_code.
fn folded(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

/// What stands at a path; none for a field that there is, and that this one does not have.
fn look<'a>(value: &'a Value, path: &[String]) -> anyhow::Result<Option<&'a Value>> {
    let Some((name, rest)) = path.split_first() else { return Ok(Some(value)) };
    let Value::Object(fields) = value else { bail!("'.{}' has no fields of its own", printable(name)) };
    let wanted = folded(name);
    let named = |wanted: &str| fields.iter().find(|(field, _)| folded(field) == wanted).map(|(_, value)| value);
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == wanted).and_then(|(_, here)| named(here));
    match named(&wanted).or(other) {
        Some(inner) => look(inner, rest),
        None => {
            let names: Vec<String> = fields.keys().map(|name| format!(".{name}")).collect();
            ensure!(
                is_described(&wanted, fields),
                "there is no field '.{}'; there are {}",
                printable(name),
                names.join(", ")
            );
            Ok(None)
        }
    }
}

/// Whether the interface has a field of that name in a record with these: what is not so is left out of what the daemon
/// tells.
fn is_described(wanted: &str, fields: &serde_json::Map<String, Value>) -> bool {
    let records = pando_api::DESCRIPTION.split("\ntype ").skip(1).filter_map(|rest| rest.split_once('('));
    records.into_iter().any(|(_, rest)| {
        // One on a single line ends there, another one where a line begins with the closing bracket.
        let end = if rest.starts_with('\n') { "\n)" } else { ")\n" };
        let record = rest.split(end).next().unwrap_or_default();
        let names = record.split(['(', ',', '\n']).filter_map(|part| Some(part.split_once(':')?.0.trim()));
        let names: Vec<String> = names.map(folded).collect();
        names.iter().any(|name| name == wanted) && fields.keys().all(|field| names.contains(&folded(field)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filled(text: &str) -> anyhow::Result<String> {
        let status = json!({ "name": "web", "exit_code": 3, "command": ["x"] });
        let value = json!({ "status": status, "spec": { "user": "a\u{1b}", "env": {} } });
        text.parse::<Template>().map_err(anyhow::Error::msg)?.fill(&value)
    }

    #[test]
    fn fields_take_their_places() {
        assert_eq!(filled("{{.Status.Name}}: {{ .status.ExitCode }}\\t{{.spec.user}}").unwrap(), "web: 3\ta\u{fffd}\n");
        assert_eq!(filled("{{json .spec.env}} {{.status.Names}} {{.status.command}}").unwrap(), "{} web [\"x\"]\n");
        assert_eq!(filled("[{{.status.pid}}{{.spec.boot}}]").unwrap(), "[]\n", "fields that are not there now");
        assert!(filled("json").unwrap().contains("\"spec\":{"));
    }

    #[test]
    fn what_is_no_field_is_said_with_those_there_are() {
        for wrong in ["{{.State.Running}}", "{{.State}}", "{{.spec.pid}}"] {
            let error = filled(wrong).unwrap_err().to_string();
            assert!(error.contains("there are ."), "{error}");
        }
        for wrong in ["{{.name", "{{name}}", "{{range .x}}"] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
        assert!(filled("{{.status.name.x}}").unwrap_err().to_string().contains("no fields of its own"));
    }
}

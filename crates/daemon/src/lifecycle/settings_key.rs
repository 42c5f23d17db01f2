//! `set KEY=VALUE`: a spec's fields by name.

use pando_api::{Fault, Spec};

/// Keys whose change counts for what is started or stopped from now on; the others from the next start.
const AT_ONCE: [&str; 20] = [
    "boot",
    "cpu",
    "disk",
    "env",
    "files_total",
    "group_add",
    "health",
    "io",
    "labels",
    "memory.limit",
    "memory.reserve",
    "memory.swap",
    "memory.sysv",
    "net",
    "pids",
    "restart",
    "stop_grace",
    "stop_signal",
    "user",
    "workdir",
];

/// What came of some assignments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) applied: Vec<String>,
    pub(crate) at_next_start: Vec<String>,
}

/// Applies assignments to a spec: all of them, or none. `KEY=VALUE` sets a field (lists: words separated by commas),
/// `KEY=` takes it back to its default, `env.NAME=VALUE` and `rlimits.NAME=SOFT:HARD` set one entry.
pub(crate) fn assign(spec: &Spec, assignments: &[String]) -> Result<(Spec, Outcome), Fault> {
    let mut table = toml::Table::try_from(spec).map_err(|error| crate::failure::bad("spec", error.to_string()))?;
    let mut outcome = Outcome::default();
    for assignment in assignments {
        let (key, value) = assignment.split_once('=').ok_or_else(|| not_an_assignment(assignment))?;
        set(&mut table, key, value)?;
        let field = key.split('.').next().unwrap_or(key);
        let list = if AT_ONCE.contains(&field) || AT_ONCE.contains(&key) {
            &mut outcome.applied
        } else {
            &mut outcome.at_next_start
        };
        list.push(key.to_owned());
    }
    let changed = table.try_into::<Spec>().map_err(|error| {
        let message = error.message().lines().next().unwrap_or_default().to_owned();
        crate::failure::bad(&assignments.join(" "), format!("'{}' cannot be set: {message}", assignments.join(" ")))
    })?;
    Ok((changed, outcome))
}

fn not_an_assignment(text: &str) -> Fault {
    crate::failure::bad(text, format!("'{text}' is not KEY=VALUE; for example hostname=web1 or env.LANG=C.UTF-8"))
}

fn set(table: &mut toml::Table, key: &str, value: &str) -> Result<(), Fault> {
    if let Some((field, entry)) = key.split_once('.') {
        let map = table.entry(field).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        let map = map.as_table_mut().ok_or_else(|| {
            crate::failure::bad(key, format!("'{key}' cannot be set: '{field}' has no entries of its own"))
        })?;
        let parsed = match field {
            "rlimits" if !value.is_empty() => {
                let limit: pando_api::Rlimit = value
                    .parse()
                    .map_err(|error: pando_api::SpecError| crate::failure::bad(value, error.to_string()))?;
                toml::Value::try_from(limit).map_err(|error| crate::failure::bad(value, error.to_string()))?
            }
            "boot" if entry == "after" => words(value),
            "health" if entry == "command" => split_words(value),
            "boot" | "health" => match (value.parse::<i64>(), value.parse::<bool>()) {
                (Ok(number), _) => toml::Value::Integer(number),
                (_, Ok(choice)) => toml::Value::Boolean(choice),
                _ => toml::Value::String(value.to_owned()),
            },
            _ => toml::Value::String(value.to_owned()),
        };
        if value.is_empty() {
            map.remove(entry);
        } else {
            map.insert(entry.to_owned(), parsed);
        }
        return Ok(());
    }
    if value.is_empty() {
        table.remove(key);
    } else {
        table.insert(key.to_owned(), typed(key, value));
    }
    Ok(())
}

/// Words separated by commas.
fn words(text: &str) -> toml::Value {
    toml::Value::Array(text.split(',').map(|word| toml::Value::String(word.trim().to_owned())).collect())
}

/// Words separated by spaces.
fn split_words(text: &str) -> toml::Value {
    toml::Value::Array(text.split_whitespace().map(|word| toml::Value::String(word.to_owned())).collect())
}

/// The value in the type that the field has; a wrong one is left to the spec's own reader to name.
fn typed(key: &str, value: &str) -> toml::Value {
    match key {
        // The options of file systems in memory have commas in them.
        "command" | "tmpfs" => split_words(value),
        "addresses" | "devices" | "publish" | "dns" | "cap_add" | "cap_drop" | "expose" | "group_add" | "add_host" => {
            words(value)
        }
        _ => match (value.parse::<i64>(), value.parse::<bool>()) {
            (Ok(number), _) if matches!(key, "stop_grace" | "allow_freeze") => toml::Value::Integer(number),
            (_, Ok(choice)) if matches!(key, "user_namespace" | "read_only" | "stdin_open" | "publish_all") => {
                toml::Value::Boolean(choice)
            }
            _ => toml::Value::String(value.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn fields_are_set_in_their_own_type() {
        let assignments = strings(&[
            "hostname=h",
            "stop_grace=3",
            "user_namespace=false",
            "cap_add=NET_RAW,KILL",
            "env.A=b=c",
            "rlimits.nofile=5",
        ]);
        let (spec, outcome) = assign(&Spec::default(), &assignments).unwrap();
        assert_eq!((spec.hostname.as_deref(), spec.stop_grace, spec.user_namespace), (Some("h"), Some(3), false));
        assert_eq!((spec.cap_add.len(), spec.env["A"].as_str(), spec.rlimits["nofile"].soft), (2, "b=c", Some(5)));
        assert_eq!(outcome.applied, ["stop_grace", "env.A"]);
        let (spec, _) = assign(&spec, &strings(&["hostname=", "env.A="])).unwrap();
        assert_eq!((spec.hostname, spec.env.len()), (None, 0));
    }

    #[test]
    fn wrong_ones_are_named_and_change_nothing() {
        for wrong in ["nothing", "colour=red", "stop_grace=soon", "network=moon", "rlimits.nofile=x", "hostname.x=y"] {
            let fault = assign(&Spec::default(), &strings(&["hostname=h", wrong])).unwrap_err();
            assert!(
                fault.message.contains(wrong.split('=').next().unwrap()) || fault.message.contains("'x'"),
                "{wrong}: {fault}"
            );
        }
    }
}

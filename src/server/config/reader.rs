//! Reads values, replaces invalid ones, and reads again, to find all errors.

use super::diagnostic::{Diagnostic, Place};
use super::document::Document;
use super::tree::{at, parse_value, put, remove};
use super::{Sources, address, keys};
use crate::config::{Config, ConfigError};
use std::collections::BTreeMap;
use std::path::Path;
use toml::Value;

/// Reads values until all are valid, or none is left that could be replaced. It records each error, and replaces the
/// refused value by a valid one.
pub(super) struct Reader {
    pub(super) sources: Sources,
    values: Value,
    pub(super) diagnostics: Vec<Diagnostic>,
    /// The paths whose value was replaced, and how often.
    replaced: BTreeMap<String, usize>,
}

impl Reader {
    pub(super) fn open(file: Option<&Path>) -> Result<Self, Vec<Diagnostic>> {
        let mut reader = Self {
            sources: Sources::default(),
            values: Value::Table(toml::Table::new()),
            diagnostics: Vec::new(),
            replaced: BTreeMap::new(),
        };
        if let Some(file) = file {
            let (document, values, diagnostics) = Document::read(file)?;
            reader.sources.document = Some(document);
            reader.values = Value::Table(values);
            reader.diagnostics = diagnostics;
        }
        Ok(reader)
    }

    /// Adds a value from the environment or the command line.
    pub(super) fn set(&mut self, key: &str, place: Place, text: String) {
        let Some(known) = keys::find(key).filter(|key| !keys::is_section(&key.name)) else {
            let title = unknown(key);
            return self.diagnostics.push(Diagnostic::new(key, title, place));
        };
        if let Some(section) = keys::repeated(key) {
            let title = format!("{key} can only be set in a file, because there may be several [[{section}]]");
            return self.diagnostics.push(Diagnostic::new(key, title, place));
        }
        let value = if known.such_as.starts_with('[') {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        } else {
            Value::String(text)
        };
        // The file's value no longer counts, whether valid or not.
        self.diagnostics.retain(|diagnostic| keys::without_places(&diagnostic.path) != key);
        put(&mut self.values, key, value);
        self.sources.set.insert(key.to_owned(), place);
    }

    /// Replaces the name in an address by its IP: `localhost:7070` becomes `127.0.0.1:7070`.
    pub(super) fn resolve(&mut self, key: &str) {
        let Some(Value::String(text)) = at(&mut self.values, key) else { return };
        match address::resolve(text) {
            Ok(address) => *text = address.to_string(),
            Err(why) => {
                let title = format!("{key} is {text:?}, which {why}");
                self.note(key, title);
                self.replace(key);
            }
        }
    }

    fn note(&mut self, path: &str, title: impl Into<String>) {
        if !self.diagnostics.iter().any(|known| known.path == path) {
            self.diagnostics.push(self.sources.diagnostic(path, title));
        }
    }

    /// Reads the values until all have the right types and `check` accepts them. If no value is left that can be
    /// replaced, returns a configuration that `check` may refuse.
    pub(super) fn read_checked(&mut self, check: impl Fn(&Config) -> Result<(), ConfigError>) -> Config {
        loop {
            let config = self.read();
            let Err(error) = check(&config) else { return config };
            let path = self.sources.path_of(&error, &config, &check);
            if !self.diagnostics.iter().any(|known| known.path == path) {
                self.diagnostics.push(self.sources.refused(&path, &error));
            }
            if !self.replace(&path) {
                return config;
            }
        }
    }

    /// Reads the values until all have the right types.
    fn read(&mut self) -> Config {
        loop {
            let error = match serde_path_to_error::deserialize::<_, Config>(self.values.clone()) {
                Ok(config) => return config,
                Err(error) => error,
            };
            let path = error.path().to_string();
            let said = error.into_inner().to_string();
            if let Some(key) = said.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
                let path = format!("{path}.{key}");
                self.note(&path, format!("{path} is missing"));
                let such_as = keys::find(&path).map_or("\"\"", |key| &key.such_as);
                put(&mut self.values, &path, parse_value(such_as));
                let times = self.replaced.entry(path).or_default();
                *times += 1;
                if *times > 2 {
                    return Config::default();
                }
                continue;
            }
            if self.retype(&path) {
                continue;
            }
            let title = self.mistyped(&path, &said);
            self.note(&path, title);
            if !self.replace(&path) {
                return Config::default();
            }
        }
    }

    /// Converts the text of a variable or flag into the number or boolean that its key needs. Returns whether it could.
    fn retype(&mut self, path: &str) -> bool {
        if !self.sources.set.contains_key(path) {
            return false;
        }
        let Some(value) = at(&mut self.values, path) else { return false };
        let Value::String(text) = &*value else { return false };
        let text = text.trim();
        let typed = match keys::find(path).map(|key| parse_value(&key.such_as)) {
            Some(Value::Boolean(_)) => text.parse().ok().map(Value::Boolean),
            Some(Value::Float(_)) => text.parse().ok().map(Value::Float),
            Some(Value::Integer(_)) => text.parse().ok().map(Value::Integer),
            _ => None,
        };
        typed.map(|typed| *value = typed).is_some()
    }

    fn mistyped(&mut self, path: &str, said: &str) -> String {
        let key = keys::find(path);
        let found = match at(&mut self.values, path) {
            Some(value) => found(path, value),
            None => "of another type".into(),
        };
        // The second line of the message repeats the key.
        let words = said.lines().next().unwrap_or_default();
        if let (Some(("unknown variant", _)), false) = (words.split_once(" `"), keys::holds_secret(path)) {
            let one_of = words.split_once("expected ").map_or("", |(_, words)| words).replace('`', "\"");
            return format!("{path} is {found}; it must be {one_of}");
        }
        let is_of_another_type = ["invalid type", "invalid value"].iter().any(|sign| words.starts_with(sign));
        match key {
            Some(key) if key.must_be == crate::config::TIME => {
                let number = found.trim_matches('"');
                let unit = if number.parse::<f64>().is_ok() { ", which has no unit" } else { "" };
                format!("{path} is {found}{unit}; it must be {}", key.must_be)
            }
            Some(key) if is_of_another_type || keys::holds_secret(path) => {
                format!("{path} is {found}; it must be {}", key.must_be)
            }
            // This message comes from a parser of ours, and quotes the value already.
            Some(_) => format!("{path}: {words}"),
            None if keys::REPEATED.contains(&path) => {
                format!("{path} is {found}; write a section [[{path}]] for each entry")
            }
            None => format!("{path} is {found}; it must be a section, [{}]", keys::without_places(path)),
        }
    }

    /// Replaces a refused value by a valid one, so that further errors can be found. Returns false if nothing is left
    /// to try.
    fn replace(&mut self, path: &str) -> bool {
        let times = self.replaced.entry(path.to_owned()).or_default();
        *times += 1;
        let times = *times;
        let values = &mut self.values;
        let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
        let element = path.split('.').next().unwrap_or_default();
        if element.ends_with(']') {
            let nth = element.replace(['[', ']'], "-");
            match (times, path.split_once('.').map_or("", |(_, key)| key)) {
                (1, "name") => put(values, path, Value::String(nth)),
                (1, "key") => put(values, path, Value::String("constant".into())),
                (1, "rate") => put(values, path, Value::String("20/s".into())),
                (1, "path") => put(values, path, Value::String("/x".into())),
                (1, "class") => put(values, path, Value::String("admit".into())),
                (1, key) if !key.is_empty() => remove(values, path),
                (1 | 2, _) => {
                    let whole = format!(
                        "name = \"{nth}\"\nkey = \"constant\"\nrate = \"20/s\"\npath = \"/x\"\nclass = \"admit\""
                    );
                    put(values, element, Value::Table(toml::from_str(&whole).unwrap_or_default()));
                }
                _ => return false,
            }
            return true;
        }
        match (times, path, section, key) {
            // The smallest value, which is valid together with most others.
            (1, "admission.max_active_users" | "window.slots", ..) => put(values, path, Value::Integer(1)),
            (1, "token.secret" | "token.secret_file", ..) => {
                remove(values, "token.secret_file");
                put(values, "token.secret", Value::String("a placeholder for a key".into()));
            }
            (1, "admin.token_file", ..) => {
                remove(values, path);
                remove(values, "admin.listen");
            }
            (1, "token.jwt.keys" | "token.jwt.jwks_url", ..) => {
                remove(values, "token.jwt.keys");
                put(values, "token.jwt.jwks_url", Value::String("https://login.example/keys".into()));
            }
            (1, _, "redis", "url" | "ca_file" | "cert_file" | "key_file") => {
                put(values, "redis", Value::Table(toml::Table::new()));
            }
            (1, "postgres.url" | "mysql.url", ..) => {
                let such_as = keys::find(path).map_or("\"\"", |key| &key.such_as);
                put(values, path, parse_value(such_as));
            }
            (1, ..) => remove(values, path.split('[').next().unwrap_or_default()),
            (2, ..) if !section.is_empty() => remove(values, path.split('.').next().unwrap_or_default()),
            _ => return false,
        }
        true
    }
}

/// Describes a value without revealing a secret.
fn found(path: &str, value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Table(_) => "a section".into(),
        _ if keys::holds_secret(path) => format!("{}, which is not shown", article(value)),
        Value::String(text) => {
            let short: String = text.chars().take(60).collect();
            format!("{short:?}{}", if short.len() < text.len() { "…" } else { "" })
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        Value::Datetime(_) => "a date".into(),
    }
}

fn article(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        _ => "a date",
    }
}

fn unknown(key: &str) -> String {
    if keys::is_section(key) {
        return format!("{key} is a section, not a key; its keys are {}", keys::members(key).join(", "));
    }
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let meant = match keys::nearest(section, name) {
        Some(nearest) if section.is_empty() => Some(nearest.to_owned()),
        Some(nearest) => Some(format!("{section}.{nearest}")),
        None => keys::elsewhere(name).map(str::to_owned),
    };
    let mut all = keys::members(section);
    if all.is_empty() {
        all = keys::members("");
    }
    match meant {
        Some(meant) => format!("there is no key {key}; did you mean {meant}?"),
        None => format!("there is no key {key}; there are {}", all.join(", ")),
    }
}

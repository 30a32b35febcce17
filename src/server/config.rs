//! Reads the configuration: flags override the environment, which overrides the file, which overrides the defaults.
//! Collects all errors.

mod address;
mod diagnostic;
mod document;
mod keys;
mod reader;
mod reference;
mod tree;

use crate::config::{Config, ConfigError, Limit};
use diagnostic::{Diagnostic, Place};
use document::Document;
use keys::Key;
use reader::Reader;
use std::collections::BTreeMap;
use std::path::Path;

pub use address::resolve;
pub use diagnostic::LoadError;
pub(super) use reference::TEMPLATE;

/// The prefix of environment variables, `HEADCOUNT__SECTION__KEY`. The underscores are double because Kubernetes sets
/// variables such as `HEADCOUNT_PORT`, which are not meant as keys.
const ENVIRONMENT: &str = "HEADCOUNT__";

/// The keys that can be set on the command line, each with its flag.
const FLAGS: [(&str, &str); 5] = [
    ("server.listen", "--listen"),
    ("admin.listen", "--admin"),
    ("redis.url", "--redis"),
    ("admission.max_active_users", "--max-active-users"),
    ("admission.enforcement", "--enforcement"),
];

/// A configuration, and the source of each value.
pub struct Loaded {
    /// The values.
    pub config: Config,
    sources: Sources,
}

/// The values of flags: a key and its value.
pub type Flags = Vec<(&'static str, String)>;

/// Reads the configuration and finds all errors: unknown keys, values of the wrong type, and values that `check`
/// refuses. After each refusal, `check` is called again with a valid value in place of the refused one.
///
/// # Errors
/// [`LoadError`] names for each error the file, variable or flag, the key, the value found, and what is allowed.
pub fn load(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    flags: Flags,
    check: impl Fn(&Config) -> Result<(), ConfigError>,
) -> Result<Loaded, LoadError> {
    let mut reader = Reader::open(file).map_err(LoadError::new)?;
    for (name, text) in environment {
        if let Some(key) = name.strip_prefix(ENVIRONMENT) {
            let key = key.replace("__", ".").to_ascii_lowercase();
            reader.set(&key, Place::Variable(name.clone()), text);
        }
    }
    for (key, text) in flags {
        let flag = FLAGS.iter().find(|(known, _)| *known == key).map_or(key, |(_, flag)| flag);
        reader.set(key, Place::Flag(flag), text);
    }
    reader.resolve("server.listen");
    reader.resolve("admin.listen");
    let config = reader.read_checked(check);
    if reader.diagnostics.is_empty() {
        Ok(Loaded { config, sources: reader.sources })
    } else {
        Err(LoadError::new(reader.diagnostics))
    }
}

impl Loaded {
    /// Adds the source of the refused value to an error.
    pub fn locate(&self, error: ConfigError) -> LoadError {
        let path = self.sources.path_of(&error, &self.config, &|_| Ok(()));
        LoadError::new(vec![self.sources.refused(&path, &error)])
    }
}

/// The source of each value.
#[derive(Debug, Default)]
struct Sources {
    document: Option<Document>,
    /// The sources of values that are not in the file, by key.
    set: BTreeMap<String, Place>,
}

impl Sources {
    fn place(&self, path: &str) -> Place {
        if let Some(place) = self.set.get(&keys::without_places(path)) {
            return place.clone();
        }
        self.document.as_ref().map_or(Place::Nowhere, |document| document.place(path))
    }

    fn diagnostic(&self, path: &str, title: impl Into<String>) -> Diagnostic {
        let place = self.place(path);
        let help = keys::find(path).map(|key| example(key, &place));
        Diagnostic::new(path, title, place).help(help)
    }

    /// Describes a value of the right type that is outside its bounds.
    fn refused(&self, path: &str, error: &ConfigError) -> Diagnostic {
        let said = error.to_string();
        // If the message begins with the key, the path replaces it: `limit[1].rate` instead of `limit.rate`.
        let nth = said
            .strip_prefix(error.key())
            .filter(|_| path.ends_with(error.key().rsplit('.').next().unwrap_or_default()));
        self.diagnostic(path, nth.map_or(said.clone(), |rest| format!("{path}{rest}")))
    }

    /// Returns the path of the refused value: the key, with the number of the limit or route, or of the list's item.
    fn path_of(
        &self,
        error: &ConfigError,
        config: &Config,
        check: &impl Fn(&Config) -> Result<(), ConfigError>,
    ) -> String {
        let key = error.key();
        let Some(section) = keys::repeated(key) else {
            let said = error.to_string();
            let list = config_list(config, key);
            let item = list.iter().position(|item| said.contains(&format!("holds {item:?}")));
            return item.map_or(key.to_owned(), |nth| format!("{key}[{nth}]"));
        };
        let nth = if let ConfigError::Limit { name, .. } = error {
            config.limit.iter().position(|limit| limit.name == *name)
        } else if let ConfigError::LineClass { name, .. } = error {
            config.line.class.iter().rposition(|class| class.name == *name)
        } else {
            // Find the first section that is refused even without those after it.
            let some = |count: usize| {
                let mut config = config.clone();
                config.limit.truncate(if section == "limit" { count } else { usize::MAX });
                config.route.truncate(if section == "route" { count } else { usize::MAX });
                config.line.page.text.truncate(if section == "line.page.text" { count } else { usize::MAX });
                config
            };
            let most = config.limit.len().max(config.route.len()).max(config.line.page.text.len());
            let first = (0..most).find(|nth| check(&some(nth + 1)).is_err_and(|error| error.key() == key));
            // A later limit can make an earlier one invalid. Then the message holds the earlier one's value.
            let said = error.to_string();
            let holds = |limit: &Limit| {
                let value = serde_json::to_value(limit).unwrap_or_default();
                let value =
                    value.get(key.trim_start_matches("limit.")).and_then(|value| value.as_str().map(str::to_owned));
                value.is_some_and(|value| said.contains(&format!("holds {value:?}")))
            };
            match first.and_then(|nth| config.limit.get(nth)) {
                Some(limit) if section == "limit" && !holds(limit) => config.limit.iter().position(holds).or(first),
                _ => first,
            }
        };
        key.replacen(section, &format!("{section}[{}]", nth.unwrap_or(0)), 1)
    }
}

fn config_list<'c>(config: &'c Config, key: &str) -> &'c [String] {
    match key {
        "admission.exempt_paths" => &config.admission.exempt_paths,
        "server.trusted_proxies" => &config.server.trusted_proxies,
        "admin.hosts" => &config.admin.hosts,
        _ => &[],
    }
}

/// Returns an example of a valid value, written as in its place: as a flag, as a variable, or as a line of the file.
fn example(key: &Key, place: &Place) -> String {
    let plain = key.such_as.trim_matches(|c| "[]".contains(c)).replace('"', "");
    let variable = format!("{ENVIRONMENT}{}={plain}", key.name.replace('.', "__").to_ascii_uppercase());
    let flag = FLAGS.iter().find(|(known, _)| *known == key.name);
    match (place, flag) {
        (Place::Flag(flag), _) => format!("such as {flag} {plain}"),
        (Place::Nowhere, Some((_, flag))) => format!("such as serve {flag} {plain}, or {variable}"),
        (Place::Variable(_) | Place::Nowhere, _) if !keys::is_section(&key.name) => format!("such as {variable}"),
        (Place::File(_), _) => {
            let (section, name) = key.name.rsplit_once('.').unwrap_or_default();
            format!("such as {name} = {} in [{section}]", key.such_as)
        }
        _ => format!("such as {} = {}", key.name.rsplit('.').next().unwrap_or_default(), key.such_as),
    }
}

#[cfg(test)]
mod tests;

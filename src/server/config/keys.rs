//! Every key of a configuration, with the allowed values and an example.

use crate::config::Config;
use crate::text::prose;
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// A key of the configuration.
pub(super) struct Key {
    pub(super) name: String,
    /// The allowed values, in words.
    pub(super) must_be: String,
    /// A valid value, as it is written in the file.
    pub(super) such_as: String,
    /// Its documentation, in Markdown.
    pub(super) doc: String,
    /// The allowed words, each with its documentation.
    pub(super) words: Vec<(String, String)>,
    /// The default, as it is written in the file.
    pub(super) default: Option<String>,
}

/// All keys, in the order of the structs.
pub(super) static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| read().0);
/// The name of each section, and its documentation.
pub(super) static SECTIONS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| read().1);

/// Reads the keys from the schema of [`Config`], which holds the doc comments and defaults of its fields.
fn read() -> (Vec<Key>, Vec<(String, String)>) {
    let settings = schemars::generate::SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
    let (mut keys, mut sections) = (Vec::new(), Vec::new());
    walk("", &schema, &mut keys, &mut sections);
    (keys, sections)
}

fn walk(section: &str, schema: &Value, keys: &mut Vec<Key>, sections: &mut Vec<(String, String)>) {
    for (field, schema) in properties(schema).into_iter().flatten() {
        let name = if section.is_empty() { field.clone() } else { format!("{section}.{field}") };
        let text = |entry: &str| {
            let text = schema[entry].as_str().unwrap_or_default();
            text.replace("{section}", section)
        };
        if schema["must_be"].is_string() {
            keys.push(Key {
                must_be: text("must_be"),
                such_as: text("such_as"),
                doc: described(schema),
                words: words(schema),
                default: schema.get("default").filter(|default| !default.is_null()).map(as_toml),
                name: name.clone(),
            });
        } else {
            sections.push((name.clone(), described(schema)));
        }
        walk(&name, schema, keys, sections);
    }
}

/// Returns the fields of a section. The fields of a repeated section are in the schema of the list's items, those of an
/// optional section in the schema of its value.
fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    let parts = [Some(schema), schema.get("items"), schema.pointer("/anyOf/0")];
    parts.into_iter().flatten().find_map(|part| part["properties"].as_object())
}

fn described(schema: &Value) -> String {
    prose(schema["description"].as_str().unwrap_or_default())
}

fn words(schema: &Value) -> Vec<(String, String)> {
    let documented = schema["oneOf"].as_array().into_iter().flatten();
    let documented = documented.filter_map(|word| Some((word["const"].as_str()?.to_owned(), described(word))));
    let plain = schema["enum"].as_array().into_iter().flatten();
    documented.chain(plain.filter_map(|word| Some((word.as_str()?.to_owned(), String::new())))).collect()
}

/// Writes a default as TOML. All values but sections look the same in TOML as in JSON.
fn as_toml(default: &Value) -> String {
    match default {
        Value::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name} = {}", as_toml(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        plain => plain.to_string(),
    }
}

/// The sections that may occur more than once.
pub(super) const REPEATED: [&str; 5] = ["limit", "route", "line.class", "line.page.text", "opening"];

/// Returns the repeated section that a key is in, or is itself.
pub(super) fn repeated(key: &str) -> Option<&'static str> {
    REPEATED
        .into_iter()
        .find(|section| key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// Returns the key of a path such as `limit[0].rate` or `token.from[1]`.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    let name = without_places(path);
    KEYS.iter().find(|key| key.name == name)
}

/// Returns whether there are keys in a section of this name.
pub(super) fn is_section(name: &str) -> bool {
    below(name).next().is_some()
}

/// Returns the keys and sections directly in a section, or in the root (`""`).
pub(super) fn members(section: &str) -> Vec<&'static str> {
    let mut members = Vec::new();
    for rest in below(section) {
        let member = rest.split('.').next().unwrap_or_default();
        if !members.contains(&member) {
            members.push(member);
        }
    }
    members
}

fn below(section: &str) -> impl Iterator<Item = &'static str> {
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    KEYS.iter().filter_map(move |key| key.name.strip_prefix(prefix.as_str()))
}

/// Returns whether a value at this path may be secret or contain a secret.
pub(super) fn holds_secret(path: &str) -> bool {
    let name = without_places(path);
    const SECRET: [&str; 9] = [
        "redis",
        "redis.cluster",
        "redis.sentinels",
        "postgres",
        "mysql",
        "token",
        "token.secret",
        "token.jwt",
        "token.jwt.jwks_url",
    ];
    SECRET.contains(&name.as_str()) || name.ends_with(".url")
}

/// Returns the key or section in `section` that was probably meant by `name`; `None` if none is similar.
pub(super) fn nearest(section: &str, name: &str) -> Option<&'static str> {
    let likeness =
        |known: &str| strsim::jaro_winkler(name, known).max(strsim::normalized_damerau_levenshtein(name, known));
    let known = members(section).into_iter().map(|known| (likeness(known), known));
    let (likeness, nearest) = known.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (likeness >= 0.7).then_some(nearest)
}

/// Returns the full name of the first key with this name, in any section.
pub(super) fn elsewhere(name: &str) -> Option<&'static str> {
    KEYS.iter().map(|key| key.name.as_str()).find(|known| known.rsplit('.').next() == Some(name))
}

/// Returns a key without the positions in lists: `limit.rate` for `limit[0].rate`.
pub(super) fn without_places(path: &str) -> String {
    let mut inside = false;
    path.chars()
        .filter(|&c| {
            inside = c == '[' || inside && c != ']';
            !inside && c != ']'
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_key_is_recognized_in_its_own_section() {
        for (section, name, meant) in [
            ("", "adminn", Some("admin")),
            ("", "admision", Some("admission")),
            ("admission", "max_active_user", Some("max_active_users")),
            ("admission", "max_users", Some("max_active_users")),
            ("redis", "uri", Some("url")),
            ("limit", "rout", Some("routes")),
            ("window", "colour", None),
        ] {
            assert_eq!(nearest(section, name), meant, "{section} {name}");
        }
        assert_eq!(elsewhere("max_active_users"), Some("admission.max_active_users"));
    }

    #[test]
    fn names_of_keys_have_no_places() {
        assert_eq!(without_places("limit[12].routes[0]"), "limit.routes");
        assert!(find("limit[0].rate").is_some() && is_section("token.jwt") && !is_section("token.from"));
        assert_eq!(members("postgres"), ["url"]);
    }
}

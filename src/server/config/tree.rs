//! Access to TOML values by the path of their key.

use toml::Value;

/// Parses a value as it would be written in a file. Text that is not TOML yields `false`.
pub(super) fn parse_value(value: &str) -> Value {
    let table = toml::from_str::<toml::Table>(&format!("value = {value}"));
    table.ok().and_then(|mut table| table.remove("value")).unwrap_or(Value::Boolean(false))
}

/// Splits a path such as `limit[0].rate` into its steps.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[']).map(|step| step.trim_end_matches(']'))
}

fn step<'v>(value: &'v mut Value, step: &str) -> Option<&'v mut Value> {
    match value {
        Value::Table(table) => table.get_mut(step),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns the value at a path.
pub(super) fn at<'v>(root: &'v mut Value, path: &str) -> Option<&'v mut Value> {
    steps(path).try_fold(root, step)
}

/// Sets the value at a path, and creates the missing sections above it. If another value is in the place of a section,
/// the section replaces it.
pub(super) fn put(root: &mut Value, path: &str, new: Value) {
    let mut value = root;
    for name in steps(path) {
        let nth = name.parse().ok().filter(|&nth: &usize| value.as_array().is_some_and(|items| nth < items.len()));
        if let Some(nth) = nth {
            value = &mut value[nth];
            continue;
        }
        if !value.is_table() {
            *value = Value::Table(toml::Table::new());
        }
        let Value::Table(table) = value else { return };
        value = table.entry(name).or_insert_with(|| Value::Table(toml::Table::new()));
    }
    *value = new;
}

/// Removes the value at a path. If it is an item of a list, removes the whole list.
pub(super) fn remove(root: &mut Value, path: &str) {
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let section = if section.is_empty() { Some(root) } else { at(root, section) };
    if let Some(Value::Table(table)) = section {
        // Without one of its items, a list may have another meaning.
        table.remove(key.split('[').next().unwrap_or_default());
    }
}

//! A configuration file: its values, the place of each, and which parts of a line may be shown.

use super::diagnostic::{Diagnostic, Excerpt, Place};
use super::keys;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use toml::de::{DeTable, DeValue};

type Span = Range<usize>;

/// The largest size of a configuration file.
const MOST_BYTES: u64 = 128 << 10;

/// A parsed TOML file.
#[derive(Debug, Clone)]
pub(super) struct Document {
    name: String,
    text: String,
    /// The places of keys and values, by path, such as `limit[0].rate`.
    spans: BTreeMap<String, (Span, Span)>,
    /// The places of values that may be secret.
    hidden: Vec<Span>,
}

fn read_text(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("it has more than 128 KiB"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

impl Document {
    /// Reads a file. Returns its values, and an error for each unknown key. The value of an unknown key is left out, or
    /// kept under the known key that was probably meant.
    ///
    /// # Errors
    /// The errors that prevent the file from being read at all.
    pub(super) fn read(file: &Path) -> Result<(Self, toml::Table, Vec<Diagnostic>), Vec<Diagnostic>> {
        let name = file.display().to_string();
        let text = read_text(file).map_err(|error| {
            let title = format!("the configuration file cannot be read: {error}");
            vec![Diagnostic::new("", title, Place::File(name.clone()))]
        })?;
        let mut document = Self { name, text: text.clone(), spans: BTreeMap::new(), hidden: Vec::new() };
        let (tree, errors) = DeTable::parse_recoverable(&text);
        if !errors.is_empty() {
            return Err(document.syntax_errors(&errors));
        }
        // Numbers that are too large are reported here, and not by the parser above.
        let values = toml::from_str::<toml::Table>(&text).map_err(|error| document.syntax_errors(&[error]))?;
        let mut unknown = Vec::new();
        let values = document.walk(tree.get_ref(), &values, "", &mut unknown);
        // The excerpts are made after the walk, because only the whole walk finds all values that must be hidden.
        let diagnostics =
            unknown.into_iter().map(|(path, title, key)| Diagnostic::new(&path, title, document.place_of_span(key)));
        let diagnostics = diagnostics.collect();
        Ok((document, values, diagnostics))
    }

    fn syntax_errors(&self, errors: &[toml::de::Error]) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::<Diagnostic>::new();
        for error in errors {
            let start = error.span().map_or(0, |span| span.start.min(self.text.len()));
            let end = error.span().map_or(start, |span| span.end.clamp(start, self.text.len()));
            let (number, line) = self.line(start);
            let shown = is_harmless(&self.text[line.clone()]).then(|| {
                let text = self.text[line.clone()].trim_end().to_owned();
                let end = (end - line.start).min(text.len());
                Excerpt { span: (start - line.start).min(end)..end, text }
            });
            let place =
                Place::Line { file: self.name.clone(), line: number, column: self.column(start), offset: start, shown };
            // One mistake can make the parser report several errors on its line.
            if diagnostics.last().is_none_or(|last| !last.is_on_line(number)) {
                let why = match error.message() {
                    why if why.starts_with("invalid type: integer") => "the number is too large",
                    why => why,
                };
                diagnostics.push(Diagnostic::new("", format!("this is not TOML: {why}"), place));
            }
        }
        diagnostics
    }

    /// Returns the values of known keys, and notes their places. Adds path, message and place of each unknown key to
    /// `unknown`.
    fn walk(
        &mut self,
        tree: &DeTable<'_>,
        values: &toml::Table,
        path: &str,
        unknown: &mut Vec<(String, String, Span)>,
    ) -> toml::Table {
        let section = keys::without_places(path);
        let known = keys::members(&section);
        let mut kept = toml::Table::new();
        for (key, value) in tree {
            let name: &str = key.get_ref();
            let mut meant = name;
            if !known.contains(&name) {
                let nearest = keys::nearest(&section, name);
                let title = no_such_key(&section, name, nearest, value.get_ref());
                let nearest = nearest.filter(|nearest| !values.contains_key(*nearest));
                // A misspelled key may be that of a secret, so its value is hidden. The header of a section is shown:
                // there, the span of the value contains the key.
                if !value.span().contains(&key.span().start) {
                    self.hidden.push(value.span());
                }
                let found = join(path, nearest.unwrap_or(name));
                self.spans.entry(found.clone()).or_insert((key.span(), value.span()));
                unknown.push((found, title, key.span()));
                let Some(nearest) = nearest else { continue };
                meant = nearest;
            }
            let (path, plain) = (join(path, meant), &values[name]);
            self.spans.insert(path.clone(), (key.span(), value.span()));
            if !matches!(value.get_ref(), DeValue::Table(_)) && keys::holds_secret(&path) {
                self.hidden.push(value.span());
            }
            let plain = match (value.get_ref(), plain) {
                (DeValue::Table(tree), toml::Value::Table(values))
                    if keys::is_section(&keys::without_places(&path)) =>
                {
                    toml::Value::Table(self.walk(tree, values, &path, unknown))
                }
                (DeValue::Array(items), toml::Value::Array(values)) => {
                    let mut kept = Vec::new();
                    for (nth, (item, plain)) in items.iter().zip(values).enumerate() {
                        let path = format!("{path}[{nth}]");
                        self.spans.insert(path.clone(), (item.span(), item.span()));
                        kept.push(match (item.get_ref(), plain) {
                            (DeValue::Table(tree), toml::Value::Table(values))
                                if keys::REPEATED.contains(&path.split('[').next().unwrap_or_default()) =>
                            {
                                toml::Value::Table(self.walk(tree, values, &path, unknown))
                            }
                            _ => plain.clone(),
                        });
                    }
                    toml::Value::Array(kept)
                }
                _ => {
                    // A table in the place of a secret: its content is hidden.
                    if keys::holds_secret(&path) {
                        self.hidden.push(value.span());
                    }
                    plain.clone()
                }
            };
            kept.insert(meant.to_owned(), plain);
        }
        kept
    }

    /// Returns the place of a value. For a missing value, that is its section, or the file.
    pub(super) fn place(&self, path: &str) -> Place {
        if let Some((_, value)) = self.spans.get(path) {
            return self.place_of_span(value.clone());
        }
        let mut section = path;
        while let Some((above, _)) = section.rsplit_once('.') {
            if let Some((key, value)) = self.spans.get(above) {
                return self.place_of_span(if value.is_empty() { key.clone() } else { value.clone() });
            }
            section = above;
        }
        Place::File(self.name.clone())
    }

    fn place_of_span(&self, span: Span) -> Place {
        let (number, line) = self.line(span.start);
        Place::Line {
            file: self.name.clone(),
            line: number,
            column: self.column(span.start),
            offset: span.start,
            shown: Some(self.excerpt(line, &span)),
        }
    }

    /// Returns the part of a line that is known to be harmless: up to the end of its last value, without values that
    /// may be secret, and without a comment.
    fn excerpt(&self, line: Span, marked: &Span) -> Excerpt {
        let marked_end = marked.end.min(line.end);
        let within = |at: &usize| line.contains(at) || *at == line.end;
        let ends = self.spans.values().flat_map(|(key, value)| [key.end, value.end]).filter(within);
        // A value of several lines extends to the end of its first line.
        let goes_on = self.spans.values().any(|(_, value)| line.contains(&value.start) && value.end > line.end);
        let shown_end = if goes_on { line.end } else { ends.max().unwrap_or(marked_end).max(marked_end) };
        let mut text = String::new();
        let mut span = 0..0;
        let mut was_hidden = false;
        for (at, c) in self.text[line.start..shown_end].char_indices() {
            let at = line.start + at;
            let is_hidden = self.hidden.iter().any(|hidden| hidden.contains(&at));
            if at == marked.start {
                span.start = text.len();
            }
            if !is_hidden {
                text.push(c);
            } else if !was_hidden {
                text.push_str("[not shown]");
            }
            was_hidden = is_hidden;
            if at < marked_end {
                span.end = text.len();
            }
        }
        Excerpt { span: span.start..span.end.max(span.start), text }
    }

    /// Returns the number, from 1, of the line at an offset, and the line's range without the line end.
    fn line(&self, at: usize) -> (usize, Span) {
        let before = &self.text[..at];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let end = self.text[at..].find('\n').map_or(self.text.len(), |end| at + end);
        (before.matches('\n').count() + 1, start..end.max(start))
    }

    fn column(&self, at: usize) -> usize {
        self.text[..at].chars().rev().take_while(|&c| c != '\n').count() + 1
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn no_such_key(section: &str, name: &str, nearest: Option<&str>, value: &DeValue<'_>) -> String {
    let is_table = |value: &DeValue<'_>| matches!(value, DeValue::Table(_));
    let is_section =
        is_table(value) || value.as_array().is_some_and(|items| items.iter().any(|item| is_table(item.get_ref())));
    let bracketed = |name: &str| {
        let full = join(section, name);
        if keys::REPEATED.contains(&full.as_str()) { format!("[[{full}]]") } else { format!("[{full}]") }
    };
    let called: Cow<'_, str> = if is_section { bracketed(name).into() } else { join(section, name).into() };
    let what = if is_section { "section" } else { "key" };
    let there_is = format!("there is no {what} {called}");
    let quoted = |name: &str| match join(section, name) {
        full if keys::is_section(&full) => bracketed(name),
        full => full,
    };
    if let Some(nearest) = nearest {
        return format!("{there_is}; did you mean {}?", quoted(nearest));
    }
    if let Some(elsewhere) = keys::elsewhere(name).filter(|_| !is_section) {
        return format!("{there_is}; did you mean {elsewhere}?");
    }
    let all: Vec<_> = keys::members(section).into_iter().map(quoted).collect();
    format!("{there_is}; there are {}", all.join(", "))
}

/// Returns whether a line that is not TOML can be shown: it is a section's header, or its key is not that of a secret.
fn is_harmless(line: &str) -> bool {
    let line = line.trim();
    if line.starts_with('[') {
        return line.chars().all(|c| c.is_ascii_alphanumeric() || "[]_. ".contains(c)) && line.len() < 60;
    }
    let name = line.split(['=', ' ', ':']).next().unwrap_or_default();
    let leaf = name.rsplit('.').next().unwrap_or_default();
    let named = |known: &&str| known.rsplit('.').next() == Some(leaf);
    let mut known = keys::KEYS.iter().map(|key| key.name.as_str()).filter(named).peekable();
    let clear = !["://", "#", "secret", "url", "@"].iter().any(|sign| line.contains(sign));
    clear && line.matches('=').count() <= 1 && known.peek().is_some() && known.all(|known| !keys::holds_secret(known))
}

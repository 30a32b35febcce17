//! The reference of all keys: as a commented file, and as the page `docs/reference/configuration.md`.

use super::keys::{self, KEYS, Key, SECTIONS};
use std::fmt::Write;
use std::sync::LazyLock;

/// The file that `headcount config toml` prints; see [`template`].
pub(in crate::server) static TEMPLATE: LazyLock<String> = LazyLock::new(template);

/// Returns a configuration file with all sections and keys, each commented out with its documentation above it.
fn template() -> String {
    let mut text = String::from(
        "# A configuration of headcount. Remove the # before the keys that you set; the values are examples.\n\
         # A flag beats HEADCOUNT__SECTION__KEY in the environment, which beats this file.\n",
    );
    for (section, doc) in SECTIONS.iter() {
        let _ = writeln!(text);
        comment(&mut text, &plain(doc));
        let _ = writeln!(text, "#{}", header(section));
        for key in keys_of(section) {
            comment(&mut text, &plain(&key.doc));
            for (word, doc) in &key.words {
                comment(&mut text, &format!("  \"{word}\": {}", plain(doc).replace('\n', " ")));
            }
            if let Some(default) = &key.default {
                comment(&mut text, &format!("Default: {default}"));
            }
            let _ = writeln!(text, "#{} = {}", leaf(&key.name), key.such_as);
        }
    }
    text
}

/// Returns the keys of a section, without those of the sections in it.
fn keys_of(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |key| key.name.rsplit_once('.').is_some_and(|(of, _)| of == section))
}

fn header(section: &str) -> String {
    if keys::REPEATED.contains(&section) { format!("[[{section}]]") } else { format!("[{section}]") }
}

fn leaf(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn comment(text: &mut String, doc: &str) {
    for line in doc.lines() {
        let _ = writeln!(text, "{}", format!("# {line}").trim_end());
    }
}

fn plain(doc: &str) -> String {
    doc.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Returns the page `docs/reference/configuration.md`.
    fn page() -> String {
        let mut page = String::from(
            "# Configuration\n\n\
             `headcount serve -c headcount.toml`. A flag beats `HEADCOUNT__SECTION__KEY` in the environment, which \
             beats the file. `headcount config toml` prints a commented file, `headcount validate -c FILE` says what \
             is wrong with one, and where.\n\n\
             Times are written with their unit: `\"500ms\"`, `\"30m\"`, `\"1h 30m\"`. This page is made from the doc \
             comments of `src/config`.\n",
        );
        for (section, doc) in SECTIONS.iter() {
            let _ = writeln!(page, "\n## `{}`\n\n{}\n", header(section), doc);
            let _ = writeln!(page, "| key | value | default | |\n|---|---|---|---|");
            for key in keys_of(section) {
                let _ = writeln!(page, "{}", row(key));
            }
        }
        page
    }

    fn row(key: &Key) -> String {
        let words: String = key.words.iter().fold(String::new(), |mut words, (word, doc)| {
            let _ = write!(words, "<br>`\"{word}\"`");
            if !doc.is_empty() {
                let _ = write!(words, ": {}", one_line(doc));
            }
            words
        });
        let default = key.default.as_ref().map(|default| format!("`{default}`")).unwrap_or_default();
        let value = format!("{}, such as `{}`", key.must_be, key.such_as).replace('|', "\\|");
        format!("| `{}` | {value} | {default} | {}{words} |", leaf(&key.name), one_line(&key.doc))
    }

    fn one_line(doc: &str) -> String {
        doc.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
    }

    #[test]
    fn the_template_is_toml_and_each_line_of_it_is_taken() {
        let commented: toml::Table = toml::from_str(&template()).unwrap();
        assert!(commented.is_empty());
        let uncommented: String = template()
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(|line| !line.starts_with(' ') && !line.is_empty())
            .fold(String::new(), |text, line| text + line + "\n");
        let config: Config = toml::from_str(&uncommented).unwrap_or_else(|error| panic!("{error}\n{uncommented}"));
        assert_eq!(config.limit.len(), 1);
        assert!(config.fleet.is_some() && config.redis.is_some() && config.token.jwt.is_some());
    }

    #[test]
    fn the_page_of_the_book_is_up_to_date() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/configuration.md");
        if std::env::var_os("HEADCOUNT_WRITE_BOOK").is_some() {
            std::fs::write(file, page()).unwrap();
        }
        let written = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            written == page(),
            "{file} is out of date; run HEADCOUNT_WRITE_BOOK=1 cargo test --features full --lib page_of_the_book"
        );
    }
}

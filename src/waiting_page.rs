//! The page for a newcomer who has to wait, in the reader's language.

mod language;
mod template;
mod texts;

use std::time::Duration;
use template::{Field, Template};
pub use texts::PageText;

/// The built-in template.
const PAGE: &str = include_str!("waiting_page/page.html");
/// The language of readers whose languages the page does not have.
const DEFAULT_LANGUAGE: &str = "en";

/// What an operator changes of the page.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageStyle<'s> {
    /// A template in place of the built-in one.
    pub(crate) template: Option<&'s str>,
    /// A title and a message for all built-in languages.
    pub(crate) title: Option<&'s str>,
    pub(crate) message: Option<&'s str>,
    /// The address of an image.
    pub(crate) logo: Option<&'s str>,
    /// More rules of style.
    pub(crate) css: Option<&'s str>,
    pub(crate) texts: &'s [PageText],
}

/// The page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingPage {
    template: Template,
    languages: Vec<PageText>,
    default: usize,
    logo: String,
    css: String,
}

/// An error in what an operator changes: the key within `[line.page]`, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageError {
    pub(crate) key: &'static str,
    pub(crate) found: String,
    pub(crate) expected: &'static str,
}

/// What a page says to a newcomer who waits in the line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    pub(crate) position: u64,
    /// The bounds of the expected wait, if it is known.
    pub(crate) wait: Option<(Duration, Duration)>,
    /// The part of the whole wait that has passed, from 0 to 1, if it is known.
    pub(crate) progress: Option<f64>,
    /// The opening for which the newcomer gathers. Then the position and the wait are not shown.
    pub(crate) opens: Option<Opens>,
}

/// An opening that is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opens {
    /// A date and time in UTC (RFC 3339).
    pub(crate) at: String,
    /// Whether the order of the gathered is drawn by lot.
    pub(crate) by_lot: bool,
}

impl WaitingPage {
    pub(crate) fn new(style: PageStyle<'_>) -> Result<Self, PageError> {
        let template = Template::parse(style.template.unwrap_or(PAGE));
        if !template.has(Field::Line) {
            let expected = "the template needs {line}, where the place in the line is shown";
            return Err(PageError { key: "line.page.template", found: String::new(), expected });
        }
        let css = style.css.unwrap_or_default();
        if css.contains('<') {
            let expected = "it must be rules of CSS, without <";
            return Err(PageError { key: "line.page.css", found: css.to_owned(), expected });
        }
        let mut languages = PageText::built_in();
        let (title, message) = (style.title.unwrap_or_default(), style.message.unwrap_or_default());
        for text in &mut languages {
            let language = text.language.clone();
            text.replace(&PageText { language, title: title.into(), message: message.into(), ..PageText::default() });
        }
        for text in style.texts {
            if !is_language(&text.language) {
                let expected = "it must be a language, such as fr or pt-BR";
                return Err(PageError { key: "line.page.text.language", found: text.language.clone(), expected });
            }
            match languages.iter_mut().find(|known| known.language.eq_ignore_ascii_case(&text.language)) {
                Some(known) => known.replace(text),
                // What is said before an opening may be left out.
                None => languages.push(text.clone().with_opening_of(&languages[0])),
            }
        }
        for text in &languages {
            if let Some(missing) = text.missing() {
                let (key, found) = ("line.page.text", format!("{} without {missing}", text.language));
                let expected =
                    "a language that is not built in needs all texts but direction, not_open, opens and drawn";
                return Err(PageError { key, found, expected });
            }
            for (field, value) in
                [("position", &text.position), ("minutes", &text.wait), ("seconds", &text.retry), ("time", &text.opens)]
            {
                if !value.contains(&format!("{{{field}}}")) {
                    let found = format!("{} with {value}", text.language);
                    let expected = "position needs {position}, wait {minutes}, retry {seconds}, and opens {time}";
                    return Err(PageError { key: "line.page.text", found, expected });
                }
            }
            if !["", "ltr", "rtl"].contains(&text.direction.as_str()) {
                let (key, found) = ("line.page.text.direction", text.direction.clone());
                return Err(PageError { key, found, expected: "it must be \"ltr\" or \"rtl\"" });
            }
        }
        let default = languages.iter().position(|text| text.language == DEFAULT_LANGUAGE).unwrap_or_default();
        let logo = style.logo.map(|logo| format!("<img src=\"{}\" alt=\"\">", escaped(logo))).unwrap_or_default();
        Ok(Self { template, languages, default, logo, css: css.to_owned() })
    }

    /// Returns the number of the language for a reader who wants these, with their qualities.
    pub(crate) fn language_for<'l>(&self, wanted: impl Iterator<Item = (&'l str, f32)>) -> usize {
        let find = |range: &str| self.languages.iter().position(|text| text.language.eq_ignore_ascii_case(range));
        language::choose(wanted, find).unwrap_or(self.default)
    }

    /// Returns the name of a language.
    pub(crate) fn language(&self, language: usize) -> &str {
        &self.languages[language].language
    }

    /// Returns the page for a newcomer who is to come back after `retry_after`.
    pub(crate) fn render(&self, language: usize, retry_after: Duration, place: Option<&Place>) -> String {
        let opens = place.and_then(|place| place.opens.as_ref());
        let texts = &self.languages[language];
        let seconds = retry_after.as_secs();
        self.template.fill(|field| match field {
            Field::Language => texts.language.clone(),
            Field::Direction if texts.direction.is_empty() => "ltr".to_owned(),
            Field::Direction => texts.direction.clone(),
            Field::Title if opens.is_some() => escaped(&texts.not_open),
            Field::Title => escaped(&texts.title),
            Field::Message => opens.map_or_else(|| escaped(&texts.message), |opens| opens.render(texts)),
            Field::Logo => self.logo.clone(),
            Field::Css => self.css.clone(),
            Field::Line => place.map(|place| place.render(texts)).unwrap_or_default(),
            Field::Retry => {
                escaped(&texts.retry).replace("{seconds}", &format!("<span id=\"seconds\">{seconds}</span>"))
            }
            Field::Seconds => seconds.to_string(),
        })
    }
}

impl Place {
    fn render(&self, texts: &PageText) -> String {
        if let Some(opens) = &self.opens {
            let drawn = if opens.by_lot { format!("<p>{}</p>", escaped(&texts.drawn)) } else { String::new() };
            return format!("<div role=\"status\">\n{drawn}\n</div>");
        }
        let position = escaped(&texts.position).replace("{position}", &self.position.to_string());
        let wait = match self.wait {
            Some(bounds) => {
                escaped(&texts.wait).replace("{minutes}", &format!("<bdi dir=\"ltr\">{}</bdi>", minutes(bounds)))
            }
            None => escaped(&texts.wait_unknown),
        };
        let progress = self.progress.map(|progress| {
            let (label, percent) = (escaped(&texts.progress), (100.0 * progress).round());
            format!("\n<progress aria-label=\"{label}\" max=\"100\" value=\"{percent}\">{percent} %</progress>")
        });
        let progress = progress.unwrap_or_default();
        format!("<div role=\"status\">\n<p>{position}</p>\n<p>{wait}</p>{progress}\n</div>")
    }
}

impl Opens {
    /// Returns the time of the opening in a sentence. The page's script shows it in the reader's time zone.
    fn render(&self, texts: &PageText) -> String {
        let shown = self.at.replace('T', " ").replace('Z', " UTC");
        let time = format!("<time datetime=\"{}\">{shown}</time>", self.at);
        escaped(&texts.opens).replace("{time}", &time)
    }
}

/// Returns the whole minutes of a range.
fn minutes((least, most): (Duration, Duration)) -> String {
    let of = |time: Duration| time.as_secs().div_ceil(60).max(1);
    if of(least) == of(most) { of(most).to_string() } else { format!("{}–{}", of(least), of(most)) }
}

/// Returns whether a name has the form of a language tag (RFC 5646 §2.1).
fn is_language(name: &str) -> bool {
    let is_part = |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    name.len() <= 35 && name.split('-').all(is_part)
}

/// Returns a text as HTML shows it.
fn escaped(text: &str) -> String {
    let escape = |c| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn page(style: PageStyle<'_>) -> WaitingPage {
        WaitingPage::new(style).unwrap()
    }

    fn text(language: &str) -> PageText {
        let texts = [("title", "T"), ("message", "M"), ("position", "{position}"), ("wait", "{minutes}")];
        let more = [("wait_unknown", "U"), ("progress", "P"), ("retry", "{seconds}"), ("language", language)];
        let opening = [("not_open", "N"), ("opens", "{time}"), ("drawn", "D")];
        let table: toml::Table =
            texts.into_iter().chain(more).chain(opening).map(|(key, text)| (key.into(), text.into())).collect();
        table.try_into().unwrap()
    }

    #[test]
    fn every_built_in_language_has_all_texts_and_its_fields() {
        let page = page(PageStyle::default());
        let languages: Vec<_> = page.languages.iter().map(|text| text.language.as_str()).collect();
        assert_eq!(languages, ["en", "de", "es", "zh", "ja"]);
        let wait = Some((90 * SECOND, 300 * SECOND));
        let place = Place { position: 1234, wait, progress: Some(0.25), opens: None };
        for (language, name) in languages.into_iter().enumerate() {
            let html = page.render(language, 17 * SECOND, Some(&place));
            for part in ["1234", "2–5", "value=\"25\"", "<span id=\"seconds\">17</span>", "role=\"status\""] {
                assert!(html.contains(part), "{part} is not in {html}");
            }
            assert!(html.starts_with(&format!("<!doctype html>\n<html lang=\"{name}\" dir=\"ltr\">")));
            assert!(!html.contains("{line}") && !html.contains("{position}"), "{html}");
            let unknown = page.render(language, SECOND, Some(&Place { wait: None, progress: None, ..place.clone() }));
            assert!(!unknown.contains("<progress") && unknown.contains(&page.languages[language].wait_unknown));
            assert!(!page.render(language, SECOND, None).contains("status"));
            for by_lot in [false, true] {
                let opens = Some(Opens { at: "2026-12-01T18:00:00Z".into(), by_lot });
                let html = page.render(language, SECOND, Some(&Place { opens, ..place.clone() }));
                let texts = &page.languages[language];
                let time = "<time datetime=\"2026-12-01T18:00:00Z\">2026-12-01 18:00:00 UTC</time>";
                assert!(html.contains(time) && html.contains(&texts.not_open) && !html.contains("1234"), "{html}");
                assert_eq!(html.contains(&texts.drawn), by_lot);
                assert!(!html.contains("{time}") && !html.contains(&texts.title), "{html}");
            }
        }
    }

    #[test]
    fn operators_change_texts_and_style_and_nothing_of_it_becomes_code() {
        let german = PageText { language: "DE".into(), retry: "<b>{seconds}</b>".into(), ..PageText::default() };
        let arabic = PageText { direction: "rtl".into(), ..text("ar") };
        let style = PageStyle {
            title: Some("Tom & \"Jerry\" {line}"),
            message: Some("<script>"),
            logo: Some("\"><script>"),
            css: Some("body { color: red }"),
            texts: &[german, arabic],
            ..PageStyle::default()
        };
        let page = page(style);
        let html = page.render(page.language_for([("de-CH", 1.0)].into_iter()), SECOND, None);
        for part in [
            "<h1>Tom &amp; &quot;Jerry&quot; {line}</h1>",
            "<p>&lt;script&gt;</p>",
            "<img src=\"&quot;&gt;&lt;script&gt;\" alt=\"\">",
            "&lt;b&gt;<span id=\"seconds\">1</span>&lt;/b&gt;",
            "body { color: red }",
        ] {
            assert!(html.contains(part), "{part} is not in {html}");
        }
        let html = page.render(page.language_for([("ar", 1.0)].into_iter()), SECOND, None);
        assert!(html.contains("<html lang=\"ar\" dir=\"rtl\">"), "{html}");
        assert_eq!(page.language(page.language_for([("fr", 1.0)].into_iter())), "en");
        let style = PageStyle { template: Some("{ {unknown} {line} {{title}} {"), ..PageStyle::default() };
        let own = WaitingPage::new(style).unwrap();
        assert_eq!(own.render(0, SECOND, None), "{ {unknown}  {There is no room right now} {");
    }

    #[test]
    fn mistakes_are_named() {
        let no_language = [text("")];
        let path = [text("../de")];
        let part = [PageText { wait: String::new(), ..text("fr") }];
        let number = [PageText { position: "Place".into(), ..text("fr") }];
        let direction = [PageText { direction: "up".into(), ..text("fr") }];
        for (style, key, found) in [
            (PageStyle { template: Some("<html>"), ..PageStyle::default() }, "line.page.template", ""),
            (PageStyle { css: Some("</style>"), ..PageStyle::default() }, "line.page.css", "</style>"),
            (PageStyle { texts: &no_language, ..PageStyle::default() }, "line.page.text.language", ""),
            (PageStyle { texts: &path, ..PageStyle::default() }, "line.page.text.language", "../de"),
            (PageStyle { texts: &part, ..PageStyle::default() }, "line.page.text", "fr without wait"),
            (PageStyle { texts: &number, ..PageStyle::default() }, "line.page.text", "fr with Place"),
            (PageStyle { texts: &direction, ..PageStyle::default() }, "line.page.text.direction", "up"),
        ] {
            let error = WaitingPage::new(style).unwrap_err();
            assert_eq!((error.key, error.found.as_str()), (key, found));
        }
    }
}

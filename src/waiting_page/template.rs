//! A template: text with fields in braces.

/// A field of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Language,
    Direction,
    Title,
    Message,
    Logo,
    Css,
    Line,
    Retry,
    Seconds,
}

const FIELDS: [(&str, Field); 9] = [
    ("{language}", Field::Language),
    ("{direction}", Field::Direction),
    ("{title}", Field::Title),
    ("{message}", Field::Message),
    ("{logo}", Field::Logo),
    ("{css}", Field::Css),
    ("{line}", Field::Line),
    ("{retry}", Field::Retry),
    ("{seconds}", Field::Seconds),
];

/// A parsed template. Braces around other words are plain text, so that styles and scripts need no escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

impl Template {
    pub(super) fn parse(mut text: &str) -> Self {
        let mut parts = Vec::new();
        let mut from = 0;
        while let Some(at) = text[from..].find('{').map(|at| from + at) {
            match FIELDS.iter().find(|(name, _)| text[at..].starts_with(name)) {
                Some((name, field)) => {
                    parts.extend([Part::Text(text[..at].to_owned()), Part::Field(*field)]);
                    (text, from) = (&text[at + name.len()..], 0);
                }
                None => from = at + 1,
            }
        }
        parts.push(Part::Text(text.to_owned()));
        Self(parts)
    }

    pub(super) fn has(&self, field: Field) -> bool {
        self.0.contains(&Part::Field(field))
    }

    /// Fills the fields in. What a value contains is not looked at.
    pub(super) fn fill(&self, value: impl Fn(Field) -> String) -> String {
        let texts = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Field(field) => value(*field),
        });
        texts.collect()
    }
}

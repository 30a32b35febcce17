//! The errors of a configuration, and their places.

use annotate_snippets::{Annotation, AnnotationKind, Level, Origin, Renderer, Snippet};
use std::fmt;
use std::ops::Range;

/// One error.
#[derive(Debug, Clone)]
pub(super) struct Diagnostic {
    /// The key, such as `limit[0].rate`; empty if the error belongs to no key.
    pub(super) path: String,
    title: String,
    help: Option<String>,
    place: Place,
}

/// The source of a value.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// A place in a file: `line` and `column` count from 1, `offset` in bytes from 0. `shown` is `None` if the line may
    /// contain a secret.
    Line { file: String, line: usize, column: usize, offset: usize, shown: Option<Excerpt> },
    /// A file as a whole.
    File(String),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
    /// The value is set nowhere.
    Nowhere,
}

/// The part of a line that is shown.
#[derive(Debug, Clone)]
pub(super) struct Excerpt {
    pub(super) text: String,
    /// The part of `text` that is marked, in bytes.
    pub(super) span: Range<usize>,
}

impl Excerpt {
    fn snippet(&self, line: usize) -> Snippet<'_, Annotation<'_>> {
        let marked = AnnotationKind::Primary.span(self.span.clone());
        Snippet::source(self.text.as_str()).line_start(line).annotation(marked)
    }
}

impl Diagnostic {
    pub(super) fn new(path: &str, title: impl Into<String>, place: Place) -> Self {
        Self { path: path.to_owned(), title: title.into(), help: None, place }
    }

    pub(super) fn help(mut self, help: Option<String>) -> Self {
        self.help = help;
        self
    }

    pub(super) fn is_on_line(&self, number: usize) -> bool {
        matches!(self.place, Place::Line { line, .. } if line == number)
    }

    /// The order of errors: file, environment, command line; within the file, from top to bottom.
    fn order(&self) -> (usize, usize, &str) {
        match &self.place {
            Place::Line { offset, .. } => (0, *offset, ""),
            Place::File(_) => (1, 0, ""),
            Place::Variable(name) => (2, 0, name),
            Place::Flag(name) => (3, 0, name),
            Place::Nowhere => (4, 0, ""),
        }
    }
}

/// The errors of a configuration, each with its place, an excerpt, and an example of a valid value.
#[derive(Debug, Clone)]
pub struct LoadError {
    diagnostics: Vec<Diagnostic>,
}

impl LoadError {
    pub(super) fn new(mut diagnostics: Vec<Diagnostic>) -> Self {
        diagnostics.sort_by(|one, other| one.order().cmp(&other.order()));
        Self { diagnostics }
    }

    /// Returns how many errors were found.
    pub fn count(&self) -> usize {
        self.diagnostics.len()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut report = Level::ERROR.primary_title(self.title.as_str()).elements(Vec::<Origin<'_>>::new());
        match &self.place {
            Place::Line { file, line, column, shown, .. } => {
                let origin = Origin::path(file.as_str()).line(*line).char_column(*column);
                report = match shown {
                    // Nothing before the mark is left out, so the column that the renderer counts is right.
                    Some(shown) if shown.text[..shown.span.start].chars().count() + 1 == *column => {
                        report.element(shown.snippet(*line).path(file.as_str()))
                    }
                    Some(shown) => report.element(origin).element(shown.snippet(*line)),
                    None => report.element(origin),
                };
            }
            Place::File(name) => report = report.element(Origin::path(name.as_str())),
            Place::Variable(name) => report = report.element(Origin::path(format!("the environment variable {name}"))),
            Place::Flag(name) => report = report.element(Origin::path(format!("the flag {name}"))),
            Place::Nowhere => {}
        }
        if let Some(help) = &self.help {
            report = report.element(Level::HELP.message(help.as_str()));
        }
        f.write_str(&Renderer::plain().render(&[report]))
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, diagnostic) in self.diagnostics.iter().enumerate() {
            write!(f, "{}{diagnostic}", if nth == 0 { "" } else { "\n\n" })?;
        }
        match self.count() {
            0 | 1 => Ok(()),
            count => write!(f, "\n\nerror: there are {count} errors in the configuration"),
        }
    }
}

impl std::error::Error for LoadError {}

//! Everything that is wrong with a recipe, in one value, with line, caret and cure.
//!
//! Only collects and renders; what is wrong is found elsewhere in this crate.

use std::fmt;
use std::ops::Range;

use crate::counted::counted;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

/// A text that settings come from: the recipe file, or one override.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// What the user calls it: the path as given, or `override 2`.
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A stretch of a source. `source` is 0 for the file and `n` for override `n`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) source: usize,
    pub(crate) span: Range<usize>,
}

/// One thing that is wrong.
#[derive(Debug, Clone)]
pub struct Diagnostic {
    pub(crate) title: String,
    /// The first is the one to blame.
    pub(crate) labels: Vec<(Place, String)>,
    /// Facts that have no place, such as defaults.
    pub(crate) notes: Vec<String>,
    pub(crate) help: Option<String>,
}

impl Diagnostic {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self {
            title: printable(&title.into()),
            labels: Vec::new(),
            notes: Vec::new(),
            help: None,
        }
    }

    pub(crate) fn at(mut self, place: Place, label: impl Into<String>) -> Self {
        self.labels.push((place, printable(&label.into())));
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(printable(&note.into()));
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(printable(&help.into()));
        self
    }

    pub(crate) fn help_if_any(self, help: Option<String>) -> Self {
        match help {
            Some(help) => self.help(help),
            None => self,
        }
    }

    /// What is wrong, in one line.
    pub fn title(&self) -> &str {
        &self.title
    }
}

/// Why a recipe was refused: all problems at once, never empty.
///
/// This is always an error of the configuration, found before anything was started, so a program that stops on it
/// should exit with [`Diagnostics::EXIT_CODE`]. `Display` is plain text; [`Diagnostics::render`] can add colour.
#[derive(Debug, Clone)]
pub struct Diagnostics {
    sources: Vec<Source>,
    problems: Vec<Diagnostic>,
}

impl Diagnostics {
    /// The exit code of a program that was given a wrong configuration.
    pub const EXIT_CODE: u8 = 2;

    pub(crate) fn new(sources: &[Source], mut problems: Vec<Diagnostic>) -> Self {
        // As one reads: down the file, then through the overrides; what has no place comes last.
        problems.sort_by_key(|problem| match problem.labels.first() {
            Some((place, _)) => (place.source, place.span.start),
            None => (usize::MAX, 0),
        });
        Self {
            sources: sources.to_vec(),
            problems,
        }
    }

    /// What is wrong, in the order of the file and then of the overrides.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Diagnostic> {
        self.problems.iter()
    }

    /// The text for the terminal, with ANSI colours or without.
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let mut out = String::new();
        for problem in &self.problems {
            out.push_str(&renderer.render(&[self.group(problem)]));
            out.push_str("\n\n");
        }
        let count = counted(self.problems.len(), "problem");
        let name = self
            .sources
            .first()
            .map_or("the recipe", |source| &source.name);
        out.push_str(&format!("{count} in {name}: nothing was started"));
        out
    }

    fn group<'d>(&'d self, problem: &'d Diagnostic) -> Group<'d> {
        let mut group = Level::ERROR
            .primary_title(problem.title.as_str())
            .elements(Vec::<Origin<'d>>::new());
        // One snippet a source, that of the primary label first.
        let mut order: Vec<usize> = Vec::new();
        for (place, _) in &problem.labels {
            if !order.contains(&place.source) {
                order.push(place.source);
            }
        }
        for &index in &order {
            let source = &self.sources[index];
            let mut snippet = Snippet::source(source.text.as_str()).path(source.name.as_str());
            for (i, (place, label)) in problem.labels.iter().enumerate() {
                if place.source == index {
                    let kind = if i == 0 {
                        AnnotationKind::Primary
                    } else {
                        AnnotationKind::Context
                    };
                    snippet =
                        snippet.annotation(kind.span(place.span.clone()).label(label.as_str()));
                }
            }
            group = group.element(snippet);
        }
        if let (true, Some(file)) = (order.is_empty(), self.sources.first()) {
            group = group.element(Origin::path(file.name.as_str()));
        }
        for note in &problem.notes {
            group = group.element(Level::NOTE.message(note.as_str()));
        }
        if let Some(help) = &problem.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        group
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

/// Text from the user may hold control characters; the terminal must not obey them.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c.is_control() && c != '\n' {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

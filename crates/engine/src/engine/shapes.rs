//! What was compiled, for rows of which shapes, and how many shapes there may be.

use std::time::Duration;

use ferrotune_program::Program;

use crate::error::Error;

/// A program that was compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// Its name.
    pub program: String,
    /// Rows and tokens a row that it is for; `None` if it reads no rows.
    pub shape: Option<[usize; 2]>,
    /// How long tracing and compiling took.
    pub time: Duration,
    /// Whether the executable was found in the compile cache.
    pub from_cache: bool,
}

/// The shapes that there are programs for, and what was compiled since somebody asked.
#[derive(Debug)]
pub(super) struct Shapes {
    limit: usize,
    seen: Vec<[usize; 2]>,
    compiled: Vec<Compiled>,
}

impl Shapes {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            seen: Vec::new(),
            compiled: Vec::new(),
        }
    }

    /// Refuses a shape that would be one too many.
    pub(super) fn check(&self, shape: [usize; 2]) -> Result<(), Error> {
        if self.seen.contains(&shape) || self.seen.len() < self.limit {
            return Ok(());
        }
        Err(Error::TooManyShapes {
            given: shape,
            seen: self.seen.clone(),
        })
    }

    /// Remembers a program that was compiled in so much time.
    pub(super) fn add(&mut self, program: &Program, shape: Option<[usize; 2]>, time: Duration) {
        self.seen.extend(shape.filter(|it| !self.seen.contains(it)));
        self.compiled.push(Compiled {
            program: program.name().to_owned(),
            shape,
            time,
            from_cache: program.from_cache(),
        });
    }

    /// What was compiled since this was asked last.
    pub(super) fn take(&mut self) -> Vec<Compiled> {
        std::mem::take(&mut self.compiled)
    }
}

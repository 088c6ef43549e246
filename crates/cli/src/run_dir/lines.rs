//! A JSONL file that only grows by whole lines, and can be taken back to an earlier step.
//!
//! Every line is an object with a whole number `step`, and steps never go down.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use super::RunDirError;

/// An open JSONL file.
#[derive(Debug)]
pub(super) struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)?;
        Ok(Self { path, file })
    }

    /// Locks the file as long as it is open. False if another process has.
    pub(super) fn lock(&self) -> bool {
        // A file system that knows no locks is no reason to refuse the run.
        !matches!(self.file.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Writes the lines in one piece, with nothing kept back: a killed process loses at most the end of the last.
    pub(super) fn append<T: Serialize>(&mut self, items: &[T]) -> Result<(), RunDirError> {
        let mut text = Vec::new();
        for item in items {
            serde_json::to_writer(&mut text, item)
                .map_err(|error| self.failed("write", error.into()))?;
            text.push(b'\n');
        }
        let before = self
            .file
            .metadata()
            .map_err(|error| self.failed("write", error))?
            .len();
        self.file.write_all(&text).map_err(|error| {
            // A full disk may have taken half a line.
            let _ = self.file.set_len(before);
            self.failed("write", error)
        })
    }

    pub(super) fn sync(&self) -> Result<(), RunDirError> {
        self.file
            .sync_data()
            .map_err(|error| self.failed("write", error))
    }

    /// Cuts the file after the last line of `step`; answers the step of the last line that is left.
    pub(super) fn rewind(&mut self, step: u64) -> Result<Option<u64>, RunDirError> {
        let mut last = None;
        let mut keep = 0;
        let mut cut = false;
        self.walk(|line| {
            match line.step {
                at if at > step => cut = true,
                _ if cut => return Err(format!("step {} after a step beyond {step}", line.step)),
                at => (last, keep) = (Some(at), line.end),
            }
            Ok(())
        })?;
        self.file
            .set_len(keep)
            .map_err(|error| self.failed("shorten", error))?;
        self.sync()?;
        Ok(last)
    }

    /// The objects of the steps that are wanted; a half-written last line is passed over.
    pub(super) fn read(
        &self,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<Vec<Map<String, Value>>, RunDirError> {
        let mut objects = Vec::new();
        self.walk(|line| {
            if wanted(line.step) {
                objects.push(line.object);
            }
            Ok(())
        })?;
        Ok(objects)
    }

    /// Visits every whole line from the start.
    fn walk(&self, mut visit: impl FnMut(Line) -> Result<(), String>) -> Result<(), RunDirError> {
        let failed = |error| self.failed("read", error);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut reader = BufReader::new(file);
        let (mut number, mut end) = (0, 0);
        let mut text = Vec::new();
        let mut trouble = None;
        loop {
            text.clear();
            let length = reader.read_until(b'\n', &mut text).map_err(failed)?;
            if length == 0 {
                return Ok(());
            }
            // A line that cannot be read is the torn end of the file if nothing follows.
            if let Some((line, why)) = trouble {
                return Err(RunDirError::Damaged {
                    path: self.path.clone(),
                    line,
                    why,
                });
            }
            number += 1;
            end += length as u64;
            match Line::parse(&text, end) {
                Ok(line) => visit(line).map_err(|why| RunDirError::Damaged {
                    path: self.path.clone(),
                    line: number,
                    why,
                })?,
                Err(why) => trouble = Some((number, why)),
            }
        }
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> RunDirError {
        RunDirError::Failed {
            path: self.path.clone(),
            doing,
            source,
        }
    }
}

struct Line {
    step: u64,
    /// The offset behind its line feed.
    end: u64,
    object: Map<String, Value>,
}

impl Line {
    fn parse(text: &[u8], end: u64) -> Result<Self, String> {
        if !text.ends_with(b"\n") {
            return Err("it has no line feed".to_owned());
        }
        let object: Map<String, Value> =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let step = object
            .get("step")
            .and_then(Value::as_u64)
            .ok_or("it has no step")?;
        Ok(Self { step, end, object })
    }
}

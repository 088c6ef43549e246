//! How a command ends when it does not end well: what is shown, and the exit code.

use std::fmt::Display;
use std::io::IsTerminal;
use std::process::ExitCode;

use ferrotune_recipe::Diagnostics;

use crate::terminal::say;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The recipe is wrong: the text is complete as it is.
    Recipe(Diagnostics),
    /// Something that the user named cannot be used; each problem on its own.
    Refused(Vec<anyhow::Error>),
    /// It was begun and did not succeed.
    Failed(anyhow::Error),
    /// The user stopped it; the text says how to go on.
    Interrupted(String),
    /// Nobody reads the results any more.
    Unread,
    /// A process in its place has said what there is to say, and ended with this code.
    Told(u8),
}

impl Failure {
    /// A request that cannot be served.
    pub(crate) fn refused(error: impl Into<anyhow::Error>) -> Self {
        Self::Refused(vec![error.into()])
    }

    /// A command that went wrong on its way.
    pub(crate) fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }

    /// Writes to standard error what there is to say, and gives the exit code.
    pub(crate) fn show(self) -> ExitCode {
        match self {
            Self::Recipe(diagnostics) => {
                say(diagnostics.render(std::io::stderr().is_terminal()));
                ExitCode::from(Diagnostics::EXIT_CODE)
            }
            Self::Refused(errors) => {
                errors.iter().for_each(show_refused);
                ExitCode::from(2)
            }
            Self::Failed(error) => {
                say(format_args!("error: {}", chain(&error)));
                ExitCode::from(1)
            }
            Self::Interrupted(text) => {
                say(text);
                ExitCode::from(130)
            }
            Self::Unread => ExitCode::SUCCESS,
            Self::Told(code) => ExitCode::from(code),
        }
    }
}

/// Faults of settings show where they stand, and bring their own words before it.
fn show_refused(error: &anyhow::Error) {
    match error.downcast_ref::<Diagnostics>() {
        Some(diagnostics) => say(diagnostics.render(std::io::stderr().is_terminal())),
        None => say(format_args!("error: {}", chain(error))),
    }
}

/// Shorthands for `map_err`.
pub(crate) trait OrFail<T> {
    /// The request cannot be served: exit code 2.
    fn or_refuse(self) -> Result<T, Failure>;
    /// The command failed: exit code 1.
    fn or_fail(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrFail<T> for Result<T, E> {
    fn or_refuse(self) -> Result<T, Failure> {
        self.map_err(Failure::refused)
    }

    fn or_fail(self) -> Result<T, Failure> {
        self.map_err(Failure::failed)
    }
}

/// An error and its causes, without those that the text before already quotes.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// Makes a fault of the program itself end like any other failure: one message, exit code 1.
pub(crate) fn report_panics() {
    std::panic::set_hook(Box::new(|fault| {
        let place = fault
            .location()
            .map_or_else(String::new, |at| format!(" at {at}"));
        let text = fault.payload_as_str().unwrap_or("no message");
        let show: &dyn Display = &format_args!(
            "error: ferrotune has a fault{place}: {text}\n\
             Please report it, with this message and the command; nothing under a final name was left half-written."
        );
        say(show);
        std::process::exit(1);
    }));
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_that_is_quoted_already_is_not_repeated() {
        let io = || std::io::Error::other("disk on fire");
        let quoting: anyhow::Result<()> = Err(io()).context("cannot read x: disk on fire");
        assert_eq!(chain(&quoting.unwrap_err()), "cannot read x: disk on fire");
        let plain: anyhow::Result<()> = Err(io()).context("cannot read x");
        assert_eq!(chain(&plain.unwrap_err()), "cannot read x: disk on fire");
    }
}

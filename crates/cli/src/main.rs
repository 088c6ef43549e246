//! The binary `ferrotune`.
//!
//! Reads arguments, calls the library crates, shows what they say. Results go to standard output, everything else to
//! standard error. Exit codes: 0 done, 1 the run failed, 2 the request cannot be served as it was made, 130 stopped by the
//! user.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod checkpoint;
mod config;
mod device;
mod doctor;
mod documents;
mod failure;
mod input_file;
mod inspect;
mod machine;
mod model_folder;
mod output_file;
mod pack;
mod run_dir;
mod sample;
mod score;
mod terminal;
mod train;

use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;

fn main() -> ExitCode {
    failure::report_panics();
    let args = Args::parse();
    if let Some(folder) = args.dump {
        ferrotune_program::dump_to(folder);
    }
    let result = match args.command {
        Command::Train(args) => train::run(&args),
        Command::Sample(args) => sample::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Doctor => doctor::run(),
        Command::Config(args) => config::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.show(),
    }
}

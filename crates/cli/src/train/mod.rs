//! `ferrotune train`: a recipe to a run directory.
//!
//! Everything that can be refused is refused before a device is started. Then the trainer does step after step; here it is
//! only watched, recorded, checkpointed and stopped.

mod begin;
mod inputs;
mod interrupt;
mod learns;
mod plan;
mod resume;
mod saving;
mod watch;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use ferrotune_engine::{Compiled, Error, Trains, checkpoint};
use ferrotune_models::save_adapter;
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::DType;
use ferrotune_recipe::{Recipe, Resolved};
use ferrotune_rl::{Phase, StepReport, Trainer};

use crate::args::TrainArgs;
use crate::failure::{Failure, OrFail};
use crate::run_dir::{RunDir, RunDirError, Sample, StepMetrics};
use inputs::Inputs;
use interrupt::Interrupt;
pub(crate) use learns::Learns;
use watch::Watch;

pub(crate) fn run(args: &TrainArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::install().or_fail()?;
    let mut run = match Run::begin(args) {
        // Ctrl-C also reaches programs that are started here, and their end is then no failure.
        Err(_) if interrupt.requested() => {
            return Err(Failure::Interrupted(
                "stopped before the first step".to_owned(),
            ));
        }
        begun => begun?,
    };
    run.steps(&interrupt)?;
    run.finish()
}

/// A run under way.
struct Run {
    resolved: Resolved,
    run_dir: RunDir,
    trainer: Trainer,
    /// The number type of the weights that the run began with, if they are of one.
    stored: Option<DType>,
    watch: Watch,
    /// Whether there are metrics of an earlier process, so that those of step 0 are not written twice.
    begun: bool,
    /// How long the run waited for the copy of the checkpoint that was begun last.
    copy_time: Duration,
    /// Whether that is not yet in a line of metrics.
    copied: bool,
    /// Checkpoints that could not be saved and are not yet in a line of metrics.
    failed_saves: u32,
    /// What to type to go on with it.
    command: String,
}

impl Run {
    /// Everything before the first step: what can be refused is refused before what takes long is begun.
    fn begin(args: &TrainArgs) -> Result<Self, Failure> {
        let mut resolved = Recipe::load(&args.recipe, &args.overrides).map_err(Failure::Recipe)?;
        let watch = Watch::begin();
        let inputs = Inputs::read(&resolved)?;
        for note in resolved.notes().iter().chain(&inputs.notes) {
            watch.say(&format!("note: {note}"));
        }
        if let Some(warning) = &inputs.learns.warning {
            watch.say(&format!("warning: {warning}"));
        }
        begin::check_mesh(&resolved, &inputs.model)?;
        let run_dir =
            RunDir::create(&resolved.recipe().run.dir, args.resume).map_err(of_run_dir)?;
        let earlier = if args.resume {
            resume::reconcile(&mut resolved, &run_dir)?
        } else {
            None
        };
        begin::settle_compute_dtype(&mut resolved, &inputs.model);

        let (trainer, stored) = begin::trainer(&resolved, inputs, &watch)?;
        watch.device(trainer.engine().device_wait());
        let mut run = Self {
            resolved,
            run_dir,
            trainer,
            stored,
            watch,
            begun: false,
            copy_time: Duration::ZERO,
            copied: false,
            failed_saves: 0,
            command: resume::command(args),
        };
        run.go_on_from(earlier.as_deref())?;
        run.run_dir
            .write_config(&run.resolved.to_toml())
            .map_err(of_run_dir)?;
        run.compile()?;
        Ok(run)
    }

    /// Takes over a checkpoint, and takes off what was recorded after it.
    fn go_on_from(&mut self, earlier: Option<&Path>) -> Result<(), Failure> {
        if let Some(path) = earlier {
            self.trainer
                .restore(path)
                .map_err(|error| resume::failed_restore(error, path))?;
        }
        let done = self.trainer.completed();
        let recorded = self.run_dir.rewind(done).map_err(of_run_dir)?;
        self.begun = recorded.is_some();
        let recorded = recorded.unwrap_or(0);
        if recorded < done {
            return Err(Failure::failed(anyhow::anyhow!(
                "the checkpoint is of step {done}, but {} ends with step {recorded}: restore that file, or start a new run",
                self.run_dir.path().join("metrics.jsonl").display()
            )));
        }
        self.check_samples(done)?;
        if let Some(path) = earlier {
            self.watch.say(&format!(
                "resume   after step {done}, from {}",
                path.display()
            ));
        }
        Ok(())
    }

    /// Refuses to go on behind answers of the last step that are not there any more.
    fn check_samples(&self, done: u64) -> Result<(), Failure> {
        if done == 0 || self.trainer.plan().phase(done) == Phase::Warmup {
            return Ok(());
        }
        let rl = &self.resolved.recipe().rl;
        let wanted = rl.prompts_per_step * rl.group_size;
        let found = self.run_dir.sample_count(done).map_err(of_run_dir)?;
        if found >= wanted {
            return Ok(());
        }
        Err(Failure::failed(anyhow::anyhow!(
            "the checkpoint is of step {done}, but {} has {found} of its {wanted} answers: restore that file, or start a new run",
            self.run_dir.path().join("samples.jsonl").display()
        )))
    }

    /// Compiles the steps, and refuses what does not fit into memory.
    fn compile(&mut self) -> Result<(), Failure> {
        if self.trainer.is_done() {
            return Ok(());
        }
        let packing = &self.resolved.recipe().packing;
        let (rows, width) = (packing.rows_per_micro_batch, packing.row_tokens);
        let cure = "lower packing.row_tokens or packing.rows_per_micro_batch";
        crate::machine::check_rows(self.trainer.engine().model(), rows, width, cure)?;
        self.watch.busy("compiling the training step");
        self.trainer.compile().or_fail()?;
        self.say_compiled();
        begin::check_memory(&self.trainer, self.resolved.recipe())?;
        self.watch
            .steps(self.trainer.completed(), self.trainer.plan().total_steps());
        Ok(())
    }

    /// Says what was compiled, and for rows of which shape.
    fn say_compiled(&mut self) {
        for it in self.trainer.take_compiled() {
            self.watch.say(&compiled_line(&it));
        }
    }

    /// Measures what the run begins with, so that there is something to compare the end with.
    fn measure_beginning(&mut self) -> Result<(), Failure> {
        let plan = self.trainer.plan();
        if self.begun || self.trainer.completed() > 0 || !plan.evaluates_after(0) {
            return Ok(());
        }
        let watch = &self.watch;
        let value = self
            .trainer
            .evaluate(&mut |activity| watch.activity(0, activity))
            .or_fail()?;
        let mut line = StepMetrics::new(0, plan.phase(1));
        line.set("eval/pass@1", value);
        self.run_dir.record_metrics(&line).map_err(of_run_dir)?;
        self.watch
            .say(&format!("before step 1  held-out pass@1 {value:.3}"));
        Ok(())
    }

    fn steps(&mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        self.measure_beginning()?;
        while !self.trainer.is_done() {
            if interrupt.requested() {
                return self.stop();
            }
            let step = self.trainer.completed() + 1;
            let watch = &self.watch;
            let report = self
                .trainer
                .step(&mut |activity| watch.activity(step, activity))
                .with_context(|| format!("step {step} failed"))
                .map_err(|error| self.failed(error))?;
            self.record(&report).map_err(of_run_dir)?;
            self.watch.step(&report);
            self.say_compiled();
            let every = self.resolved.recipe().checkpoint.every_steps as u64;
            if self.trainer.is_done() || (every > 0 && step.is_multiple_of(every)) {
                self.checkpoint()?;
            }
        }
        self.await_saved()
    }

    fn record(&mut self, report: &StepReport) -> Result<(), RunDirError> {
        let samples: Vec<Sample<'_>> = report
            .samples
            .iter()
            .map(|it| Sample {
                step: report.step,
                prompt: &it.prompt,
                answer: &it.answer,
                expected: &it.expected,
                reward: it.reward,
                advantage: it.advantage,
                logprobs: &it.logprobs,
            })
            .collect();
        self.run_dir.record_samples(&samples)?;
        let mut line = StepMetrics::new(report.step, report.phase);
        for (name, value) in &report.metrics {
            line.set(name, value.clone());
        }
        if !self.trainer.is_saving() {
            self.note_saved();
        }
        if std::mem::take(&mut self.copied) {
            line.set("checkpoint/copy_seconds", self.copy_time.as_secs_f64());
        }
        if self.failed_saves > 0 {
            line.set("checkpoint/failed", std::mem::take(&mut self.failed_saves));
        }
        self.run_dir.record_metrics(&line)
    }

    /// Ends early at the user's wish, so that the run can go on later.
    fn stop(&mut self) -> Result<(), Failure> {
        let step = self.trainer.completed();
        let saved = self.run_dir.checkpoints().join(format!("step-{step}"));
        if step == 0 {
            let text = format!(
                "stopped before the first step; start again with: {}",
                self.command
            );
            return Err(Failure::Interrupted(text));
        }
        self.note_saved();
        if !saved.exists() {
            self.checkpoint()?;
            self.await_saved()?;
        }
        self.watch.end();
        Err(Failure::Interrupted(format!(
            "stopped after step {step}; go on with: {}",
            self.command
        )))
    }

    /// A failure of a step, with the way back.
    fn failed(&self, error: anyhow::Error) -> Failure {
        self.watch.end();
        match checkpoint::latest(&self.run_dir.checkpoints()) {
            Ok(Some(path)) => Failure::failed(anyhow::anyhow!(
                "{}; the newest checkpoint is {}: go on from it with: {}",
                crate::failure::chain(&error),
                path.display(),
                self.command
            )),
            _ => Failure::failed(error),
        }
    }

    /// The trained model and the report.
    fn finish(&mut self) -> Result<(), Failure> {
        self.watch.busy("writing the model");
        let recipe = self.resolved.recipe();
        let engine = self.trainer.engine();
        let (what, folder) = if let Trains::Adapters(lora) = engine.trains() {
            let folder = self.run_dir.adapter();
            let specs = engine.model().adapter_params(lora).or_fail()?;
            let with_array = |spec: ParamSpec| {
                let array = engine.param_to_host(&spec.path)?;
                Ok((spec, array))
            };
            let adapters: Result<Vec<_>, Error> = specs.into_iter().map(with_array).collect();
            let base = recipe.model.path.display().to_string();
            save_adapter(&folder, engine.model(), lora, &adapters.or_fail()?, &base).or_fail()?;
            ("trained adapters", folder)
        } else {
            let folder = self.run_dir.model();
            let dtype = self.stored.unwrap_or(DType::F32);
            let source = Some(recipe.model.path.as_path());
            engine.save_model(&folder, dtype, source).or_fail()?;
            ("trained model", folder)
        };
        let report = self
            .run_dir
            .write_report(&recipe.run.name)
            .map_err(of_run_dir)?;
        self.watch.end();
        self.watch.say(&format!("{what}: {}", folder.display()));
        self.watch.say(&format!("report: {}", report.display()));
        Ok(())
    }
}

/// `compiled step_policy for 4 x 512 tokens: 3.2 s`
fn compiled_line(it: &Compiled) -> String {
    let shape = it.shape.map_or_else(String::new, |[rows, width]| {
        format!(" for {rows} x {width} tokens")
    });
    let cached = if it.from_cache {
        ", from the cache"
    } else {
        ""
    };
    let seconds = it.time.as_secs_f64();
    format!("compiled {}{shape}: {seconds:.1} s{cached}", it.program)
}

fn of_run_dir(error: RunDirError) -> Failure {
    if error.is_configuration() {
        Failure::refused(error)
    } else {
        Failure::failed(error)
    }
}

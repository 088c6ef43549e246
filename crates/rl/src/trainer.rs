//! The run as a state machine: every call of [`Trainer::step`] does one step, and what it does follows from a small state.
//!
//! That state is plain data: steps done, tokens seen, places in the data. Random draws are functions of the
//! seed and of what they are for, so there is nothing else to remember, and a run that goes on from a checkpoint repeats
//! the metrics of one that never stopped. Saving and restoring is in `checkpoint.rs`. Not here: files, signals.

use std::time::Instant;

use ferrotune_batch::{Aggregation, Trajectory};
use ferrotune_engine::{Compiled, Engine, Loss, Skipped, UpdateReport};
use ferrotune_pjrt::MemoryStats;
use ferrotune_rollout as rollout;
use serde_json::{Map, Value};

use crate::answers::{Answers, Asked, answer_text};
use crate::error::{Error, Result};
use crate::loss::policy_gradient;
use crate::order::Sampler as Order;
use crate::plan::{Phase, Plan, Reinforcement};
use crate::problems::RunData;
use crate::report;
use crate::seeds::{Stream, stream_seed};
use crate::update::{OptimizerBatch, compile, update};

/// After so many updates in a row without a finite gradient the run has failed.
const HOPELESS: u32 = 10;

/// What a step is busy with, for whoever watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Answers of the training problems.
    Sampling {
        /// Answers that are finished.
        done: usize,
        /// Answers of the step.
        total: usize,
    },
    /// An update.
    Updating {
        /// What it learns from.
        micro_batches: usize,
    },
    /// Answers of the held-out problems.
    Evaluating {
        /// Answers that are finished.
        done: usize,
        /// Problems.
        total: usize,
    },
}

/// One sampled answer.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledAnswer {
    /// The problem's prompt.
    pub prompt: String,
    /// What the model wrote, without the token that ends it.
    pub answer: String,
    /// The problem's own answer.
    pub expected: String,
    /// From the checker.
    pub reward: f32,
    /// Against its group.
    pub advantage: f32,
    /// Of each token, the one that ends it included, under the distribution that it was drawn from.
    pub logprobs: Vec<f32>,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// Its phase.
    pub phase: Phase,
    /// Its metrics by name; `null` where one is not defined. All but `step_time` are functions of the recipe.
    pub metrics: Map<String, Value>,
    /// Every answer that was sampled for it.
    pub samples: Vec<SampledAnswer>,
    /// Tokens that it learned from, prompts included.
    pub tokens: usize,
    /// Its time without evaluation.
    pub seconds: f64,
    /// Share of held-out problems that are solved greedily after it, if that was measured.
    pub pass_at_1: Option<f64>,
}

/// A run in progress.
pub struct Trainer {
    pub(crate) engine: Engine,
    sampler: rollout::Sampler,
    pub(crate) plan: Plan,
    pub(crate) data: RunData,
    imitation: Loss,
    policy: Option<Loss>,
    pub(crate) demonstrations: Option<Order>,
    pub(crate) problems: Order,
    pub(crate) completed: u64,
    pub(crate) num_tokens: u64,
    pub(crate) failed_updates: u32,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("completed", &self.completed)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Trainer {
    /// A run that has not begun.
    ///
    /// # Errors
    /// [`Error::NoDemonstrations`] if the plan has a warm-up and the data has nothing for it.
    pub fn new(
        engine: Engine,
        sampler: rollout::Sampler,
        plan: Plan,
        mut data: RunData,
    ) -> Result<Self> {
        if let Some(per_token) = engine.experts_per_token() {
            // No sampler has read the demonstrations: their tokens go where the router says.
            let free = |it: Trajectory| it.with_expert_ids(per_token, &[]);
            data.demonstrations = data.demonstrations.into_iter().map(free).collect();
        }
        let demonstrations = match (&plan.warmup, data.demonstrations.len()) {
            (None, _) => None,
            (Some(_), 0) => return Err(Error::NoDemonstrations),
            (Some(_), count) => Some(Order::new(
                count,
                stream_seed(plan.seed, Stream::Demonstrations),
            )),
        };
        let count = data.train.problems().len();
        Ok(Self {
            problems: Order::new(count, stream_seed(plan.seed, Stream::Problems)),
            demonstrations,
            imitation: Loss::cross_entropy(),
            policy: plan.grpo.as_ref().map(|it| policy_gradient(it.clip)),
            engine,
            sampler,
            plan,
            data,
            completed: 0,
            num_tokens: 0,
            failed_updates: 0,
        })
    }

    /// Compiles what the steps run, so that the first is not slower than the others.
    ///
    /// # Errors
    /// What the device says of it.
    pub fn compile(&mut self) -> Result<()> {
        let warmup = (Phase::Warmup, Some(&self.imitation));
        let warmup = Some(warmup).filter(|_| self.completed < self.plan.warmup_steps());
        for (phase, loss) in warmup
            .into_iter()
            .chain([(Phase::Grpo, self.policy.as_ref())])
        {
            if let Some(loss) = loss {
                compile(&mut self.engine, &self.plan, phase, loss)?;
            }
        }
        Ok(())
    }

    /// What of the steps was compiled since this was asked last.
    pub fn take_compiled(&mut self) -> Vec<Compiled> {
        self.engine.take_compiled()
    }

    /// Name and per-device memory of every program that is compiled so far.
    pub fn program_memory(&self) -> Vec<(String, MemoryStats)> {
        let sampler = self.sampler.programs();
        let sampler = sampler
            .into_iter()
            .map(|it| (it.name().to_owned(), it.memory()));
        self.engine
            .program_memory()
            .into_iter()
            .chain(sampler)
            .collect()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The model and its optimizer.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Steps done.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether there is no step left.
    pub fn is_done(&self) -> bool {
        self.completed >= self.plan.total_steps()
    }

    /// Does the next step.
    ///
    /// # Errors
    /// A failure of the device; [`Error::Diverged`]. The run cannot go on after one, but from a checkpoint.
    ///
    /// # Panics
    /// If [`Trainer::is_done`].
    pub fn step(&mut self, watch: &mut dyn FnMut(Activity)) -> Result<StepReport> {
        assert!(!self.is_done(), "the run has no step left");
        let step = self.completed + 1;
        let phase = self.plan.phase(step);
        let begun = Instant::now();
        let (mut metrics, samples, tokens) = match phase {
            Phase::Warmup => self.imitate(step, watch)?,
            Phase::Grpo => self.reinforce(step, watch)?,
        };
        self.num_tokens += tokens as u64;
        metrics.insert("num_tokens".to_owned(), self.num_tokens.into());
        let seconds = begun.elapsed().as_secs_f64();
        metrics.insert("step_time".to_owned(), seconds.into());
        let mut pass_at_1 = None;
        if self.plan.evaluates_after(step) {
            let value = self.evaluate(watch)?;
            metrics.insert("eval/pass@1".to_owned(), value.into());
            pass_at_1 = Some(value);
        }
        self.completed = step;
        Ok(StepReport {
            step,
            phase,
            metrics,
            samples,
            tokens,
            seconds,
            pass_at_1,
        })
    }

    /// Supervised learning on the next demonstrations.
    fn imitate(&mut self, step: u64, watch: &mut dyn FnMut(Activity)) -> Result<Done> {
        let (Some(warmup), Some(order)) = (&self.plan.warmup, &mut self.demonstrations) else {
            unreachable!("a step of the warm-up without one");
        };
        let rate = warmup.schedule.rate(step - 1);
        let batch: Vec<Trajectory> = order
            .next_batch(warmup.batch_size)
            .into_iter()
            .map(|index| self.data.demonstrations[index].clone())
            .collect();
        let pending = update(
            &mut self.engine,
            &self.plan,
            OptimizerBatch {
                trajectories: &batch,
                aggregation: Aggregation::TokenMean,
                phase: Phase::Warmup,
                loss: &self.imitation,
                rate,
            },
            watch,
        )?;
        let reports = [pending.read()?];
        self.count_failures(step, &reports)?;
        let tokens = batch.iter().map(Trajectory::len).sum();
        Ok((report::imitation(&reports, rate), Vec::new(), tokens))
    }

    /// Samples answers to the next problems, and makes the better ones likelier.
    fn reinforce(&mut self, step: u64, watch: &mut dyn FnMut(Activity)) -> Result<Done> {
        let Some(grpo) = self.plan.grpo.clone() else {
            unreachable!("a step of reinforcement without one");
        };
        if step == self.plan.warmup_steps() + 1 && step > 1 {
            // Moments of the warm-up say nothing about this loss, and its second moments would throttle it.
            self.engine.reset_optimizer()?;
        }
        let rate = grpo.schedule.rate(step - 1 - self.plan.warmup_steps());
        let chosen = self.problems.next_batch(grpo.prompts_per_step);
        let answers = self.sample(step, &grpo, &chosen, watch)?;
        let batch = answers.trajectories(step);
        let size = batch.len() / grpo.updates_per_step;
        let mut pending = Vec::with_capacity(grpo.updates_per_step);
        for part in batch.chunks(size) {
            let policy = self
                .policy
                .as_ref()
                .expect("a plan with reinforcement has its loss");
            let part = OptimizerBatch {
                trajectories: part,
                aggregation: grpo.aggregation,
                phase: Phase::Grpo,
                loss: policy,
                rate,
            };
            pending.push(update(&mut self.engine, &self.plan, part, watch)?);
        }
        let reports: Vec<UpdateReport> = pending
            .into_iter()
            .map(|it| it.read())
            .collect::<Result<_, _>>()?;
        self.count_failures(step, &reports)?;
        let mut metrics = report::policy(&reports, rate);
        metrics.extend(answers.metrics());
        let tokens = batch.iter().map(Trajectory::len).sum();
        Ok((metrics, answers.into_samples(), tokens))
    }

    fn sample(
        &self,
        step: u64,
        grpo: &Reinforcement,
        chosen: &[usize],
        watch: &mut dyn FnMut(Activity),
    ) -> Result<Answers> {
        let asked = Asked {
            problems: &self.data.train,
            chosen,
            group_size: grpo.group_size,
        };
        let requests = asked.requests(self.plan.seed, step, &self.plan.request);
        let completions = self.answers(&requests, &mut |done, total| {
            watch(Activity::Sampling { done, total })
        })?;
        Answers::judge(
            &asked,
            completions,
            &self.plan.request,
            &self.data.tokenizer,
            self.plan.checker,
            grpo.estimator,
        )
    }

    /// What the policy answers as it is now.
    fn answers(
        &self,
        requests: &[rollout::Request],
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<rollout::Completion>> {
        let weights = self.sampler.weights(&self.engine.weights()?)?;
        Ok(self.sampler.generate(&weights, requests, on_progress)?)
    }

    /// The share of held-out problems that the most likely answer solves.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn evaluate(&self, watch: &mut dyn FnMut(Activity)) -> Result<f64> {
        let heldout = &self.data.heldout;
        let requests: Vec<rollout::Request> = heldout
            .prompts()
            .iter()
            .map(|prompt| rollout::Request {
                prompt: prompt.clone(),
                temperature: 0.0,
                ..self.plan.request.clone()
            })
            .collect();
        let completions = self.answers(&requests, &mut |done, total| {
            watch(Activity::Evaluating { done, total })
        })?;
        let mut solved = 0.0;
        for (problem, completion) in heldout.problems().iter().zip(&completions) {
            let strings = &self.plan.request.stop_strings;
            let answer = answer_text(&self.data.tokenizer, completion, strings)?;
            solved += f64::from(self.plan.checker.score(problem, &answer));
        }
        Ok(solved / requests.len() as f64)
    }

    fn count_failures(&mut self, step: u64, reports: &[UpdateReport]) -> Result<()> {
        for report in reports {
            self.failed_updates = if report.skipped == Some(Skipped::NotFinite) {
                self.failed_updates + 1
            } else {
                0
            };
            if self.failed_updates >= HOPELESS {
                return Err(Error::Diverged {
                    updates: self.failed_updates,
                    step,
                });
            }
        }
        Ok(())
    }
}

/// Metrics, samples and number of tokens of a step.
type Done = (Map<String, Value>, Vec<SampledAnswer>, usize);

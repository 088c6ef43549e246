//! The engine: state on the devices, and the calls that an orchestrator makes.

mod config;
mod division;
mod export;
mod reading;
mod report;
mod saving;
mod shapes;
mod state;
mod train;
mod waiting;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use ferrotune_batch::{Field, Rows};
use ferrotune_graph::{HostArray, Mesh, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;
use ferrotune_pjrt::{Client, Memory};
use ferrotune_program::{Argument, Group, Layout, Leaf, Program};

pub use config::{EngineConfig, Offload, RouterSettings, Trains};
use division::Division;
pub(crate) use division::fits;
pub use report::{Kept, Pending, Scores, Skipped, UpdateReport};
pub use shapes::Compiled;
use shapes::Shapes;
pub use waiting::{Awaited, DeviceWait};

use crate::batch::{self, Wanted};
use crate::checkpoint::Writer;
use crate::data_shards::{DataShards, ShardOverData};
use crate::error::Error;
use crate::loss::Loss;
use crate::optimizer;
use crate::order::TokenOrder;
use crate::scaling;
use crate::step::{self, GradientProgram, ScoreProgram, Site, StepProgram, UpdateProgram};

/// Name of the loss, rows, width, and whether the program adds to an accumulation.
type GradientKey = (String, usize, usize, bool);

/// Rows, width, and whether the program is told of filters.
type ScoreKey = (usize, usize, bool);

/// Name of the loss, rows, width, and how many micro-batches there may be.
type StepKey = (String, usize, usize, usize);

struct Accumulation {
    loss: String,
    gradients: Group,
    metrics: Group,
}

/// A model in training.
pub struct Engine {
    client: Client,
    mesh: Mesh,
    rules: Rules,
    model: ModelConfig,
    config: EngineConfig,
    division: Division,
    param_layout: Layout,
    frozen_layout: Layout,
    state_layout: Layout,
    scaling_layout: Layout,
    accumulator_layout: Layout,
    /// The parameters that learn, split as what the optimizer keeps of them.
    parts_layout: Layout,
    data: DataShards,
    order: TokenOrder,
    /// `None` after a program that took it failed.
    params: Option<Group>,
    frozen: Group,
    /// Of the frozen parameters' values.
    fingerprint: Option<String>,
    /// At rest where [`EngineConfig::offload`] says.
    state: Option<Group>,
    /// Histories of 8-bit products, after the last micro-batch.
    scaling: Group,
    accumulation: Option<Accumulation>,
    /// Losses of what may still be running, oldest first.
    inflight: VecDeque<(Awaited, Group)>,
    /// Micro-batches handed to the device.
    micro_batches: u64,
    waited: Duration,
    device_wait: DeviceWait,
    shapes: Shapes,
    writer: Writer,
    gradient_programs: HashMap<GradientKey, GradientProgram>,
    evaluation_programs: HashMap<(String, usize, usize), GradientProgram>,
    score_programs: HashMap<ScoreKey, ScoreProgram>,
    step_programs: BTreeMap<StepKey, StepProgram>,
    snapshot_program: Option<Program>,
    update_program: Option<UpdateProgram>,
    step: u64,
}

impl Engine {
    /// Places parameters on the devices, with zero moments: those of [`ModelConfig::params`] in that order, then those of
    /// [`ModelConfig::adapter_params`] if adapters are trained.
    ///
    /// # Errors
    /// Parameters that are not those of the model, that the mesh does not divide, or that do not fit on the devices; patterns
    /// that fit no parameter, or all of them; [`Error::NotOverData`], [`Error::RowOrder`].
    pub fn new(
        client: &Client,
        mesh: &Mesh,
        rules: &Rules,
        model: ModelConfig,
        config: EngineConfig,
        params: &[(ParamSpec, HostArray)],
    ) -> Result<Self, Error> {
        let division = Division::of(&model, &config.trains)?;
        config.router.check(&model)?;
        division.check_groups(&config.group_norms)?;
        division.check_given(params)?;
        let place = |specs: Vec<&ParamSpec>| {
            let leaves: Vec<Leaf> = specs.into_iter().map(leaf).collect();
            Layout::new(mesh, rules, &leaves).map(|layout| (leaves, layout))
        };
        let (leaves, param_layout) = place(division.trained(division.specs()))?;
        let (_, frozen_layout) = place(division.frozen(division.specs()))?;
        let state_layout = Layout::new(
            mesh,
            rules,
            &optimizer::state_leaves(&config.optimizer, &leaves),
        )?;
        let scaling_layout = Layout::new(
            mesh,
            rules,
            &scaling::leaves(division.specs(), config.fp8_history),
        )?;
        let shards = DataShards::of(mesh, rules, &[&param_layout, &frozen_layout]);
        let split = match config.shard_over_data {
            ShardOverData::Nothing => &[],
            _ if shards.axes().is_empty() => return Err(Error::NotOverData),
            ShardOverData::Moments | ShardOverData::MomentsAndGradients => shards.axes(),
        };
        let parts_layout = param_layout.split_further(split, |_| true);
        // The arrays of a parameter are called by their kind and its path; the others are small.
        let state_layout = state_layout.split_further(split, |spec| spec.name.contains('/'));
        let (data, accumulator_layout) = match config.shard_over_data {
            ShardOverData::MomentsAndGradients => (DataShards::default(), parts_layout.clone()),
            ShardOverData::Nothing | ShardOverData::Moments => {
                let layout = shards.accumulators(&param_layout);
                (shards, layout)
            }
        };
        let arrays: Vec<&HostArray> = params.iter().map(|(_, array)| array).collect();
        let upload = |layout: &Layout, arrays: Vec<&&HostArray>| {
            let host: Vec<HostArray> = arrays.into_iter().copied().cloned().collect();
            Group::upload(client, layout, &host)
        };
        Ok(Self {
            params: Some(upload(&param_layout, division.trained(&arrays))?),
            frozen: upload(&frozen_layout, division.frozen(&arrays))?,
            fingerprint: division.fingerprint(&arrays),
            state: Some(zeros(client, &state_layout)?.moved_to(config.offload.rest())?),
            scaling: zeros(client, &scaling_layout)?,
            client: client.clone(),
            mesh: mesh.clone(),
            rules: rules.clone(),
            order: TokenOrder::new(config.order, mesh, rules, &model)?,
            model,
            shapes: Shapes::new(config.max_shapes),
            config,
            division,
            param_layout,
            frozen_layout,
            state_layout,
            scaling_layout,
            accumulator_layout,
            parts_layout,
            data,
            accumulation: None,
            inflight: VecDeque::new(),
            micro_batches: 0,
            waited: Duration::ZERO,
            device_wait: DeviceWait::default(),
            writer: Writer::default(),
            gradient_programs: HashMap::new(),
            evaluation_programs: HashMap::new(),
            score_programs: HashMap::new(),
            step_programs: BTreeMap::new(),
            snapshot_program: None,
            update_program: None,
            step: 0,
        })
    }

    fn site(&self) -> Site<'_> {
        Site {
            client: &self.client,
            mesh: &self.mesh,
            rules: &self.rules,
            model: &self.model,
            config: &self.config,
            params: &self.param_layout,
            frozen: &self.frozen_layout,
            scaling: &self.scaling_layout,
            state: &self.state_layout,
            accumulators: &self.accumulator_layout,
            parts: &self.parts_layout,
            data: &self.data,
            order: self.order,
        }
    }

    /// How many experts rows must name of each token, −1 where the router is free, if [`RouterSettings::replay`] is on.
    pub fn experts_per_token(&self) -> Option<usize> {
        let replayed = self.site().replayed()?;
        Some(replayed.layers * replayed.top_k)
    }

    /// What a program with these fields reads of rows, for a loss or for whoever else is named.
    fn wanted<'a>(&self, reader: &'a str, fields: &'a [Field]) -> Wanted<'a> {
        Wanted {
            fields,
            reader,
            vocabulary: self.model.vocab_size,
            longest: self.model.rotary.longest(),
            experts: self.site().replayed(),
            order: self.order,
        }
    }

    /// Compiles the programs of a step ahead of time; otherwise they are compiled when first used.
    ///
    /// # Errors
    /// A batch that the mesh does not divide, or what the plugin says.
    pub fn compile(&mut self, rows: usize, width: usize, loss: &Loss) -> Result<(), Error> {
        self.gradient_program(rows, width, loss, false)?;
        self.gradient_program(rows, width, loss, true)?;
        if self.update_program.is_none() {
            self.update_program = Some(self.compiled_update()?);
        }
        Ok(())
    }

    fn compiled_update(&mut self) -> Result<UpdateProgram, Error> {
        let begun = Instant::now();
        let update = step::update_program(&self.site())?;
        self.shapes.add(&update.program, None, begun.elapsed());
        Ok(update)
    }

    /// What was compiled since this was asked last: for each new shape of rows its programs, once.
    pub fn take_compiled(&mut self) -> Vec<Compiled> {
        self.shapes.take()
    }

    /// Says, also from another thread, what the host is waiting for.
    pub fn device_wait(&self) -> DeviceWait {
        self.device_wait.clone()
    }

    fn gradient_program(
        &mut self,
        rows: usize,
        width: usize,
        loss: &Loss,
        adds: bool,
    ) -> Result<GradientKey, Error> {
        let key = (loss.name.clone(), rows, width, adds);
        if !self.gradient_programs.contains_key(&key) {
            let (shape, begun) = ([rows, width], Instant::now());
            self.shapes.check(shape)?;
            let program = step::gradient_program(&self.site(), loss, rows, width, adds)?;
            self.shapes
                .add(&program.program, Some(shape), begun.elapsed());
            self.gradient_programs.insert(key.clone(), program);
        }
        Ok(key)
    }

    /// Adds the gradient of a loss over rows to the accumulation. Returns before the device is done, but never runs more than
    /// [`EngineConfig::max_inflight`] micro-batches ahead of it.
    ///
    /// # Errors
    /// Rows without a field that the loss reads or with a token outside of the vocabulary, an accumulation of another loss,
    /// a loss that the single pass of the head cannot form, one shape of rows more than [`EngineConfig::max_shapes`],
    /// or a failure of the device. On failures of the rows the accumulation is unchanged.
    pub fn forward_backward(&mut self, rows: &Rows, loss: &Loss) -> Result<(), Error> {
        if let Some(a) = self.accumulation.as_ref().filter(|a| a.loss != loss.name) {
            return Err(Error::MixedLosses {
                accumulating: a.loss.clone(),
                given: loss.name.clone(),
            });
        }
        let key = self.gradient_program(
            rows.row_count(),
            rows.width(),
            loss,
            self.accumulation.is_some(),
        )?;
        let gradient = &self.gradient_programs[&key];
        let wanted = self.wanted(&loss.name, &gradient.fields);
        let rows = std::slice::from_ref(rows);
        let (batch, _) = batch::upload(&self.client, &gradient.rows, rows, &wanted)?;
        let params = self.params.as_ref().ok_or(Error::StateLost)?;
        let mut arguments = vec![
            Argument::Borrowed(params),
            Argument::Borrowed(&self.frozen),
            Argument::Borrowed(&batch),
            Argument::Borrowed(&self.scaling),
        ];
        if let Some(a) = self.accumulation.take() {
            arguments.extend([Argument::Moved(a.gradients), Argument::Moved(a.metrics)]);
        }
        let results = gradient.program.call(arguments)?;
        let [gradients, metrics, loss_of_rows, scaling] =
            <[Group; 4]>::try_from(results).expect("the program has four groups of results");
        self.scaling = scaling;
        self.accumulation = Some(Accumulation {
            loss: loss.name.clone(),
            gradients,
            metrics,
        });
        self.micro_batches += 1;
        self.keep_pace(Awaited::MicroBatch(self.micro_batches), loss_of_rows)
    }

    /// Updates the parameters from the accumulated gradient and empties the accumulation. Returns before the device is done.
    ///
    /// # Errors
    /// [`Error::NoGradient`] without an accumulation, or a failure of the device.
    pub fn update(&mut self, learning_rate: f64) -> Result<Pending, Error> {
        if self.params.is_none() || self.state.is_none() {
            return Err(Error::StateLost);
        }
        let Accumulation {
            gradients, metrics, ..
        } = self.accumulation.take().ok_or(Error::NoGradient)?;
        let update = match self.update_program.take() {
            Some(update) => update,
            None => self.compiled_update()?,
        };
        let rate = self.scalars(&update.rate, &[learning_rate as f32])?;
        let (Some(params), Some(state)) = (self.params.take(), self.state.take()) else {
            return Err(Error::StateLost);
        };
        let state = state.moved_to(Memory::Device)?;
        let results = update.program.call(vec![
            Argument::Moved(params),
            Argument::Moved(state),
            Argument::Moved(gradients),
            Argument::Borrowed(&rate),
        ]);
        self.update_program = Some(update);
        let [params, state, report] =
            <[Group; 3]>::try_from(results?).expect("the update has three groups of results");
        let state = state.moved_to(self.config.offload.rest())?;
        Ok(self.advanced(params, state, (report, metrics)))
    }

    /// Drops the accumulation.
    pub fn abandon(&mut self) {
        self.accumulation = None;
    }

    /// Forgets the moments and the number of updates that they were gathered over, as if the optimizer were new.
    ///
    /// # Errors
    /// A failure of the device.
    pub fn reset_optimizer(&mut self) -> Result<(), Error> {
        let zeros = zeros(&self.client, &self.state_layout)?;
        self.state = Some(zeros.moved_to(self.config.offload.rest())?);
        Ok(())
    }
}

fn leaf(spec: &ParamSpec) -> Leaf {
    Leaf {
        name: spec.path.clone(),
        dtype: spec.dtype,
        dims: spec.dims.clone(),
        axes: spec.axes.clone(),
    }
}

fn zeros(client: &Client, layout: &Layout) -> Result<Group, Error> {
    let zeros: Vec<HostArray> = layout
        .specs()
        .iter()
        .map(|s| HostArray::zeros(s.dtype, &s.dims))
        .collect();
    Ok(Group::upload(client, layout, &zeros)?)
}

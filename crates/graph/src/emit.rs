//! From nodes to StableHLO text.
//!
//! Emission starts from the outputs: what they do not need never reaches XLA. Values that a loop body computes from
//! nothing but outer values are written before the loop, unless that would blow them up. Constants are written where they
//! are used. Every argument and result carries a closed Shardy sharding, and every line the scope it was traced in.

mod lower;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::rc::Rc;

use ferrotune_pjrt::{Kernel, Platform, Sharding};

pub use lower::{Lowered, Output};

use crate::arena::{Arena, NodeId, RegionId, Value};
use crate::literal::quoted;
use crate::liveness::Live;
use crate::op::Site;
use crate::tensor_type::TensorType;

/// Text under construction, and what each value is called in it.
pub struct Emitter<'a> {
    arena: &'a Arena,
    platform: Platform,
    /// What was written differently for this platform, and how often.
    choices: BTreeMap<&'static str, usize>,
    kernels: Vec<&'static Kernel>,
    text: String,
    next: usize,
    /// Collectives written so far; each has a channel of its own.
    channels: usize,
    /// Axes along which the text is for one device: those of the manual regions that are open.
    manual_axes: Vec<String>,
    /// Values that are nothing but consecutive elements of another one.
    views: HashMap<String, View>,
    /// Names of values, one map per open block; constants are looked up in the innermost only.
    blocks: Vec<HashMap<Value, String>>,
    scope: Rc<str>,
}

/// Consecutive elements of a value.
#[derive(Clone)]
pub(crate) struct View {
    /// What the value is called, and its type.
    pub(crate) of: String,
    pub(crate) ty: TensorType,
    /// The first element.
    pub(crate) first: usize,
}

impl View {
    /// All elements of a value.
    pub(crate) fn whole(name: &str, ty: &TensorType) -> Self {
        Self {
            of: name.to_owned(),
            ty: ty.clone(),
            first: 0,
        }
    }
}

/// `[{"data", "fsdp"}, {}]`
pub(crate) fn sharding_dims(sharding: &Sharding) -> String {
    let dims: Vec<String> = sharding
        .dims
        .iter()
        .map(|axes| {
            let axes: Vec<String> = axes.iter().map(|a| quoted(a)).collect();
            format!("{{{}}}", axes.join(", "))
        })
        .collect();
    format!("[{}]", dims.join(", "))
}

impl<'a> Emitter<'a> {
    fn new(arena: &'a Arena, platform: Platform) -> Self {
        Self {
            arena,
            platform,
            choices: BTreeMap::new(),
            kernels: Vec::new(),
            text: String::new(),
            next: 0,
            channels: 0,
            manual_axes: Vec::new(),
            views: HashMap::new(),
            blocks: vec![HashMap::new()],
            scope: Rc::from(""),
        }
    }

    /// Devices of the program's mesh.
    pub fn device_count(&self) -> usize {
        self.arena.mesh.device_count()
    }

    /// Whether tensors are whole on each device here: there is one device, or all mesh axes are manual.
    pub fn is_local(&self) -> bool {
        let mut axes = self.arena.mesh.axes().iter();
        axes.all(|(name, size)| *size == 1 || self.manual_axes.contains(name))
    }

    /// Axes that are manual here.
    pub(crate) fn manual_axes(&self) -> &[String] {
        &self.manual_axes
    }

    /// Opens a region that is manual along these axes; returns those that were manual before, for [`Self::leave_manual`].
    pub(crate) fn enter_manual(&mut self, axes: &[String]) -> Vec<String> {
        let before = self.manual_axes.clone();
        self.manual_axes.extend_from_slice(axes);
        before
    }

    /// Closes it.
    pub(crate) fn leave_manual(&mut self, before: Vec<String>) {
        self.manual_axes = before;
    }

    /// The value that holds the elements of `name`, and where they begin in it. A reader that can say so need not wait for a
    /// copy of them.
    pub(crate) fn view(&self, name: &str, ty: &TensorType) -> View {
        let view = self.views.get(name).cloned();
        view.unwrap_or_else(|| View::whole(name, ty))
    }

    /// Records that `name` is the elements of `of` from number `first` on.
    pub(crate) fn is_view(&mut self, name: &str, of: &str, ty: &TensorType, first: usize) {
        let mut view = self.view(of, ty);
        view.first += first;
        self.views.insert(name.to_owned(), view);
    }

    /// The kind of device that the text is for.
    pub fn platform(&self) -> Platform {
        self.platform
    }

    /// Records, for dumps, that something was written in a form chosen for the platform.
    pub fn chose(&mut self, form: &'static str) {
        *self.choices.entry(form).or_default() += 1;
    }

    /// Records that the text calls a kernel.
    pub(crate) fn needs_kernel(&mut self, kernel: &'static Kernel) {
        // By identity: two kernels of one name are refused when the program is compiled.
        if !self
            .kernels
            .iter()
            .any(|known| std::ptr::eq(*known, kernel))
        {
            self.kernels.push(kernel);
        }
    }

    pub(crate) fn arena(&self) -> &'a Arena {
        self.arena
    }

    /// A name that is not taken yet.
    pub(crate) fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next - 1)
    }

    /// The handle of a channel that no other collective uses.
    pub(crate) fn channel(&mut self) -> String {
        self.channels += 1;
        format!(
            "channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>",
            self.channels
        )
    }

    /// Appends text as it is.
    pub(crate) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn location(&self) -> String {
        if self.scope.is_empty() {
            String::new()
        } else {
            format!(" loc({})", quoted(&self.scope))
        }
    }

    /// Writes a line with one result and returns the result's name.
    pub fn assign(&mut self, operation: String) -> String {
        let name = self.fresh();
        let location = self.location();
        let _ = writeln!(self.text, "{name} = {operation}{location}");
        name
    }

    /// Writes a line with `count` results and returns their names.
    pub fn assign_many(&mut self, count: usize, operation: String) -> Vec<String> {
        self.assign_many_with(count, operation, "")
    }

    /// The same with an inline region after the types.
    pub fn assign_many_with(
        &mut self,
        count: usize,
        operation: String,
        region: &str,
    ) -> Vec<String> {
        let name = self.fresh();
        let location = self.location();
        let bundle = if count == 1 {
            name.clone()
        } else {
            format!("{name}:{count}")
        };
        let _ = writeln!(self.text, "{bundle} = {operation}{region}{location}");
        bundle_names(&name, count)
    }

    /// Closes an operation that was begun with [`Self::raw`].
    pub(crate) fn close(&mut self, text: &str) {
        let location = self.location();
        let _ = writeln!(self.text, "{text}{location}");
    }

    pub(crate) fn open_block(&mut self) {
        self.blocks.push(HashMap::new());
    }

    pub(crate) fn close_block(&mut self) {
        self.blocks.pop();
    }

    pub(crate) fn bind(&mut self, value: Value, name: String) {
        self.blocks
            .last_mut()
            .expect("a block is open")
            .insert(value, name);
    }

    /// The name of a value that is already written, or of a constant, written now if the block has not got it.
    pub(crate) fn value(&mut self, value: Value) -> String {
        let node = &self.arena.nodes[value.node];
        if node.op.is_leaf() {
            if !self
                .blocks
                .last()
                .expect("a block is open")
                .contains_key(&value)
            {
                self.node(value.node, &[true]);
            }
            return self.blocks.last().expect("a block is open")[&value].clone();
        }
        match self.blocks.iter().rev().find_map(|block| block.get(&value)) {
            Some(name) => name.clone(),
            None => unreachable!(
                "value {value:?} ({}) is read before it is written",
                node.op.name()
            ),
        }
    }

    /// Writes one node.
    fn node(&mut self, id: NodeId, live_outputs: &[bool]) {
        let arena = self.arena;
        let node = &arena.nodes[id];
        let live_inputs = node.op.live_inputs(arena, live_outputs, node.inputs.len());
        let before = std::mem::replace(&mut self.scope, node.scope.clone());
        let inputs: Vec<String> = node
            .inputs
            .iter()
            .zip(live_inputs)
            .map(|(v, live)| if live { self.value(*v) } else { String::new() })
            .collect();
        let site = Site {
            inputs,
            input_types: node
                .inputs
                .iter()
                .map(|v| arena.value_type(*v).clone())
                .collect(),
            output_types: node.types.clone(),
            live_outputs: live_outputs.to_vec(),
        };
        let names = node.op.emit(self, &site);
        self.scope = before;
        debug_assert_eq!(
            names.len(),
            node.types.len(),
            "{} names its results",
            node.op.name()
        );
        for (output, name) in names
            .into_iter()
            .enumerate()
            .filter(|(i, _)| live_outputs[*i])
        {
            self.bind(Value { node: id, output }, name);
        }
    }

    /// Writes the live nodes of a region but for parameters, constants and `done`.
    pub(crate) fn region(&mut self, region: RegionId, live: &Live, done: &HashSet<NodeId>) {
        let arena = self.arena;
        let params: HashSet<NodeId> = arena.regions[region].params.iter().copied().collect();
        for id in &arena.regions[region].nodes {
            if let Some(outputs) = live.outputs(*id)
                && !params.contains(id)
                && !done.contains(id)
                && !arena.nodes[*id].op.is_leaf()
            {
                self.node(*id, outputs);
            }
        }
    }

    /// Writes a region where we stand, with these names for its parameters. Returns the names of its results, empty for
    /// those that nobody reads.
    pub(crate) fn inline(
        &mut self,
        region: RegionId,
        params: &[String],
        live: &Live,
        live_results: &[bool],
    ) -> Vec<String> {
        let arena = self.arena;
        self.open_block();
        for (param, name) in arena.regions[region].params.iter().zip(params) {
            self.bind(
                Value {
                    node: *param,
                    output: 0,
                },
                name.clone(),
            );
        }
        self.region(region, live, &HashSet::new());
        let results = arena.regions[region].results.iter().zip(live_results);
        let names = results
            .map(|(value, live)| {
                if *live {
                    self.value(*value)
                } else {
                    String::new()
                }
            })
            .collect();
        self.close_block();
        names
    }

    /// Writes, before a loop, the live nodes of its body that depend on captures only, and returns which they are.
    ///
    /// A node that would grow its operands (a broadcast) stays inside, where XLA fuses it into its reader.
    pub(crate) fn hoist(&mut self, body: RegionId, live: &Live) -> HashSet<NodeId> {
        let arena = self.arena;
        let region = &arena.regions[body];
        let mut outside: HashSet<NodeId> =
            region.params[region.declared..].iter().copied().collect();
        let mut hoisted = HashSet::new();
        for id in &region.nodes {
            let node = &arena.nodes[*id];
            let Some(outputs) = live.outputs(*id) else {
                continue;
            };
            if node.inputs.is_empty() || !node.op.regions().is_empty() {
                continue;
            }
            let known = |v: &Value| outside.contains(&v.node) || arena.nodes[v.node].op.is_leaf();
            let read: usize = node
                .inputs
                .iter()
                .map(|v| arena.value_type(*v).bytes())
                .sum();
            let written: usize = node.types.iter().map(TensorType::bytes).sum();
            if node.inputs.iter().all(known) && written <= read {
                self.node(*id, outputs);
                outside.insert(*id);
                hoisted.insert(*id);
            }
        }
        hoisted
    }
}

/// `%5#0`, `%5#1`, …, or `%5` alone.
pub(crate) fn bundle_names(name: &str, count: usize) -> Vec<String> {
    if count == 1 {
        vec![name.to_owned()]
    } else {
        (0..count).map(|i| format!("{name}#{i}")).collect()
    }
}

//! A whole program: its arguments, its results, and the module around its lines.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ferrotune_pjrt::{ArgSpec, ArraySpec, Module, Platform, Sharding};

use super::{Emitter, sharding_dims};
use crate::arena::{Arena, Graph, NodeId, Value};
use crate::literal::{quoted, symbol};
use crate::liveness::Live;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// A result of a program.
pub struct Output {
    /// Name, for dumps and messages.
    pub name: String,
    /// The value.
    pub tensor: Tensor,
    /// Where its parts live.
    pub sharding: Sharding,
    /// The argument whose memory it takes over. The argument is then donated: the caller gives it up.
    pub replaces: Option<Tensor>,
}

/// A program as text, and what was decided while writing it.
pub struct Lowered {
    /// What the compiler gets.
    pub module: Module,
    /// What was written differently for the platform, and how often.
    pub choices: BTreeMap<&'static str, usize>,
}

impl Graph {
    /// Writes the program with the given results, for one kind of device.
    ///
    /// A result that replaces an argument shares its memory; `donated` lists arguments whose memory XLA may use for
    /// anything.
    ///
    /// # Panics
    /// When a result replaces an argument of another type, two results replace one argument, or a result is not of the
    /// root region: mistakes of the tracing code.
    #[track_caller]
    pub fn lower(&self, platform: Platform, outputs: &[Output], donated: &[&Tensor]) -> Lowered {
        assert_eq!(
            self.current_region(),
            0,
            "a program is lowered outside of loop bodies"
        );
        for output in outputs {
            self.own_values(&[&output.tensor]);
            self.own_values(&output.replaces.iter().collect::<Vec<_>>());
        }
        self.own_values(donated);
        if cfg!(debug_assertions) {
            let faults = self.verify(outputs);
            assert!(
                faults.is_empty(),
                "program `{}`: {}",
                self.name(),
                faults.join("; ")
            );
        }
        let arena = self.0.borrow();
        let aliases = arena.aliases(outputs);
        let donors: HashSet<NodeId> = donated.iter().map(|t| t.value.node).collect();
        let values: Vec<Value> = outputs.iter().map(|o| o.tensor.value).collect();
        let live = Live::of(&arena, 0, &values);
        let mut out = Emitter::new(&arena, platform);
        let (args, signature) = out.arguments(&aliases, &donors);
        out.region(0, &live, &HashSet::new());
        let names: Vec<String> = values.iter().map(|v| out.value(*v)).collect();
        let module = Module {
            name: arena.name.clone(),
            text: arena.module_text(&signature, outputs, &names, &out.text),
            mesh: arena.mesh.clone(),
            args,
            results: arena.results(outputs),
            kernels: out.kernels,
        };
        Lowered {
            module,
            choices: out.choices,
        }
    }
}

impl Emitter<'_> {
    /// What the arguments of `main` are, and how its signature says so.
    fn arguments(
        &mut self,
        aliases: &HashMap<NodeId, usize>,
        donors: &HashSet<NodeId>,
    ) -> (Vec<ArgSpec>, Vec<String>) {
        let arena = self.arena;
        let mut args = Vec::new();
        let mut signature = Vec::new();
        for (i, input) in arena.inputs.iter().enumerate() {
            let name = format!("%arg{i}");
            let value = Value {
                node: input.node,
                output: 0,
            };
            let ty = arena.value_type(value);
            let donated = aliases.contains_key(&input.node) || donors.contains(&input.node);
            let mut attributes = vec![format!(
                "sdy.sharding = #sdy.sharding<@mesh, {}>",
                sharding_dims(&input.sharding)
            )];
            match aliases.get(&input.node) {
                Some(k) => attributes.push(format!("tf.aliasing_output = {k} : i32")),
                None if donated => attributes.push("jax.buffer_donor = true".to_owned()),
                None => {}
            }
            signature.push(format!("{name}: {ty} {{{}}}", attributes.join(", ")));
            self.bind(value, name);
            args.push(ArgSpec {
                spec: Arc::new(spec(&input.name, ty, &input.sharding)),
                donated,
            });
        }
        (args, signature)
    }
}

impl Arena {
    /// Which result takes over the memory of which argument.
    #[track_caller]
    fn aliases(&self, outputs: &[Output]) -> HashMap<NodeId, usize> {
        let mut aliases: HashMap<NodeId, usize> = HashMap::new();
        for (k, output) in outputs.iter().enumerate() {
            if let Some(argument) = &output.replaces {
                assert_eq!(
                    self.value_type(argument.value),
                    self.value_type(output.tensor.value),
                    "result `{}` cannot take over the memory of an argument of another type",
                    output.name
                );
                assert!(
                    aliases.insert(argument.value.node, k).is_none(),
                    "two results replace the argument of `{}`",
                    output.name
                );
            }
        }
        aliases
    }

    fn results(&self, outputs: &[Output]) -> Vec<Arc<ArraySpec>> {
        let result = |o: &Output| spec(&o.name, self.value_type(o.tensor.value), &o.sharding);
        outputs.iter().map(|o| Arc::new(result(o))).collect()
    }

    /// The module around the lines of `main`, whose results are called `names`.
    fn module_text(
        &self,
        signature: &[String],
        outputs: &[Output],
        names: &[String],
        body: &str,
    ) -> String {
        let types: Vec<String> = outputs
            .iter()
            .map(|o| self.value_type(o.tensor.value).to_string())
            .collect();
        let results: Vec<String> = outputs
            .iter()
            .zip(&types)
            .map(|(o, ty)| {
                format!(
                    "{ty} {{sdy.sharding = #sdy.sharding<@mesh, {}>}}",
                    sharding_dims(&o.sharding)
                )
            })
            .collect();
        let axes: Vec<String> = self
            .mesh
            .axes()
            .iter()
            .map(|(name, size)| format!("{}={size}", quoted(name)))
            .collect();
        let mesh = if axes.is_empty() {
            "<[\"device\"=1]>".to_owned()
        } else {
            format!("<[{}]>", axes.join(", "))
        };
        let end = if names.is_empty() {
            "return\n".to_owned()
        } else {
            format!("return {} : {}\n", names.join(", "), types.join(", "))
        };
        format!(
            "module @{} attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}} {{\nsdy.mesh @mesh = {mesh}\n\
             func.func public @main({}) -> ({}) {{\n{body}{end}}}\n}}\n",
            symbol(&self.name),
            self.mesh.device_count(),
            signature.join(", "),
            results.join(", "),
        )
    }
}

fn spec(name: &str, ty: &TensorType, sharding: &Sharding) -> ArraySpec {
    ArraySpec {
        name: name.to_owned(),
        dtype: ty.dtype,
        dims: ty.dims.clone(),
        sharding: sharding.clone(),
    }
}

//! Functions of a fixture model's weights and some arrays, compiled once each.

use std::path::PathBuf;
use std::sync::OnceLock;

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Policy, Rules, Tensor};
use ferrotune_models::{Decoder, ModelConfig};
use ferrotune_nn::{LOGICAL_AXES, ParamSpec, Params, QueryOrder, Sequence};
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf, Program};

pub(crate) const FAMILIES: [&str; 7] = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
];

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))
            .expect("the CPU plugin is needed for these tests");
        Client::cpu(&plugin, 1).expect("a CPU client")
    })
}

/// A fixture model with its weights.
pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) params: Vec<(ParamSpec, HostArray)>,
}

impl Model {
    pub(crate) fn load(family: &str) -> Self {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/hf")
            .join(family);
        let config = ModelConfig::load(&dir).unwrap();
        let params = ferrotune_models::load(&dir, &config).unwrap().params;
        Self { config, params }
    }

    /// Compiles `f` of the decoder and of arrays like `args`.
    pub(crate) fn compile(
        &self,
        name: &str,
        args: &[HostArray],
        f: impl FnOnce(&Decoder<'_>, &Graph, &[Tensor]) -> Vec<Tensor>,
    ) -> Function {
        let (mesh, rules) = (Mesh::single(), Rules::unsharded(&LOGICAL_AXES));
        let leaf = |(i, (dtype, dims)): (usize, (DType, Vec<usize>))| {
            Leaf::new(&i.to_string(), dtype, &dims, &vec!["_"; dims.len()])
        };
        let layout = |types: Vec<(DType, Vec<usize>)>| {
            let leaves: Vec<Leaf> = types.into_iter().enumerate().map(leaf).collect();
            Layout::new(&mesh, &rules, &leaves).unwrap()
        };
        let typed = |a: &HostArray| (a.dtype(), a.dims().to_vec());
        let weights = layout(self.params.iter().map(|(_, a)| typed(a)).collect());
        let arguments = layout(args.iter().map(typed).collect());
        let mut builder = Builder::new(name, &mesh, &rules);
        let tensors = builder.input("weights", &weights);
        let inputs = builder.input("args", &arguments);
        let paths = self.params.iter().map(|(spec, _)| spec.path.clone());
        let params = Params::new(paths.zip(tensors));
        let decoder = Decoder {
            config: &self.config,
            params: &params,
            compute: DType::F32,
            policy: Policy::recompute(),
            queries: QueryOrder::AsRows,
            capacity_factor: None,
        };
        let results = f(&decoder, builder.graph(), &inputs);
        let types = results.iter().map(|t| (t.dtype(), t.dims()));
        builder.output(&layout(types.collect()), &results);
        let program = builder.compile(client()).unwrap();
        let arrays: Vec<HostArray> = self.params.iter().map(|(_, a)| a.clone()).collect();
        Function {
            program,
            weights: Group::upload(client(), &weights, &arrays).unwrap(),
            arguments,
        }
    }
}

/// A compiled function.
pub(crate) struct Function {
    program: Program,
    weights: Group,
    arguments: Layout,
}

impl Function {
    pub(crate) fn run(&self, args: &[HostArray]) -> Vec<HostArray> {
        let group = Group::upload(client(), &self.arguments, args).unwrap();
        let arguments = vec![
            Argument::Borrowed(&self.weights),
            Argument::Borrowed(&group),
        ];
        self.program.call(arguments).unwrap()[0].to_host().unwrap()
    }
}

pub(crate) fn ints(dims: &[usize], values: &[i32]) -> HostArray {
    HostArray::from_slice(dims, values).unwrap()
}

/// Token ids below 128 without pattern.
pub(crate) fn token(seed: usize, i: usize) -> i32 {
    ((seed * 7919 + i * 104_729 + i * i * 31 + 17) % 128) as i32
}

/// The documents of one row: tokens, segment ids, positions.
#[derive(Clone, Default)]
pub(crate) struct Row {
    pub(crate) tokens: Vec<i32>,
    pub(crate) segment_ids: Vec<i32>,
    pub(crate) positions: Vec<i32>,
}

impl Row {
    pub(crate) fn document(mut self, tokens: &[i32]) -> Self {
        let segment = self.segment_ids.iter().max().unwrap_or(&0) + 1;
        self.tokens.extend(tokens);
        self.segment_ids.extend(tokens.iter().map(|_| segment));
        self.positions.extend(0..tokens.len() as i32);
        self
    }

    pub(crate) fn padding(mut self, length: usize, token: i32) -> Self {
        self.tokens.extend(vec![token; length]);
        self.segment_ids.extend(vec![0; length]);
        self.positions.extend(0..length as i32);
        self
    }

    pub(crate) fn arrays(&self) -> [HostArray; 3] {
        let dims = [1, self.tokens.len()];
        [&self.tokens, &self.segment_ids, &self.positions].map(|values| ints(&dims, values))
    }
}

pub(crate) fn sequence(segment_ids: &Tensor, positions: &Tensor) -> Sequence {
    Sequence {
        segment_ids: segment_ids.clone(),
        positions: positions.clone(),
    }
}

/// Largest difference.
pub(crate) fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}

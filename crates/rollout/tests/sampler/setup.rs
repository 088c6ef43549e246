//! Fixture models on a device, requests without pattern, and a scorer that runs no cache.

use std::path::PathBuf;
use std::sync::OnceLock;

use ferrotune_graph::{DType, HostArray, Mesh, Policy, Rules};
use ferrotune_models::{Decoder, Lora, ModelConfig, init_adapter, load};
use ferrotune_nn::{LOGICAL_AXES, ParamSpec, Params, QueryOrder, Sequence};
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf};
use ferrotune_rollout::{Completion, Request, Sampler, SamplerConfig, Weights};

/// One client with four virtual devices for all tests; a mesh may use fewer.
pub(crate) fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))
            .expect("the CPU plugin is needed for these tests");
        Client::cpu(&plugin, 4).expect("a CPU client")
    })
}

/// Rows over both axes, weights over `fsdp`.
pub(crate) fn rules(mesh: &Mesh) -> Rules {
    let axes = |wanted: &[&str]| {
        mesh.axes()
            .iter()
            .map(|(name, _)| name.clone())
            .filter(|n| wanted.contains(&n.as_str()))
            .collect()
    };
    Rules::new(LOGICAL_AXES.map(|axis| match axis {
        "batch" => (axis, axes(&["data", "fsdp"])),
        "embed" => (axis, axes(&["fsdp"])),
        _ => (axis, Vec::new()),
    }))
}

/// A model with its weights on a mesh.
pub(crate) struct Fixture {
    pub(crate) config: ModelConfig,
    pub(crate) rules: Rules,
    pub(crate) weights: Group,
    /// Adapters, and what their products are multiplied by.
    pub(crate) adapter: Option<(Group, f64)>,
}

impl Fixture {
    pub(crate) fn load(family: &str) -> Self {
        Self::on(&Mesh::single(), family)
    }

    pub(crate) fn on(mesh: &Mesh, family: &str) -> Self {
        Self::altered(mesh, family, |_, values| values)
    }

    /// With weights that `alter` has changed.
    pub(crate) fn altered(
        mesh: &Mesh,
        family: &str,
        alter: impl Fn(&ParamSpec, HostArray) -> HostArray,
    ) -> Self {
        let dir = PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/hf"
        ))
        .join(family);
        let config = ModelConfig::load(&dir).unwrap();
        let params = load(&dir, &config).unwrap().params;
        let rules = rules(mesh);
        let leaf = |p: &ParamSpec| Leaf {
            name: p.path.clone(),
            dtype: p.dtype,
            dims: p.dims.clone(),
            axes: p.axes.clone(),
        };
        let leaves: Vec<Leaf> = params.iter().map(|(p, _)| leaf(p)).collect();
        let layout = Layout::new(mesh, &rules, &leaves).unwrap();
        let host: Vec<HostArray> = params
            .into_iter()
            .map(|(p, values)| alter(&p, values))
            .collect();
        let weights = Group::upload(client(), &layout, &host).unwrap();
        Self {
            config,
            rules,
            weights,
            adapter: None,
        }
    }

    /// With adapters beside the weights, in a group of their own.
    pub(crate) fn with_adapter(mut self, lora: &Lora) -> Self {
        let params = init_adapter(&self.config, lora, 3).unwrap();
        let leaf = |p: &ParamSpec| Leaf {
            name: p.path.clone(),
            dtype: p.dtype,
            dims: p.dims.clone(),
            axes: p.axes.clone(),
        };
        let leaves: Vec<Leaf> = params.iter().map(|(p, _)| leaf(p)).collect();
        let layout = Layout::new(self.weights.layout().mesh(), &self.rules, &leaves).unwrap();
        // Fresh ones change nothing.
        let value = |(p, _): &(ParamSpec, HostArray)| {
            let count: usize = p.dims.iter().product();
            let values: Vec<f32> = (0..count).map(|i| 0.2 * (i as f32 * 0.7).sin()).collect();
            HostArray::from_slice(&p.dims, &values).unwrap()
        };
        let host: Vec<HostArray> = params.iter().map(value).collect();
        let group = Group::upload(client(), &layout, &host).unwrap();
        self.adapter = Some((group, lora.scale()));
        self
    }

    /// The groups of weights.
    fn groups(&self) -> Vec<&Group> {
        let adapter = self.adapter.iter().map(|(group, _)| group);
        std::iter::once(&self.weights).chain(adapter).collect()
    }

    /// With a final norm of zeros, so that all logits are 0.
    pub(crate) fn flat(family: &str) -> Self {
        Self::altered(&Mesh::single(), family, |spec, values| {
            if spec.path == "final_norm" {
                HostArray::from_slice(values.dims(), &vec![0_f32; values.dims()[0]]).unwrap()
            } else {
                values
            }
        })
    }

    pub(crate) fn sampler(&self, config: SamplerConfig) -> Sampler {
        let layouts: Vec<&Layout> = self.groups().iter().map(|group| group.layout()).collect();
        Sampler::new(client(), &self.rules, &self.config, &layouts, config).unwrap()
    }

    /// Answers without progress.
    pub(crate) fn answers(&self, sampler: &Sampler, requests: &[Request]) -> Vec<Completion> {
        sampler
            .generate(&self.ready(sampler), requests, &mut |_, _| ())
            .unwrap()
    }

    pub(crate) fn ready(&self, sampler: &Sampler) -> Weights<'_> {
        sampler.weights(&self.groups()).unwrap()
    }

    /// Logits f32 `[row][T][V]` of one full forward pass over the rows, without any cache. Shorter rows are filled at
    /// their end, which no earlier token can see.
    pub(crate) fn logits(&self, rows: &[Vec<u32>]) -> Vec<Vec<Vec<f32>>> {
        let (b, v) = (rows.len(), self.config.vocab_size);
        let t = rows.iter().map(Vec::len).max().expect("there are rows");
        let mesh = self.weights.layout().mesh();
        let ids = Layout::new(
            mesh,
            &self.rules,
            &[Leaf::new("ids", DType::S32, &[b, t], &["_", "_"])],
        )
        .unwrap();
        let out = Layout::new(
            mesh,
            &self.rules,
            &[Leaf::new(
                "logits",
                DType::F32,
                &[b, t, v],
                &["_", "_", "_"],
            )],
        )
        .unwrap();
        let mut builder = Builder::new("full_pass", mesh, &self.rules);
        let groups = self.groups();
        let mut entries = Vec::new();
        for (i, group) in groups.iter().enumerate() {
            let tensors = builder.input(&format!("weights/{i}"), group.layout());
            entries.extend(group.layout().names().map(str::to_owned).zip(tensors));
        }
        let tokens = builder.input("ids", &ids).remove(0);
        let g = builder.graph().clone();
        let scale = self.adapter.as_ref().map_or(1.0, |(_, scale)| *scale);
        let params = Params::new(entries).with_adapter_scale(scale);
        let decoder = Decoder {
            config: &self.config,
            params: &params,
            compute: DType::F32,
            policy: Policy::recompute(),
            queries: QueryOrder::AsRows,
            capacity_factor: None,
        };
        let seq = Sequence {
            segment_ids: g.full(1.0, DType::S32, &[b, t]),
            positions: g.iota(DType::S32, &[b, t], 1),
        };
        let logits = decoder.logits(&decoder.hidden(&tokens, &seq));
        builder.output(&out, &[logits]);
        let program = builder.compile(client()).unwrap();
        let filled = |row: &Vec<u32>| {
            (0..t)
                .map(|i| row.get(i).map_or(0, |id| *id as i32))
                .collect::<Vec<_>>()
        };
        let values: Vec<i32> = rows.iter().flat_map(filled).collect();
        let ids = Group::upload(
            client(),
            &ids,
            &[HostArray::from_slice(&[b, t], &values).unwrap()],
        )
        .unwrap();
        let weights = groups.iter().map(|group| Argument::Borrowed(group));
        let result = program
            .call(weights.chain([Argument::Borrowed(&ids)]).collect())
            .unwrap()
            .remove(0);
        let host = result.to_host().unwrap().remove(0);
        host.as_slice::<f32>()
            .chunks(t * v)
            .map(|row| row.chunks(v).map(<[f32]>::to_vec).collect())
            .collect()
    }
}

/// A sampler of eight rows for prompts up to 7 and answers up to 12 tokens, with no stop token.
pub(crate) fn config() -> SamplerConfig {
    SamplerConfig {
        batch: 8,
        max_prompt_tokens: 7,
        max_new_tokens: 12,
        tokens_per_dispatch: 5,
        compute: DType::F32,
        stop_ids: vec![],
        adapter_scale: 1.0,
        routes: false,
        pad_id: 0,
    }
}

/// A sampler of three rows whose ring of 18 slots is written past its end again and again by [`request_of_any_length`].
pub(crate) fn narrow() -> SamplerConfig {
    SamplerConfig {
        batch: 3,
        ..config()
    }
}

/// Request number `i` with a limit of 1 to 12 tokens.
pub(crate) fn request_of_any_length(i: u64, temperature: f64) -> Request {
    Request {
        max_new_tokens: 1 + (i as usize * 7 + 4) % 12,
        ..request(i, temperature)
    }
}

/// Request number `i`: a prompt of 1 to 7 tokens below 128 and a seed that both depend on `i` only.
pub(crate) fn request(i: u64, temperature: f64) -> Request {
    let length = 1 + (i * 5 + 3) % 7;
    let token = |k: u64| ((i * 31 + k * 17 + i * k * 7 + 5) % 128) as u32;
    Request {
        prompt: (0..length).map(token).collect(),
        seed: i.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 11,
        temperature,
        max_new_tokens: 12,
        ..Request::default()
    }
}

/// `log_softmax(z)` in f64.
pub(crate) fn log_softmax(z: &[f32], temperature: f64) -> Vec<f64> {
    let z: Vec<f64> = z.iter().map(|v| f64::from(*v) / temperature).collect();
    let peak = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total = z.iter().map(|v| (v - peak).exp()).sum::<f64>().ln() + peak;
    z.iter().map(|v| v - total).collect()
}

/// Equal tokens and endings, log-probs equal but for rounding.
pub(crate) fn assert_same(a: &Completion, b: &Completion, what: &str) {
    assert_eq!((&a.tokens, a.finish), (&b.tokens, b.finish), "{what}");
    for (x, y) in a
        .logprobs
        .iter()
        .chain(&a.raw_logprobs)
        .zip(b.logprobs.iter().chain(&b.raw_logprobs))
    {
        assert!((x - y).abs() < 2e-5, "{what}: {x} {y}");
    }
}

//! One problem for the head, in every form: settings, types, meshes.

use std::sync::{Mutex, OnceLock, PoisonError};

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Platform, Rules, Tensor};
use ferrotune_nn::{EntropyUse, Head, HeadMode, HeadSettings, PartialLoss, TokenScores};
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf, Program};

/// One client with eight virtual devices for all tests; a mesh may use fewer.
pub(crate) fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))
            .expect("the CPU plugin is needed for these tests");
        Client::cpu(&plugin, 8).expect("a CPU client")
    })
}

/// Numbers without pattern in (-1, 1).
pub(crate) fn noise(count: usize, seed: u64) -> Vec<f64> {
    let number = |i: u64| {
        let mut h =
            (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
        h = (h ^ (h >> 31)).wrapping_mul(0x94D0_49BB_1331_11EB);
        h ^= h >> 29;
        (h >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..count as u64).map(number).collect()
}

/// Numbers that both sides read. All are kept in f64 and narrowed on upload.
#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) model: usize,
    pub(crate) vocab: usize,
    /// `[B,T,D]`
    pub(crate) x: Vec<f64>,
    /// `[D,V]`
    pub(crate) w: Vec<f64>,
    pub(crate) targets: Vec<i32>,
    pub(crate) mask: Vec<bool>,
    /// Cotangents of log-prob and entropy, `[B,T]`.
    pub(crate) slopes: [Vec<f64>; 2],
}

impl Numbers {
    pub(crate) fn new([rows, width, model, vocab]: [usize; 4]) -> Self {
        let tokens = rows * width;
        Self {
            rows,
            width,
            model,
            vocab,
            x: noise(tokens * model, 1).iter().map(|v| v * 2.0).collect(),
            w: noise(model * vocab, 2),
            targets: (0..tokens)
                .map(|i| ((i * 37 + 11) % vocab) as i32)
                .collect(),
            mask: vec![true; tokens],
            slopes: [noise(tokens, 3), noise(tokens, 4)],
        }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.rows * self.width
    }
}

/// How a problem is computed.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) settings: HeadSettings,
    pub(crate) temperature: f64,
    pub(crate) tied: bool,
    pub(crate) entropy: EntropyUse,
    /// Of hidden states and products; f64 also of the weights.
    pub(crate) compute: DType,
    pub(crate) mesh: Mesh,
    /// For which kind of device operations are written; all run here.
    pub(crate) platform: Platform,
    /// (logical axis, mesh axes)
    pub(crate) rules: Vec<(&'static str, Vec<&'static str>)>,
}

impl Case {
    pub(crate) fn new(mode: HeadMode, token_chunk: usize, vocab_chunk: usize) -> Self {
        Self {
            settings: HeadSettings {
                mode,
                token_chunk,
                vocab_chunk,
            },
            temperature: 1.0,
            tied: false,
            entropy: EntropyUse::Differentiated,
            compute: DType::F32,
            mesh: Mesh::single(),
            platform: Platform::Cpu,
            rules: Vec::new(),
        }
    }

    pub(crate) fn all_rules(&self) -> Rules {
        let over = |name: &str| {
            let rule = self.rules.iter().find(|(logical, _)| *logical == name);
            let axes = rule.map_or(&[][..], |(_, axes)| axes);
            axes.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>()
        };
        Rules::new(["batch", "tokens", "embed", "vocab"].map(|name| (name, over(name))))
    }

    pub(crate) fn head(&self, weight: &Tensor) -> Head {
        Head {
            weight: weight.clone(),
            tied: self.tied,
            temperature: self.temperature,
            settings: self.settings,
            entropy: self.entropy,
        }
    }

    fn stored(&self) -> DType {
        if self.compute == DType::F64 {
            DType::F64
        } else {
            DType::F32
        }
    }

    /// Arguments: hidden states, weights, targets, mask, cotangents of log-prob and entropy.
    fn layout(&self, n: &Numbers) -> Layout {
        let stored = self.stored();
        let bt = [n.rows, n.width];
        let (w_dims, w_axes) = if self.tied {
            ([n.vocab, n.model], ["vocab", "embed"])
        } else {
            ([n.model, n.vocab], ["embed", "vocab"])
        };
        let leaves = [
            Leaf::new(
                "x",
                stored,
                &[bt[0], bt[1], n.model],
                &["batch", "tokens", "_"],
            ),
            Leaf::new("w", stored, &w_dims, &w_axes),
            Leaf::new("targets", DType::S32, &bt, &["batch", "tokens"]),
            Leaf::new("mask", DType::S32, &bt, &["batch", "tokens"]),
            Leaf::new("g", stored, &bt, &["batch", "tokens"]),
            Leaf::new("h", stored, &bt, &["batch", "tokens"]),
        ];
        Layout::new(&self.mesh, &self.all_rules(), &leaves).unwrap()
    }

    fn host(&self, n: &Numbers) -> Vec<HostArray> {
        let floats = |dims: &[usize], values: &[f64]| {
            if self.stored() == DType::F64 {
                HostArray::from_slice(dims, values).unwrap()
            } else {
                let narrow: Vec<f32> = values.iter().map(|v| *v as f32).collect();
                HostArray::from_slice(dims, &narrow).unwrap()
            }
        };
        let bt = [n.rows, n.width];
        let mask: Vec<i32> = n.mask.iter().map(|m| i32::from(*m)).collect();
        let w = if self.tied {
            let at = |k: usize| n.w[k % n.model * n.vocab + k / n.model];
            floats(
                &[n.vocab, n.model],
                &(0..n.w.len()).map(at).collect::<Vec<_>>(),
            )
        } else {
            floats(&[n.model, n.vocab], &n.w)
        };
        vec![
            floats(&[n.rows, n.width, n.model], &n.x),
            w,
            HostArray::from_slice(&bt, &n.targets).unwrap(),
            HostArray::from_slice(&bt, &mask).unwrap(),
            floats(&bt, &n.slopes[0]),
            floats(&bt, &n.slopes[1]),
        ]
    }

    /// Scores under the head of this case, from the arguments.
    pub(crate) fn scores(&self, args: &[Tensor]) -> TokenScores {
        let mask = args[3].ne(&args[3].zeros_like());
        let x = args[0].convert(self.compute);
        self.head(&args[1]).score(&x, &args[2], Some(&mask))
    }

    /// `Σ g·logprob + h·entropy` of given scores.
    fn sum(&self, scores: &TokenScores, g: &Tensor, h: &Tensor) -> Tensor {
        let by_logprob = (g * &scores.logprob).sum_all();
        if self.entropy == EntropyUse::Differentiated {
            by_logprob + (h * &scores.entropy).sum_all()
        } else {
            by_logprob
        }
    }

    /// The same, as the mode forms it.
    pub(crate) fn loss(&self, args: &[Tensor]) -> Tensor {
        if self.settings.mode == HeadMode::SinglePass {
            let loss = |scores: &TokenScores, extra: &[Tensor]| PartialLoss {
                loss: self.sum(scores, &extra[0], &extra[1]),
                others: vec![],
            };
            return self.single_pass(args, loss).loss;
        }
        self.sum(&self.scores(args), &args[4], &args[5])
    }

    /// A loss of scores and the last two arguments.
    pub(crate) fn single_pass(
        &self,
        args: &[Tensor],
        loss: impl Fn(&TokenScores, &[Tensor]) -> PartialLoss,
    ) -> PartialLoss {
        let mask = args[3].ne(&args[3].zeros_like());
        let x = args[0].convert(self.compute);
        let extra = [args[4].clone(), args[5].clone()];
        let head = self.head(&args[1]);
        head.single_pass(&x, &args[2], Some(&mask), &extra, loss)
    }

    /// Log-prob, entropy, hit, the gradients of [`Self::loss`] by hidden states and weights, and the loss.
    pub(crate) fn everything(&self, g: &Graph, args: &[Tensor]) -> Vec<Tensor> {
        let scores = self.scores(args);
        let loss = if self.settings.mode == HeadMode::SinglePass {
            self.loss(args)
        } else {
            self.sum(&scores, &args[4], &args[5])
        };
        let gradients = g.grad(&loss, &[&args[0], &args[1]]);
        let hit = scores.hit.convert(DType::F32);
        [
            vec![scores.logprob, scores.entropy, hit],
            gradients,
            vec![loss],
        ]
        .concat()
    }

    /// Traces `f` of the arguments; results are whole on every device.
    pub(crate) fn trace(
        &self,
        n: &Numbers,
        f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
    ) -> (Builder, Layout) {
        let layout = self.layout(n);
        let mut builder = Builder::new("head", &self.mesh, &self.all_rules());
        let inputs = builder.input("args", &layout);
        let results = f(builder.graph(), &inputs);
        let leaf = |(i, t): (usize, &Tensor)| {
            Leaf::new(&i.to_string(), t.dtype(), &t.dims(), &vec!["_"; t.rank()])
        };
        let leaves: Vec<Leaf> = results.iter().enumerate().map(leaf).collect();
        let out = Layout::new(&self.mesh, &self.all_rules(), &leaves).unwrap();
        builder.output(&out, &results);
        (builder, layout)
    }

    pub(crate) fn compile(
        &self,
        n: &Numbers,
        f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
    ) -> (Program, Layout) {
        let (builder, layout) = self.trace(n, f);
        (builder.compile_as(self.platform, client()).unwrap(), layout)
    }

    pub(crate) fn call(&self, program: &(Program, Layout), n: &Numbers) -> Vec<HostArray> {
        // Programs of several virtual devices that run at once may wait for each other's threads for ever.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = (self.mesh.device_count() > 1)
            .then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        let group = Group::upload(client(), &program.1, &self.host(n)).unwrap();
        let results = program.0.call(vec![Argument::Borrowed(&group)]).unwrap();
        results[0].to_host().unwrap()
    }

    /// Everything, computed on the devices.
    pub(crate) fn run(&self, n: &Numbers) -> Found {
        let program = self.compile(n, |g, args| self.everything(g, args));
        let found = self.call(&program, n);
        let [logprob, entropy, hit, dx, dw, loss] = &found[..] else {
            unreachable!("six results")
        };
        let mut dw = values(dw);
        if self.tied {
            let at = |k: usize| dw[k % n.vocab * n.model + k / n.vocab];
            dw = (0..dw.len()).map(at).collect();
        }
        Found {
            logprob: values(logprob),
            entropy: values(entropy),
            hit: values(hit).iter().map(|v| *v != 0.0).collect(),
            dx: values(dx),
            dw,
            loss: values(loss)[0],
        }
    }
}

pub(crate) fn values(array: &HostArray) -> Vec<f64> {
    if array.dtype() == DType::F64 {
        array.as_slice::<f64>().to_vec()
    } else {
        array.to_f32_vec().into_iter().map(f64::from).collect()
    }
}

/// What is known of each token, and gradients: `dw` is `[D,V]`, tied or not.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) logprob: Vec<f64>,
    pub(crate) entropy: Vec<f64>,
    pub(crate) hit: Vec<bool>,
    pub(crate) dx: Vec<f64>,
    pub(crate) dw: Vec<f64>,
    pub(crate) loss: f64,
}

/// The largest distance between two lists.
pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let apart = a
        .iter()
        .zip(b)
        .map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
    apart.fold(
        0.0,
        |most: f64, it| if it.is_nan() { f64::NAN } else { most.max(it) },
    )
}

/// The same, over the largest entry of the second.
pub(crate) fn relative(a: &[f64], b: &[f64]) -> f64 {
    let largest = b.iter().fold(0.0, |most: f64, it| most.max(it.abs()));
    distance(a, b) / largest.max(f64::MIN_POSITIVE)
}

/// The largest distance in steps between neighbouring f32 numbers.
pub(crate) fn ulps(a: &[f64], b: &[f64]) -> i64 {
    let place = |v: f64| {
        let bits = i64::from((v as f32).to_bits() as i32);
        if bits < 0 {
            i64::from(i32::MIN) - bits
        } else {
            bits
        }
    };
    a.iter()
        .zip(b)
        .map(|(a, b)| (place(*a) - place(*b)).abs())
        .max()
        .unwrap_or(0)
}

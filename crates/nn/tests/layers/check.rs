//! Running a traced function, and rows of documents cut at random.

use std::sync::OnceLock;

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Platform, Rules, Tensor};
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf, Program};

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))
            .expect("the CPU plugin is needed for these tests");
        Client::cpu(&plugin, 4).expect("a CPU client")
    })
}

/// A compiled function of arrays of fixed types.
pub(crate) struct Function {
    program: Program,
    layout: Layout,
}

impl Function {
    pub(crate) fn new(
        name: &str,
        args: &[HostArray],
        f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
    ) -> Self {
        Self::on((&Mesh::single(), &Rules::unsharded(&[])), name, args, f)
    }

    /// The same without kernels: on a mesh, outside of regions, the portable forms are written.
    pub(crate) fn portable(
        name: &str,
        args: &[HostArray],
        f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
    ) -> Self {
        let mesh = Mesh::new(&[("x", 2)]).unwrap();
        Self::on((&mesh, &Rules::unsharded(&[])), name, args, f)
    }

    /// The same on a mesh; arguments and results are whole on every device.
    pub(crate) fn on(
        place: (&Mesh, &Rules),
        name: &str,
        args: &[HostArray],
        f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
    ) -> Self {
        let (builder, layout) = trace(place, name, args, f);
        let program = builder
            .compile(client())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        Self { program, layout }
    }

    /// The text of a function of the same arrays, for another platform.
    pub(crate) fn text(
        &self,
        args: &[HostArray],
        platform: Platform,
        f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
    ) -> String {
        let place = (&Mesh::single(), &Rules::unsharded(&[]));
        trace(place, self.program.name(), args, f)
            .0
            .lower(platform)
            .module
            .text
    }

    pub(crate) fn run(&self, args: &[HostArray]) -> Vec<HostArray> {
        let group = Group::upload(client(), &self.layout, args).unwrap();
        let results = self.program.call(vec![Argument::Borrowed(&group)]).unwrap();
        results[0].to_host().unwrap()
    }
}

fn trace(
    (mesh, rules): (&Mesh, &Rules),
    name: &str,
    args: &[HostArray],
    f: impl FnOnce(&Graph, &[Tensor]) -> Vec<Tensor>,
) -> (Builder, Layout) {
    let leaf = |(i, (dtype, dims)): (usize, (DType, Vec<usize>))| {
        Leaf::new(&i.to_string(), dtype, &dims, &vec!["_"; dims.len()])
    };
    let types = args.iter().map(|a| (a.dtype(), a.dims().to_vec()));
    let leaves: Vec<Leaf> = types.enumerate().map(leaf).collect();
    let layout = Layout::new(mesh, rules, &leaves).unwrap();
    let mut builder = Builder::new(name, mesh, rules);
    let inputs = builder.input("args", &layout);
    let results = f(builder.graph(), &inputs);
    let types = results.iter().map(|t| (t.dtype(), t.dims()));
    let leaves: Vec<Leaf> = types.enumerate().map(leaf).collect();
    let out = Layout::new(mesh, rules, &leaves).unwrap();
    builder.output(&out, &results);
    (builder, layout)
}

/// Numbers without pattern, uniform in `low..high`.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut h = self.0;
        h = (h ^ (h >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        h = (h ^ (h >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((h ^ (h >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() * n as f64) as usize
    }

    pub(crate) fn array(&mut self, dims: &[usize], low: f32, high: f32) -> HostArray {
        let count: usize = dims.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|_| low + (high - low) * self.next() as f32)
            .collect();
        HostArray::from_slice(dims, &values).unwrap()
    }
}

/// Segment ids and positions of rows: documents and padding of random lengths in random order.
pub(crate) struct Documents {
    pub(crate) rows: usize,
    pub(crate) tokens: usize,
    pub(crate) segment_ids: Vec<i32>,
    pub(crate) positions: Vec<i32>,
}

impl Documents {
    pub(crate) fn random(noise: &mut Noise, rows: usize, tokens: usize, longest: usize) -> Self {
        let (mut segment_ids, mut positions) = (Vec::new(), Vec::new());
        for _ in 0..rows {
            let mut document = 0;
            let (mut ids, mut places) = (Vec::new(), Vec::new());
            while ids.len() < tokens {
                let length = 1 + noise.below(longest.min(tokens - ids.len()));
                let padding = noise.next() < 0.25;
                document += i32::from(!padding);
                ids.extend(vec![if padding { 0 } else { document }; length]);
                places.extend(0..length as i32);
            }
            segment_ids.extend(ids);
            positions.extend(places);
        }
        Self {
            rows,
            tokens,
            segment_ids,
            positions,
        }
    }

    pub(crate) fn arrays(&self) -> [HostArray; 2] {
        let dims = [self.rows, self.tokens];
        [&self.segment_ids, &self.positions].map(|a| HostArray::from_slice(&dims, a).unwrap())
    }
}

/// `x + by · direction`
pub(crate) fn moved(x: &HostArray, direction: &HostArray, by: f32) -> HostArray {
    let pairs = x.as_slice::<f32>().iter().zip(direction.as_slice::<f32>());
    let values: Vec<f32> = pairs.map(|(x, d)| x + by * d).collect();
    HostArray::from_slice(x.dims(), &values).unwrap()
}

/// How fast a function with this gradient changes along a direction.
pub(crate) fn slope(gradient: &HostArray, direction: &HostArray) -> f64 {
    let pairs = gradient.as_slice::<f32>().iter();
    let pairs = pairs.zip(direction.as_slice::<f32>());
    pairs.map(|(g, d)| f64::from(*g) * f64::from(*d)).sum()
}

pub(crate) fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |m, v| m.max(f64::from(v.abs())))
}

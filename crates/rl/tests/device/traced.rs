//! Runs a loss on a device: from per-token numbers to the loss, its gradient and its metrics.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use ferrotune_batch::{Field, Rows};
use ferrotune_engine::{Loss, LossInputs};
use ferrotune_graph::{DType, HostArray, Mesh, Rules, Tensor};
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Argument, Builder, Group, Layout, Leaf};

/// One client with two virtual devices for all tests.
pub(crate) fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))
            .expect("the CPU plugin is needed for these tests");
        Client::cpu(&plugin, 2).expect("a CPU client")
    })
}

/// What a loss reads of `[B,T]` tokens.
#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) dims: Vec<usize>,
    pub(crate) logprob: Vec<f64>,
    pub(crate) entropy: Vec<f64>,
    pub(crate) loss_weight: Vec<f64>,
    pub(crate) advantage: Vec<f64>,
    pub(crate) old_logprob: Vec<f64>,
    pub(crate) sampler_logprob: Vec<f64>,
}

impl Numbers {
    /// Of rows, with what the model says of them.
    pub(crate) fn of_rows(rows: &Rows, logprob: Vec<f64>) -> Self {
        let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let field = |field| {
            wide(
                rows.field(field)
                    .expect("the rows have all fields of the loss"),
            )
        };
        Self {
            dims: vec![rows.row_count(), rows.width()],
            entropy: vec![0.0; logprob.len()],
            logprob,
            loss_weight: wide(rows.loss_weight()),
            advantage: field(Field::Advantage),
            old_logprob: field(Field::OldLogprob),
            sampler_logprob: field(Field::SamplerLogprob),
        }
    }
}

/// What a device makes of them.
pub(crate) struct Traced {
    pub(crate) loss: f64,
    /// `d loss / d logprob`.
    pub(crate) grad: Vec<f64>,
    pub(crate) metrics: BTreeMap<String, f64>,
}

/// Runs the loss in `dtype` on one device.
pub(crate) fn run(loss: &Loss, numbers: &Numbers, dtype: DType) -> Traced {
    let columns = [
        &numbers.logprob,
        &numbers.entropy,
        &numbers.loss_weight,
        &numbers.advantage,
        &numbers.old_logprob,
        &numbers.sampler_logprob,
    ];
    let (mesh, rules) = (Mesh::single(), Rules::unsharded(&[]));
    let axes = vec!["_"; numbers.dims.len()];
    let leaf = |i: usize| Leaf::new(&i.to_string(), dtype, &numbers.dims, &axes);
    let layout = Layout::new(
        &mesh,
        &rules,
        &(0..columns.len()).map(leaf).collect::<Vec<_>>(),
    )
    .unwrap();
    let mut builder = Builder::new("loss", &mesh, &rules);
    let x = builder.input("tokens", &layout);
    let inputs = LossInputs {
        logprob: x[0].clone(),
        entropy: x[1].clone(),
        loss_weight: x[2].clone(),
        fields: BTreeMap::from([
            (Field::Advantage, x[3].clone()),
            (Field::OldLogprob, x[4].clone()),
            (Field::SamplerLogprob, x[5].clone()),
        ]),
    };
    let terms = (loss.build)(&inputs);
    let grad = builder
        .graph()
        .grad(&terms.loss, &[&inputs.logprob])
        .remove(0);
    let mut results = vec![terms.loss, grad];
    results.extend(terms.metrics.iter().map(|it| it.value.clone()));
    let leaf = |(i, t): (usize, &Tensor)| {
        Leaf::new(&i.to_string(), t.dtype(), &t.dims(), &vec!["_"; t.rank()])
    };
    let out = Layout::new(
        &mesh,
        &rules,
        &results.iter().enumerate().map(leaf).collect::<Vec<_>>(),
    )
    .unwrap();
    builder.output(&out, &results);
    let program = builder.compile(client()).unwrap();
    let host: Vec<HostArray> = columns
        .iter()
        .map(|column| array(&numbers.dims, column, dtype))
        .collect();
    let group = Group::upload(client(), &layout, &host).unwrap();
    let results = program.call(vec![Argument::Borrowed(&group)]).unwrap()[0]
        .to_host()
        .unwrap();
    let mut results = results.iter().map(|it| values(it, dtype));
    let (loss, grad) = (results.next().unwrap()[0], results.next().unwrap());
    let names = terms.metrics.iter().map(|it| it.name.clone());
    Traced {
        loss,
        grad,
        metrics: names.zip(results.map(|it| it[0])).collect(),
    }
}

fn array(dims: &[usize], values: &[f64], dtype: DType) -> HostArray {
    match dtype {
        DType::F64 => HostArray::from_slice(dims, values).unwrap(),
        _ => HostArray::from_slice(dims, &values.iter().map(|&v| v as f32).collect::<Vec<_>>())
            .unwrap(),
    }
}

fn values(array: &HostArray, dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F64 => array.as_slice::<f64>().to_vec(),
        _ => array
            .as_slice::<f32>()
            .iter()
            .map(|&v| f64::from(v))
            .collect(),
    }
}

//! Tiled attention, beside the dense masked form.

use ferrotune_graph::{DType, Graph, HostArray, Mesh, Rules, Tensor};
use ferrotune_nn::{
    Places, QueryOrder, Sequence, TileSizes, attend, attend_documents, attend_tiled, causal_mask,
};

use crate::check::{Documents, Function, Noise, largest};

/// Rows, tokens, key heads, query heads of each, head size.
type Sizes = [usize; 5];

fn arguments(noise: &mut Noise, [b, t, k, g, e]: Sizes, documents: &Documents) -> Vec<HostArray> {
    let mut args = vec![
        noise.array(&[b, t, k * g, e], -2.0, 2.0),
        noise.array(&[b, k, t, e], -2.0, 2.0),
        noise.array(&[b, k, t, e], -2.0, 2.0),
    ];
    args.extend(documents.arrays());
    args
}

fn tiled(x: &[Tensor], sizes: TileSizes) -> Tensor {
    let places = Places::in_order(&x[3]);
    attend_tiled(&x[0], &x[1], &x[2], &places, &places, sizes)
}

fn dense(x: &[Tensor]) -> Tensor {
    let seq = Sequence {
        segment_ids: x[3].clone(),
        positions: x[4].clone(),
    };
    let out = attend(&x[0], &x[1], &x[2], &causal_mask(&seq));
    let real = x[3].gt(&x[3].scalar_like(0.0)).expand(2).expand(2);
    real.select(&out, &out.scalar_like(0.0))
}

/// The result, and the cotangents of queries, keys and values from one that is different everywhere.
fn with_gradients(g: &Graph, x: &[Tensor], f: impl Fn(&[Tensor]) -> Tensor) -> Vec<Tensor> {
    let y = f(x);
    let weights = g
        .constant(Noise::new(77).array(&y.dims(), -1.0, 1.0))
        .convert(y.dtype());
    let real = x[3].gt(&x[3].scalar_like(0.0)).expand(2).expand(2);
    let weights = real.select(&weights, &weights.scalar_like(0.0));
    let loss = (&y * weights).convert(DType::F32).sum_all();
    let d = g.grad(&loss, &[&x[0], &x[1], &x[2]]);
    std::iter::once(y)
        .chain(d)
        .map(|t| t.convert(DType::F32))
        .collect()
}

type Traced<'a> = &'a dyn Fn(&Graph, &[Tensor]) -> Vec<Tensor>;

type Form = fn(&str, &[HostArray], Traced<'_>) -> Function;

/// The kernel of the host's processor, and the loop over tiles that is written elsewhere.
const FORMS: [Form; 2] = [
    |name, args, f| Function::new(name, args, f),
    |name, args, f| Function::portable(name, args, f),
];

fn close(found: &[HostArray], expected: &[HostArray], within: f64, what: &str) {
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let (a, b) = (a.as_slice::<f32>(), b.as_slice::<f32>());
        let size = largest(b).max(1.0);
        for (k, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(
                f64::from((a - b).abs()) <= within * size,
                "{what}: element {k} of {i} is {a} instead of {b}"
            );
        }
    }
}

#[test]
fn tiles_compute_what_the_dense_form_does() {
    let sizes: [Sizes; 4] = [
        [2, 37, 2, 3, 8],
        [1, 64, 1, 1, 5],
        [3, 1, 1, 2, 4],
        [2, 96, 3, 2, 16],
    ];
    let tiles = [((16, 8), (8, 16)), ((64, 64), (10, 7)), ((5, 5), (37, 1))];
    for (seed, size) in sizes.into_iter().enumerate() {
        let mut noise = Noise::new(seed as u64);
        let documents = Documents::random(&mut noise, size[0], size[1], 30);
        let args = arguments(&mut noise, size, &documents);
        let expected = Function::new("dense", &args, |g, x| with_gradients(g, x, dense)).run(&args);
        for (forward, backward) in tiles {
            let sizes = TileSizes { forward, backward };
            for make in FORMS {
                let f = make("tiled", &args, &|g, x| {
                    with_gradients(g, x, |x| tiled(x, sizes))
                });
                let name = format!("{size:?} {sizes:?}");
                close(&f.run(&args), &expected, 2e-6, &name);
            }
        }
    }
}

#[test]
fn documents_may_be_cut_in_any_way() {
    let size = [3, 60, 2, 2, 8];
    let sizes = TileSizes {
        forward: (16, 8),
        backward: (8, 16),
    };
    let mut noise = Noise::new(9);
    let first = Documents::random(&mut noise, size[0], size[1], 10);
    let args = arguments(&mut noise, size, &first);
    let expected = Function::new("dense", &args, |g, x| with_gradients(g, x, dense));
    let found = FORMS.map(|make| {
        make("tiled", &args, &|g, x| {
            with_gradients(g, x, |x| tiled(x, sizes))
        })
    });
    for longest in [1, 2, 7, 25, 60] {
        for _ in 0..5 {
            let documents = Documents::random(&mut noise, size[0], size[1], longest);
            let args = arguments(&mut noise, size, &documents);
            let expected = expected.run(&args);
            for found in &found {
                let name = format!("documents up to {longest}");
                close(&found.run(&args), &expected, 2e-6, &name);
            }
        }
    }
    // A batch without a single token.
    let nothing = Documents {
        rows: 3,
        tokens: 60,
        segment_ids: vec![0; 180],
        positions: vec![0; 180],
    };
    let args = arguments(&mut noise, size, &nothing);
    for result in found.iter().flat_map(|found| found.run(&args)) {
        assert!(result.as_slice::<f32>().iter().all(|v| *v == 0.0));
    }
}

#[test]
fn rows_in_another_order_give_the_same_numbers_in_that_order() {
    let size = [2, 48, 1, 2, 8];
    let sizes = TileSizes {
        forward: (8, 8),
        backward: (8, 8),
    };
    let mut noise = Noise::new(10);
    let documents = Documents::random(&mut noise, size[0], size[1], 20);
    let args = arguments(&mut noise, size, &documents);
    // Chunks of eight tokens, as a context shard may hold them.
    let order: Vec<i32> = [0, 5, 1, 4, 3, 2]
        .iter()
        .flat_map(|c| c * 8..c * 8 + 8)
        .collect();
    let traced = |g: &Graph, x: &[Tensor]| {
        let order = g.constant(HostArray::from_slice(&[48], &order).unwrap());
        let moved = |t: &Tensor| t.transpose(&[1, 0]).take(&order).transpose(&[1, 0]);
        let queries = Places::in_order(&x[3]);
        let q = x[0]
            .transpose(&[1, 0, 2, 3])
            .take(&order)
            .transpose(&[1, 0, 2, 3]);
        let reordered = Places {
            segment_ids: moved(&queries.segment_ids),
            index: moved(&queries.index),
        };
        let out = attend_tiled(&q, &x[1], &x[2], &reordered, &queries, sizes);
        let expected = dense(x)
            .transpose(&[1, 0, 2, 3])
            .take(&order)
            .transpose(&[1, 0, 2, 3]);
        vec![out, expected]
    };
    for make in FORMS {
        let found = make("orders", &args, &traced).run(&args);
        close(&found[..1], &found[1..], 2e-6, "reordered");
    }
}

#[test]
fn changing_one_document_changes_no_bit_of_another() {
    let size = [2, 64, 2, 2, 8];
    let sizes = TileSizes {
        forward: (16, 16),
        backward: (16, 16),
    };
    let mut noise = Noise::new(11);
    let documents = Documents::random(&mut noise, size[0], size[1], 30);
    let args = arguments(&mut noise, size, &documents);
    let f = Function::new("isolated", &args, |g, x| {
        with_gradients(g, x, |x| tiled(x, sizes))
    });
    let before = f.run(&args);
    let token = |i: usize, element: usize| {
        // Queries are [B,T,H,E], keys and values [B,K,T,E].
        let dims = args[i].dims();
        let (b, rest) = (
            element / (dims[1] * dims[2] * dims[3]),
            element % (dims[1] * dims[2] * dims[3]),
        );
        let t = if i == 0 {
            rest / (dims[2] * dims[3])
        } else {
            rest / dims[3] % dims[2]
        };
        b * size[1] + t
    };
    let mut other = args.clone();
    for (i, arg) in other.iter_mut().take(3).enumerate() {
        let values: Vec<f32> = arg
            .as_slice::<f32>()
            .iter()
            .enumerate()
            .map(|(n, v)| {
                if documents.segment_ids[token(i, n)] == 1 {
                    v * 0.5
                } else {
                    *v
                }
            })
            .collect();
        *arg = HostArray::from_slice(arg.dims(), &values).unwrap();
    }
    for (i, (a, b)) in before.iter().zip(&f.run(&other)).enumerate() {
        let kind = i.saturating_sub(1);
        let pairs = a
            .as_slice::<f32>()
            .iter()
            .zip(b.as_slice::<f32>())
            .enumerate();
        for (n, (a, b)) in pairs.filter(|(n, _)| documents.segment_ids[token(kind, *n)] != 1) {
            assert_eq!(a.to_bits(), b.to_bits(), "result {i}, element {n}");
        }
    }
}

#[test]
fn half_width_operands_stay_near_the_dense_form() {
    let size = [2, 48, 2, 2, 16];
    let sizes = TileSizes {
        forward: (16, 16),
        backward: (16, 16),
    };
    let mut noise = Noise::new(12);
    let documents = Documents::random(&mut noise, size[0], size[1], 40);
    let args = arguments(&mut noise, size, &documents);
    let narrow = |x: &[Tensor]| -> Vec<Tensor> {
        let halves = x[..3].iter().map(|t| t.convert(DType::BF16));
        halves.chain(x[3..].iter().cloned()).collect()
    };
    let found = Function::new("narrow", &args, |g, x| {
        with_gradients(g, &narrow(x), |x| tiled(x, sizes))
    })
    .run(&args);
    let expected = Function::new("wide", &args, |g, x| with_gradients(g, x, dense)).run(&args);
    close(&found, &expected, 0.03, "bf16"); // operands and weights of eight bits
}

/// Rows of documents of these lengths, and padding after them.
fn row(lengths: &[usize], tokens: usize) -> Documents {
    let (mut segment_ids, mut positions) = (Vec::new(), Vec::new());
    for (document, length) in lengths.iter().enumerate() {
        segment_ids.extend(vec![document as i32 + 1; *length]);
        positions.extend(0..*length as i32);
    }
    segment_ids.resize(tokens, 0);
    positions.resize(tokens, 0);
    Documents {
        rows: 1,
        tokens,
        segment_ids,
        positions,
    }
}

#[test]
fn documents_of_several_blocks_of_keys_are_read_whole() {
    let size = [1, 1200, 1, 2, 8];
    let sizes = TileSizes {
        forward: (128, 128),
        backward: (128, 128),
    };
    let documents = row(&[70, 1061, 40], 1200);
    let args = arguments(&mut Noise::new(12), size, &documents);
    let expected = Function::new("dense", &args, |g, x| with_gradients(g, x, dense)).run(&args);
    let f = Function::new("tiled", &args, |g, x| {
        with_gradients(g, x, |x| tiled(x, sizes))
    });
    close(&f.run(&args), &expected, 2e-6, "1061 keys");
}

#[test]
fn devices_that_split_rows_and_tokens_attend_as_one() {
    let size = [2, 64, 2, 2, 8];
    let mut noise = Noise::new(13);
    let documents = Documents::random(&mut noise, 2, 64, 30);
    let args = arguments(&mut noise, size, &documents);
    let attend = |g: &Graph, x: &[Tensor]| {
        with_gradients(g, x, |x| {
            let seq = Sequence {
                segment_ids: x[3].clone(),
                positions: x[4].clone(),
            };
            attend_documents(&x[0], &x[1], &x[2], &seq, QueryOrder::AsRows)
        })
    };
    let expected = Function::new("dense", &args, |g, x| with_gradients(g, x, dense)).run(&args);
    let axes = |name: &str| vec![name.to_owned()];
    for (rows, tokens) in [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)] {
        let mesh = Mesh::new(&[("rows", rows), ("tokens", tokens)]).unwrap();
        let rules = Rules::new([("batch", axes("rows")), ("tokens", axes("tokens"))]);
        let f = Function::on((&mesh, &rules), "documents", &args, attend);
        let name = format!("{rows} by {tokens} devices");
        close(&f.run(&args), &expected, 2e-6, &name);
    }
}

#[test]
fn numbers_that_are_none_leave_nothing_behind() {
    let size = [1, 33, 1, 1, 8];
    let sizes = TileSizes {
        forward: (33, 33),
        backward: (33, 33),
    };
    let documents = row(&[33], 33);
    let mut args = arguments(&mut Noise::new(14), size, &documents);
    let f = Function::new("tiled", &args, |g, x| {
        with_gradients(g, x, |x| tiled(x, sizes))
    });
    let expected = f.run(&args);
    let larger = [1, 128, 1, 1, 8];
    let none = HostArray::from_slice(&[1, 128, 1, 8], &[f32::NAN; 1024]).unwrap();
    let mut broken = arguments(&mut Noise::new(15), larger, &row(&[128], 128));
    broken[0] = none;
    let g = Function::new("none", &broken, |g, x| {
        with_gradients(g, x, |x| tiled(x, sizes))
    });
    for _ in 0..20 {
        g.run(&broken);
        assert_eq!(f.run(&args), expected);
    }
    args[0] = HostArray::zeros(DType::F32, &[1, 33, 1, 8]);
    assert_ne!(f.run(&args), expected);
}

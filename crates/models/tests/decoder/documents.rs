//! Documents that share a row do not know of each other: values and gradients, to the last bit.

use ferrotune_graph::DType;

use crate::setup::{FAMILIES, Function, Model, Row, sequence, token, worst};

const WIDTH: usize = 90;

/// Hidden states, and the gradient of the embedding of a weighted sum of them.
///
/// Weights depend on the place in the document alone, and no two documents have a token in common: so each document has rows
/// of the gradient to itself.
struct Probe {
    function: Function,
    width: usize,
}

/// What belongs to one document.
#[derive(Debug, PartialEq)]
struct Found {
    hidden: Vec<f32>,
    gradient: Vec<f32>,
}

impl Probe {
    fn new(model: &Model) -> Self {
        let args = Row::default().padding(WIDTH, 0).arrays();
        let width = model.config.hidden_size;
        let function = model.compile("documents", &args, |decoder, g, args| {
            let hidden = decoder.hidden(&args[0], &sequence(&args[1], &args[2]));
            let real = args[1].gt(&args[1].zeros_like()).convert(DType::F32);
            let weight = (args[2].convert(DType::F32) * 0.37 + 1.0).sin() * real;
            let column = g.iota(DType::F32, &[1, 1, width], 2);
            let loss = (&hidden * (column * 0.11).cos() * weight.expand(2)).sum(&[0, 1, 2]);
            let gradient = g.grad(&loss, &[decoder.params.at("embed")]).remove(0);
            vec![hidden, gradient]
        });
        Self { function, width }
    }

    /// What belongs to each document, in the order of the row.
    fn run(&self, row: Row) -> Vec<Found> {
        let rest = WIDTH - row.tokens.len();
        let row = row.padding(rest, 5);
        let found = self.function.run(&row.arrays());
        let (hidden, gradient) = (found[0].as_slice::<f32>(), found[1].as_slice::<f32>());
        let part = |values: &[f32], at: usize| values[at * self.width..][..self.width].to_vec();
        let last = *row.segment_ids.iter().max().unwrap();
        let of = |segment: i32| {
            let places = (0..WIDTH).filter(|i| row.segment_ids[*i] == segment);
            let places: Vec<usize> = places.collect();
            let ids = places.iter().map(|i| row.tokens[*i] as usize);
            Found {
                hidden: places.iter().flat_map(|i| part(hidden, *i)).collect(),
                gradient: ids.flat_map(|id| part(gradient, id)).collect(),
            }
        };
        (1..=last).map(of).collect()
    }
}

/// Tokens of document `d`, all between `32 (d + 1)` and `32 (d + 2)`.
fn document(d: usize, length: usize, seed: usize) -> Vec<i32> {
    let first = 32 * (d as i32 + 1);
    (0..length)
        .map(|i| first + token(seed, i).rem_euclid(32))
        .collect()
}

/// One compiled program of each family is enough for all three laws.
#[test]
fn documents_do_not_know_of_each_other() {
    for family in FAMILIES {
        let probe = Probe::new(&Model::load(family));
        changing_a_document_leaves_the_others_bit_equal(family, &probe);
        place_order_and_padding_change_nothing(family, &probe);
        what_padding_holds_changes_nothing(family, &probe);
    }
}

fn changing_a_document_leaves_the_others_bit_equal(family: &str, probe: &Probe) {
    let with = |middle: usize| {
        Row::default()
            .document(&document(0, 19, 1))
            .padding(3, 7)
            .document(&document(1, 37, middle))
            .document(&document(2, 21, 3))
    };
    let (before, after) = (probe.run(with(2)), probe.run(with(9)));
    assert_eq!(before[0], after[0], "{family}: the document before");
    assert_eq!(before[2], after[2], "{family}: the document after");
    assert_ne!(before[1], after[1], "{family}");
    assert!(before[0].gradient.iter().any(|v| *v != 0.0));
}

fn place_order_and_padding_change_nothing(family: &str, probe: &Probe) {
    let docs = [document(0, 19, 1), document(1, 37, 2), document(2, 2, 3)];
    let alone: Vec<Found> = docs
        .iter()
        .map(|doc| probe.run(Row::default().document(doc)).remove(0))
        .collect();
    for (order, padding) in [
        ([0, 1, 2], [0, 0, 0]),
        ([2, 1, 0], [1, 5, 2]),
        ([1, 2, 0], [27, 0, 4]),
    ] {
        let mut row = Row::default();
        for (d, before) in order.into_iter().zip(padding) {
            row = row.padding(before, 11).document(&docs[d]);
        }
        for (d, found) in order.into_iter().zip(probe.run(row)) {
            let what = format!("{family}: document {d} in order {order:?} after {padding:?}");
            assert!(worst(&found.hidden, &alone[d].hidden) < 2e-5, "{what}");
            let size = alone[d].gradient.iter().fold(0_f32, |m, v| m.max(v.abs()));
            let error = worst(&found.gradient, &alone[d].gradient) / size;
            assert!(error < 2e-5, "{what}: gradients differ by {error}");
        }
    }
}

fn what_padding_holds_changes_nothing(family: &str, probe: &Probe) {
    let with = |filler: i32| {
        Row::default()
            .padding(6, filler)
            .document(&document(0, 30, 1))
            .padding(9, filler + 1)
            .document(&document(1, 11, 2))
    };
    assert_eq!(probe.run(with(1)), probe.run(with(20)), "{family}");
}

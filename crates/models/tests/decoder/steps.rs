//! Decoding from a cache is the forward pass, wherever the prompt ends.

use ferrotune_graph::{DType, Graph, Policy, Tensor};
use ferrotune_models::{Cache, Decoder};
use ferrotune_nn::Sequence;

use crate::setup::{FAMILIES, Model, ints, token, worst};

const TOKENS: usize = 70;
/// Two rows: a document of all columns, and one that begins later.
const FIRST: [usize; 2] = [0, 1];

fn sequence(g: &Graph, width: usize) -> Sequence {
    let column = g.iota(DType::S32, &[2, width], 1);
    let first = ints(&[2, 1], &FIRST.map(|n| n as i32));
    let position = column - g.constant(first);
    let real = position.ge(&position.zeros_like());
    Sequence {
        segment_ids: real.convert(DType::S32),
        positions: real.select(&position, &position.zeros_like()),
    }
}

/// Log-probs of the whole rows, and those of the tokens after the first `split` from decoding one by one, `[2,T−split,V]`.
fn both_ways(decoder: &Decoder<'_>, g: &Graph, tokens: &Tensor, split: usize) -> Vec<Tensor> {
    let whole = decoder.hidden(tokens, &sequence(g, TOKENS));
    let (_, cache) = decoder.prefill(&tokens.slice(1, 0, split), &sequence(g, split));
    let entries = decoder.config.cache(2, TOKENS, DType::F32);
    assert_eq!(entries.len(), cache.tensors.len());
    let room = |(tensor, entry): (&Tensor, &ferrotune_models::CacheEntry)| {
        let filled = match entry.slots {
            Some(axis) => tensor.pad(axis, 0, TOKENS - split, 0.0),
            None => tensor.clone(),
        };
        assert_eq!(
            (filled.dims(), filled.dtype()),
            (entry.dims.clone(), entry.dtype)
        );
        filled
    };
    let cache: Vec<Tensor> = cache.tensors.iter().zip(&entries).map(room).collect();
    let first = g.constant(ints(&[2], &FIRST.map(|n| n as i32)));
    let layers = decoder.layers();
    let rest = tokens.slice(1, split, TOKENS).transpose(&[1, 0]);
    let (_, hidden) = g.scan(
        Policy::recompute(),
        cache,
        vec![rest.expand(2)],
        TOKENS - split,
        |step, cache, token| {
            let slot = step + split as f64;
            let position = (&slot - &first).expand(1);
            let cache = Cache {
                tensors: cache.to_vec(),
            };
            let (forward, cache) =
                decoder.decode(&layers, &token[0], &position, &slot, &first, &cache);
            (cache.tensors, vec![forward.hidden])
        },
    );
    let stepped = hidden[0]
        .reshape(&[TOKENS - split, 2, decoder.config.hidden_size])
        .transpose(&[1, 0, 2]);
    [whole.slice(1, split, TOKENS), stepped]
        .map(|hidden| decoder.logits(&hidden))
        .to_vec()
}

#[test]
fn decoding_from_any_split_is_the_forward_pass() {
    let values: Vec<i32> = (0..2 * TOKENS).map(|i| token(3, i)).collect();
    let tokens = [ints(&[2, TOKENS], &values)];
    for family in FAMILIES {
        let model = Model::load(family);
        // Shorter than the convolution, around the border of a chunk, all but one.
        for split in [2, 64, 69] {
            let function = model.compile(family, &tokens, |decoder, g, args| {
                both_ways(decoder, g, &args[0], split)
            });
            let found = function.run(&tokens);
            let error = worst(found[0].as_slice(), found[1].as_slice());
            assert!(error < 2e-5, "{family}, split at {split}: {error}");
        }
    }
}

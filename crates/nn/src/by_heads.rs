//! A region in which every device works on all tokens of its rows, for some of the heads.

use ferrotune_graph::{DType, Sharding, Tensor};

use crate::sequence::Sequence;

/// Runs `f` on every device for whole rows: of `tokens`, `[B,T,K,…]` each, and `weights`, `[K,…]` each, it gets those of some of
/// the heads `K`, and it returns `[B,T,K,…]` of these.
///
/// It is for layers that read the tokens of a row in their order. Where devices share a row, each sends its tokens to those that
/// have their heads and gets back what these have made of them; where the devices do not divide the heads, each gathers all
/// tokens, works on all heads, and keeps what belongs to its own tokens. On one device it is `f`, and also inside of a region
/// whose tensors are those of one device. `rank` is that of the result.
///
/// # Shapes
/// Rows lie as the rules place the axes `batch` and `tokens`, in their natural order.
/// # Source
/// Jacobs et al., "DeepSpeed Ulysses" (2023), §3.1, for the exchange.
#[track_caller]
pub fn by_heads(
    tokens: &[Tensor],
    weights: &[Tensor],
    seq: &Sequence,
    rank: usize,
    f: impl FnOnce(&[Tensor], &[Tensor], &Sequence) -> Tensor,
) -> Tensor {
    let g = tokens[0].graph().clone();
    if g.is_local() {
        return f(tokens, weights, seq);
    }
    let rows = g.placement("tokens", &tokens[0].dims()[..2], &["batch", "tokens"]);
    let split = rows.dims[1].clone();
    let of_rank = |rank: usize| {
        let mut dims = rows.dims.clone();
        dims.resize(rank, Vec::new());
        Sharding { dims }
    };
    let over: Vec<&str> = split.iter().map(String::as_str).collect();
    let sizes = over
        .iter()
        .map(|axis| g.mesh().axis_size(axis).unwrap_or(1));
    let devices: usize = sizes.product();
    let heads = Heads {
        over: &over,
        devices,
        exchanged: tokens[0].dim(2).is_multiple_of(devices),
    };
    let of_weight = |weight: &Tensor| {
        let mut sharding = Sharding::replicated(weight.rank());
        if heads.exchanged {
            sharding.dims[0] = split.clone();
        }
        sharding
    };
    let places = [&seq.segment_ids, &seq.positions];
    let inputs = tokens.iter().chain(places).map(|t| (t, of_rank(t.rank())));
    let inputs: Vec<(&Tensor, Sharding)> = inputs
        .chain(weights.iter().map(|w| (w, of_weight(w))))
        .collect();
    let axes = g.automatic_axes();
    let axes: Vec<&str> = axes.iter().map(String::as_str).collect();
    let mut found = g.manual(&axes, &inputs, &[of_rank(rank)], |parts| {
        let (tokens, rest) = parts.split_at(tokens.len());
        let (places, weights) = rest.split_at(2);
        let seq = Sequence {
            segment_ids: heads.gathered(&places[0]),
            positions: heads.gathered(&places[1]),
        };
        let tokens: Vec<Tensor> = tokens.iter().map(|t| heads.of_rows(t)).collect();
        vec![heads.of_tokens(&f(&tokens, weights, &seq))]
    });
    found.remove(0)
}

/// Whether several devices have tokens of the same row of `x [B,T,…]`.
pub fn rows_are_shared(x: &Tensor) -> bool {
    let g = x.graph();
    if g.is_local() {
        return false;
    }
    let rows = g.placement("tokens", &x.dims()[..2], &["batch", "tokens"]);
    let mut sizes = rows.dims[1].iter().map(|axis| g.mesh().axis_size(axis));
    sizes.any(|size| size.is_some_and(|size| size > 1))
}

/// How the devices along some axes share rows.
struct Heads<'a> {
    over: &'a [&'a str],
    devices: usize,
    /// Whether each has some of the heads, or all of them.
    exchanged: bool,
}

impl Heads<'_> {
    fn gathered(&self, x: &Tensor) -> Tensor {
        match self.over {
            [] => x.clone(),
            axes => x.all_gather(axes, 1),
        }
    }

    /// Own tokens of all heads → all tokens of own heads.
    fn of_rows(&self, x: &Tensor) -> Tensor {
        if self.exchanged && self.devices > 1 {
            x.all_to_all(self.over, 2, 1)
        } else {
            self.gathered(x)
        }
    }

    /// The opposite.
    fn of_tokens(&self, x: &Tensor) -> Tensor {
        if self.devices == 1 {
            return x.clone();
        }
        if self.exchanged {
            return x.all_to_all(self.over, 1, 2);
        }
        let g = x.graph();
        let mut dims = x.dims();
        dims[1] /= self.devices;
        let first = g.axis_index(self.over) * dims[1] as f64;
        let zero = g.scalar(0.0, DType::S32);
        let mut starts = vec![&zero; dims.len()];
        starts[1] = &first;
        x.dynamic_slice(&starts, &dims)
    }
}

//! A region in which every device works on its own tokens.

use ferrotune_graph::{Sharding, Tensor};

/// What is made of tokens.
pub struct OfTokens {
    /// Values of each token, `[B,T,…]`.
    pub tokens: Vec<Tensor>,
    /// Sums over the tokens, of any shape.
    pub sums: Vec<Tensor>,
}

/// Runs `f` on every device, for the tokens that it has: `f` gets its part of the tensors `tokens`, `[B,T,…]` each. What `f`
/// sums over them is summed over the devices; inside of a region along some axes, over those along the others. Other tensors that
/// `f` uses are whole on every device.
///
/// Sorting tokens, or looking for some of them, over all devices would move them; here they stay where they are. On one
/// device it is `f`, and also inside of a region whose tensors are those of one device. `ranks` are the ranks of the results: of values of tokens, and of sums.
///
/// # Shapes
/// Rows lie as the rules place the axes `batch` and `tokens`. A device's part of `[B,T,…]` is a smaller `[B,T,…]`.
#[track_caller]
pub fn by_tokens(
    tokens: &[Tensor],
    ranks: (&[usize], &[usize]),
    f: impl FnOnce(&[Tensor]) -> OfTokens,
) -> OfTokens {
    let g = tokens[0].graph().clone();
    if g.is_local() {
        return f(tokens);
    }
    let rows = g.placement("tokens", &tokens[0].dims()[..2], &["batch", "tokens"]);
    let of_rank = |rank: usize| {
        let mut dims = rows.dims.clone();
        dims.resize(rank, Vec::new());
        Sharding { dims }
    };
    let inputs: Vec<_> = tokens.iter().map(|t| (t, of_rank(t.rank()))).collect();
    let split = ranks.0.iter().map(|rank| of_rank(*rank));
    let whole = ranks.1.iter().map(|rank| Sharding::replicated(*rank));
    let outputs: Vec<Sharding> = split.chain(whole).collect();
    let axes = g.automatic_axes();
    let axes: Vec<&str> = axes.iter().map(String::as_str).collect();
    let over: Vec<&str> = rows.dims.iter().flatten().map(String::as_str).collect();
    let mut results = g.manual(&axes, &inputs, &outputs, |parts| {
        let found = f(parts);
        let total = |sum: Tensor| {
            if over.is_empty() {
                sum
            } else {
                sum.all_reduce(&over)
            }
        };
        let sums = found.sums.into_iter().map(total);
        found.tokens.into_iter().chain(sums).collect()
    });
    let sums = results.split_off(ranks.0.len());
    OfTokens {
        tokens: results,
        sums,
    }
}

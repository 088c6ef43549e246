//! The gated delta rule: attention with a state of fixed size, in chunks that are computed at once.
//!
//! Letters besides the crate's: `K` key heads, `R` value heads of each, `E` key size, `V` value size, `N` chunks, `C` tokens of
//! a chunk.

use ferrotune_graph::{DType, Graph, Policy, Precision, Tensor};

use crate::sequence::Sequence;

/// What the rule reads of each token.
#[derive(Clone, Debug)]
pub struct DeltaInputs {
    /// Queries `[B,T,K,E]`, normalised and scaled.
    pub query: Tensor,
    /// Keys `[B,T,K,E]`, normalised.
    pub key: Tensor,
    /// Values `[B,T,K,R,V]`.
    pub value: Tensor,
    /// Logarithm of the decay, f32 `[B,T,K,R]`, at most 0.
    pub log_decay: Tensor,
    /// How much of the old value is replaced, f32 `[B,T,K,R]`, between 0 and 1.
    pub beta: Tensor,
}

/// Runs the recurrence over every document of the rows and returns what it reads, f32 `[B,T,K,R,V]`.
///
/// With a state `h [E,V]`, zero before the first token of a document, each token does
/// `h ← e^g h;  h ← h + k (β (v − hᵀk))ᵀ;  o = hᵀq`.
///
/// The tokens of a chunk are computed at once. With `G` the running sum of `g` in the chunk and
/// `S_ij = β_i (k_i·k_j) e^{G_i−G_j}` for `j < i`, `A = (I+S)⁻¹`:
/// `U = A β v`, `W = A β e^G k`, and from chunk to chunk `v' = U − W h`, `o = e^G q h + tril(q kᵀ e^{G_i−G_j}) v'`,
/// `h ← e^{G_C} h + (e^{G_C−G} k)ᵀ v'`. Products are f32 and as exact as the device can.
///
/// Where tokens belong to different documents their products are masked, so that neither a chunk's border nor padding
/// changes anything. Differences of decays are masked before the exponential: above the diagonal they would overflow.
/// What padding reads is zero.
///
/// # Shapes
/// See [`DeltaInputs`]; a row that `chunk` does not divide is padded inside.
/// # Source
/// Yang, Kautz and Hatamizadeh, "Gated delta networks" (2024), §3.3, eq. 10 and the chunked form after it.
#[track_caller]
pub fn gated_delta_rule(x: &DeltaInputs, seq: &Sequence, chunk: usize) -> Tensor {
    gated_delta_state(x, seq, chunk).0
}

/// The same, and the state after each row's last token, f32 `[B,K,R,E,V]`: zero where that is padding.
///
/// # Shapes
/// As [`gated_delta_rule`].
#[track_caller]
pub fn gated_delta_state(x: &DeltaInputs, seq: &Sequence, chunk: usize) -> (Tensor, Tensor) {
    let tokens = x.query.dim(1);
    let chunk = chunk.min(tokens);
    let chunks = tokens.div_ceil(chunk);
    let parts = Chunks::cut(x, seq, chunk, chunks);
    let (read, state) = parts.recurrence(&parts.inside());
    // [N,B,K,R,C,V] → [B,T,K,R,V]
    let rows = read.transpose(&[1, 0, 4, 2, 3, 5]);
    let dims = rows.dims();
    let whole = chunks * chunk;
    let rows = rows.reshape(&[dims[0], whole, dims[3], dims[4], dims[5]]);
    (rows.slice(1, whole - tokens, whole), state)
}

/// One token of the recurrence, for decoding: returns what it reads, `[B,K,R,V]`, and the next state, both f32.
///
/// # Shapes
/// `state [B,K,R,E,V]` f32; the inputs as in [`DeltaInputs`] without the token dimension.
#[track_caller]
pub fn delta_step(state: &Tensor, x: &DeltaInputs) -> (Tensor, Tensor) {
    let g = state.graph();
    let wide = |t: &Tensor| t.convert(DType::F32);
    let (q, k, v) = (wide(&x.query), wide(&x.key), wide(&x.value));
    let decayed = state * x.log_decay.exp().expand(3).expand(4);
    let old = exact(g, "bke,bkrev->bkrv", &k, &decayed);
    let change = (v - old) * x.beta.expand(3);
    let added = k.expand(2).expand(4) * change.expand(3);
    let next = decayed + added;
    (exact(g, "bke,bkrev->bkrv", &q, &next), next)
}

fn exact(g: &Graph, spec: &str, a: &Tensor, b: &Tensor) -> Tensor {
    g.einsum_with(spec, a, b, DType::F32, Precision::Highest)
}

/// The inputs in chunks, f32, chunks outermost.
struct Chunks {
    query: Tensor,   // [N,B,K,C,E]
    key: Tensor,     // [N,B,K,C,E]
    value: Tensor,   // [N,B,K,R,C,V]
    beta: Tensor,    // [N,B,K,R,C]
    steps: Tensor,   // [N,B,K,R,C]: log decay of each token
    decayed: Tensor, // [N,B,K,R,C]: its sum over the document's tokens in the chunk, up to this one
    left: Tensor,    // [N,B,K,R,C]: its sum over those after it
    segment: Tensor, // [N,B,C]
}

/// Pairs of tokens of one document, padding excluded, where `keep(i, j)`: segments `[N,B,C]` → `[N,B,C,C]`.
fn pairs(segment_nbc: &Tensor, keep: impl Fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    let (g, c) = (segment_nbc.graph(), segment_nbc.dim(2));
    let row = g.iota(DType::S32, &[1, 1, c, c], 2);
    let column = g.iota(DType::S32, &[1, 1, c, c], 3);
    let (i, j) = (segment_nbc.expand(3), segment_nbc.expand(2));
    let same = i.eq(&j).and(&i.gt(&i.scalar_like(0.0)));
    same.and(&keep(&row, &column))
}

/// What is computed of every chunk before the recurrence.
struct Inside {
    u: Tensor,         // [N,B,K,R,C,V]
    w: Tensor,         // [N,B,K,R,C,E]
    attention: Tensor, // [N,B,K,R,C,C]
}

impl Chunks {
    fn cut(x: &DeltaInputs, seq: &Sequence, chunk: usize, chunks: usize) -> Self {
        let padding = chunk * chunks - x.query.dim(1);
        // [B,T,…] → [N,B,C,…], then the token dimension behind the heads.
        let cut = |t: &Tensor, order: &[usize]| {
            let dims = t.dims();
            // In front, so that the last state is that of the last token.
            let padded = t.pad(1, padding, 0, 0.0);
            let apart = padded.reshape(&[&[dims[0], chunks, chunk], &dims[2..]].concat());
            apart.transpose(order)
        };
        let wide = |t: &Tensor| t.convert(DType::F32);
        let heads = [1, 0, 3, 2, 4];
        let per_value_head = [1, 0, 3, 4, 2];
        let segment = cut(&seq.segment_ids, &[1, 0, 2]);
        let steps = wide(&cut(&x.log_decay, &per_value_head));
        // A plain running sum would let the decays of one document into the rounding of the next.
        let sum_where = |keep: fn(&Tensor, &Tensor) -> Tensor| {
            let kept = pairs(&segment, keep).convert(DType::F32);
            exact(x.query.graph(), "nbij,nbkrj->nbkri", &kept, &steps)
        };
        Self {
            query: wide(&cut(&x.query, &heads)),
            key: wide(&cut(&x.key, &heads)),
            value: wide(&cut(&x.value, &[1, 0, 3, 4, 2, 5])),
            beta: wide(&cut(&x.beta, &per_value_head)),
            decayed: sum_where(Tensor::ge),
            left: sum_where(Tensor::lt),
            steps,
            segment,
        }
    }

    /// The log decay between each two tokens, `[N,B,K,R,C,C]`: of token `i` from just after token `j`, for `j ≤ i` of one
    /// document.
    ///
    /// As a sum over the tokens between them, not as a difference of running sums: in the derivative of that, the sum of a
    /// row and that of a column nearly cancel.
    fn between(&self, upto: &Tensor) -> Tensor {
        let (g, c) = (self.steps.graph(), self.segment.dim(2));
        let square = [c, c];
        let after = g
            .iota(DType::S32, &square, 0)
            .gt(&g.iota(DType::S32, &square, 1));
        let reached = upto.select(&self.steps.expand(4), &self.steps.scalar_like(0.0));
        exact(g, "nbkrit,tj->nbkrij", &reached, &after.convert(DType::F32))
    }

    fn inside(&self) -> Inside {
        let g = self.query.graph();
        let zero = self.query.scalar_like(0.0);
        let among_heads = |pairs: Tensor| pairs.expand(2).expand(2); // [N,B,1,1,C,C]
        let upto = among_heads(pairs(&self.segment, Tensor::ge));
        let between = self.between(&upto);
        let decay = upto.select(&between, &between.scalar_like(-1e30)).exp();
        let overlap = exact(g, "nbkce,nbkde->nbkcd", &self.key, &self.key).expand(3);
        let coupled = overlap * &decay * self.beta.expand(5);
        let before = among_heads(pairs(&self.segment, Tensor::gt));
        let coupled = before.select(&coupled, &zero);
        let scaled = &self.value * self.beta.expand(5);
        // The carried state reaches only the tokens that go on with its document; `recurrence` masks the rest.
        let from_state = self.key.expand(3) * (&self.beta * self.decayed.exp()).expand(5);
        let both = Tensor::concatenate(&[&scaled, &from_state], 5);
        let solved = unit_lower_inverse_times(&coupled, &both);
        let values = self.value.dim(5);
        let attention = exact(g, "nbkce,nbkde->nbkcd", &self.query, &self.key).expand(3) * decay;
        Inside {
            u: solved.slice(5, 0, values),
            w: solved.slice(5, values, solved.dim(5)),
            attention,
        }
    }

    /// Walks the chunks with the state `[B,K,R,E,V]` and the document that it belongs to, and returns `[N,B,K,R,C,V]` and the
    /// last state.
    fn recurrence(&self, inside: &Inside) -> (Tensor, Tensor) {
        let g = self.query.graph().clone();
        let dims = self.value.dims();
        let (b, k, r, v) = (dims[1], dims[2], dims[3], dims[5]);
        let (e, chunks, c) = (self.query.dim(4), dims[0], dims[4]);
        let state = g.full(0.0, DType::F32, &[b, k, r, e, v]);
        let document = g.full(0.0, self.segment.dtype(), &[b]);
        let inputs = [
            &self.query,
            &self.key,
            &self.decayed,
            &self.left,
            &self.segment,
            &inside.u,
            &inside.w,
            &inside.attention,
        ];
        let (last, read) = g.scan(
            Policy::keep_all(),
            vec![state, document],
            inputs.map(Clone::clone).to_vec(),
            chunks,
            |_, carry, part| {
                let (state, document) = (&carry[0], &carry[1]);
                let [query, key, decayed, left, segment, u, w, attention] = part else {
                    panic!("eight inputs are stacked")
                };
                let mask = |t: &Tensor| t.convert(DType::F32).reshape(&[b, 1, 1, c, 1]);
                let last = segment.slice(1, c - 1, c); // [B,1]
                let real = segment.gt(&segment.scalar_like(0.0));
                let goes_on = mask(&segment.eq(&document.expand(1)).and(&real));
                let to_end = segment.eq(&last).and(&real).reshape(&[b, 1, 1, c]);
                let kept = document.expand(1).eq(&last).convert(DType::F32);
                let kept = kept.reshape(&[b, 1, 1, 1, 1]);

                let value = u - exact(&g, "bkrce,bkrev->bkrcv", &(w * &goes_on), state);
                let scaled = query.expand(2) * decayed.exp().expand(4) * goes_on;
                let read = exact(&g, "bkrce,bkrev->bkrcv", &scaled, state)
                    + exact(&g, "bkrcd,bkrdv->bkrcv", attention, &value);
                let total = decayed.slice(3, c - 1, c); // [B,K,R,1]
                let left = to_end.select(left, &left.scalar_like(-1e30));
                let written = key.expand(2) * left.exp().expand(4);
                let next = state * total.exp().expand(4) * kept
                    + exact(&g, "bkrce,bkrcv->bkrev", &written, &value);
                (vec![next, last.reshape(&[b])], vec![read])
            },
        );
        (read[0].clone(), last[0].clone())
    }
}

/// `(I + S)⁻¹ X` for strictly lower triangular `S [N,B,K,R,C,C]` and `X [N,B,K,R,C,M]`.
fn unit_lower_inverse_times(s: &Tensor, x: &Tensor) -> Tensor {
    s.solve_triangular(x, true, true)
}

//! The mathematics of the device programs on the host, in f64, with derivatives worked out by hand.
//!
//! Written for being read beside the formulas, not for speed: tests hold the traced loss and its gradient against it.
//! Legend: `V` vocabulary, `N` tokens.

#[cfg(test)]
mod tests;

/// The log-ratio is kept within this range before it is exponentiated; outside, its derivative is zero.
pub const MAX_LOG_RATIO: f64 = 20.0;

/// Log-probability and entropy of one token, and the derivative of the former.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// `log p(target)`.
    pub logprob: f64,
    /// `-sum p log p`, in nats.
    pub entropy: f64,
    /// `d logprob / d logits`, `[V]`.
    pub grad: Vec<f64>,
}

/// Scores `target` under `p = softmax(logits / temperature)`.
///
/// `log p_i = z_i - log sum exp z` with `z = logits / T`; `d log p_t / d logits_i = ([i = t] - p_i) / T`.
///
/// # Panics
/// If `target` is not below the number of logits.
pub fn score_token(logits: &[f64], target: usize, temperature: f64) -> TokenScore {
    assert!(
        target < logits.len(),
        "token {target} is outside the vocabulary of {}",
        logits.len()
    );
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shifted = |logit: f64| (logit - max) / temperature;
    let log_sum = logits.iter().map(|&l| shifted(l).exp()).sum::<f64>().ln();
    let logprobs: Vec<f64> = logits.iter().map(|&l| shifted(l) - log_sum).collect();
    let entropy = -logprobs.iter().map(|l| l.exp() * l).sum::<f64>();
    let hit = |i| if i == target { 1.0 } else { 0.0 };
    let grad = logprobs
        .iter()
        .enumerate()
        .map(|(i, l)| (hit(i) - l.exp()) / temperature)
        .collect();
    TokenScore {
        logprob: logprobs[target],
        entropy,
        grad,
    }
}

/// Where the ratio of new to old probability stops paying.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The ratio counts as at least `1 - low`.
    pub low: f64,
    /// The ratio counts as at most `1 + high`.
    pub high: f64,
    /// Dual clip `c` above 1: for a negative advantage the loss of a token is at most `-c * advantage`.
    pub dual: Option<f64>,
}

/// The tokens of a batch, in any order; all four have length `N`.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Log-probabilities under the weights being trained.
    pub logprobs: &'a [f64],
    /// Log-probabilities under the weights that sampled.
    pub old_logprobs: &'a [f64],
    /// Advantage of the answer that each token belongs to.
    pub advantages: &'a [f64],
    /// Loss weight: mask, aggregation and denominator in one number, decided on the host.
    pub weights: &'a [f64],
}

/// The loss over a batch of tokens, its derivative, and what was clipped.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// `sum_n weight_n * l_n`.
    pub loss: f64,
    /// `d loss / d logprobs`, `[N]`.
    pub grad: Vec<f64>,
    /// Probability ratios, `[N]`.
    pub ratios: Vec<f64>,
    /// Tokens of nonzero weight with a negative advantage and a ratio below `1 - low`.
    pub clipped_low: usize,
    /// Tokens of nonzero weight with a positive advantage and a ratio above `1 + high`.
    pub clipped_high: usize,
    /// Tokens of nonzero weight held down by the dual clip.
    pub clipped_dual: usize,
}

/// The clipped policy loss of PPO with the advantages of GRPO.
///
/// For each token, with `r = exp(clamp(logprob - old_logprob, -20, 20))` and advantage `A`:
/// `l = max(-A r, -A clamp(r, 1 - low, 1 + high))`, and with the dual clip `l = min(l, -c A)` where `A < 0`.
/// `dl / dlogprob = -A r` where the unclipped term is the one that counts, else 0.
///
/// Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; GRPO, arXiv:2402.03300, equation 3 without its KL term; unequal bounds:
/// DAPO, arXiv:2503.14476, equation 8; dual clip: Ye et al. 2020, arXiv:1912.09729, equation 5.
///
/// # Panics
/// If the lengths differ.
pub fn grpo_loss(tokens: Tokens<'_>, clip: Clip) -> Loss {
    let count = tokens.logprobs.len();
    for (what, len) in [
        ("old log-probabilities", tokens.old_logprobs.len()),
        ("advantages", tokens.advantages.len()),
        ("weights", tokens.weights.len()),
    ] {
        assert_eq!(len, count, "{what} do not match the log-probabilities");
    }
    let mut result = Loss {
        loss: 0.0,
        grad: Vec::new(),
        ratios: Vec::new(),
        clipped_low: 0,
        clipped_high: 0,
        clipped_dual: 0,
    };
    for n in 0..count {
        let log_ratio = tokens.logprobs[n] - tokens.old_logprobs[n];
        let token = token_loss(log_ratio, tokens.advantages[n], clip);
        let weight = tokens.weights[n];
        result.loss += weight * token.loss;
        result.grad.push(weight * token.grad);
        result.ratios.push(token.ratio);
        if weight != 0.0 {
            result.clipped_low += usize::from(token.held == Held::Low);
            result.clipped_high += usize::from(token.held == Held::High);
            result.clipped_dual += usize::from(token.held == Held::Dual);
        }
    }
    result
}

#[derive(PartialEq)]
enum Held {
    Free,
    Low,
    High,
    Dual,
}

struct TokenLoss {
    loss: f64,
    grad: f64,
    ratio: f64,
    held: Held,
}

fn token_loss(log_ratio: f64, advantage: f64, clip: Clip) -> TokenLoss {
    let ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp();
    let free = -advantage * ratio;
    let clipped = -advantage * ratio.clamp(1.0 - clip.low, 1.0 + clip.high);
    if let Some(bound) = clip.dual
        && advantage < 0.0
        && free.max(clipped) > -bound * advantage
    {
        return TokenLoss {
            loss: -bound * advantage,
            grad: 0.0,
            ratio,
            held: Held::Dual,
        };
    }
    if clipped > free {
        let held = if advantage < 0.0 {
            Held::Low
        } else {
            Held::High
        };
        return TokenLoss {
            loss: clipped,
            grad: 0.0,
            ratio,
            held,
        };
    }
    let inside = log_ratio.abs() <= MAX_LOG_RATIO;
    TokenLoss {
        loss: free,
        grad: if inside { free } else { 0.0 },
        ratio,
        held: Held::Free,
    }
}

//! What reaches the compiler, and what it makes of it.

use ferrotune_graph::{DType, Platform};
use ferrotune_nn::{EntropyUse, HeadMode};

use crate::case::{Case, Numbers};

/// Powers of two all different, so that a shape tells what it is: 32 tokens, width 8, vocabulary 256.
fn numbers() -> Numbers {
    Numbers::new([2, 16, 8, 256])
}

fn text(case: &Case) -> String {
    let (builder, _) = case.trace(&numbers(), |g, args| case.everything(g, args));
    builder.lower(Platform::Gpu).module.text
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

/// Lines of `text` that hold all of `words`.
fn lines(text: &str, words: &[&str]) -> usize {
    text.lines()
        .filter(|line| words.iter().all(|w| line.contains(w)))
        .count()
}

#[test]
fn no_mode_gathers_scatters_or_sorts() {
    for mode in [
        HeadMode::Off,
        HeadMode::Local,
        HeadMode::Fused,
        HeadMode::SinglePass,
    ] {
        let text = text(&Case::new(mode, 8, 64));
        for what in ["stablehlo.gather", "stablehlo.scatter", "stablehlo.sort"] {
            assert_eq!(count(&text, what), 0, "{mode:?}: {what}");
        }
    }
}

#[test]
fn fused_has_one_barrier_two_exponentials_a_logit_and_four_products() {
    for (tokens, vocab) in [(8, usize::MAX), (usize::MAX, 64), (8, 64)] {
        for entropy in [
            EntropyUse::Unread,
            EntropyUse::Reported,
            EntropyUse::Differentiated,
        ] {
            let case = Case {
                entropy,
                ..Case::new(HeadMode::Fused, tokens, vocab)
            };
            let text = gradient(&case);
            let (n, v) = (tokens.min(32), vocab.min(256));
            let logits = format!("tensor<{n}x{v}xf32>");
            assert_eq!(
                lines(&text, &["stablehlo.exponential", &logits]),
                2,
                "{text}"
            );
            assert_eq!(count(&text, "stablehlo.optimization_barrier"), 1);
            assert_eq!(count(&text, "stablehlo.dot_general"), 4);
        }
    }
}

#[test]
fn the_backward_pass_sums_nothing_over_the_vocabulary() {
    for entropy in [EntropyUse::Unread, EntropyUse::Differentiated] {
        let case = Case {
            entropy,
            ..Case::new(HeadMode::Fused, 8, 64)
        };
        let text = text(&case);
        let backward = &text[text.rfind("stablehlo.exponential").unwrap()..];
        assert_eq!(count(backward, "stablehlo.reduce"), 0, "{backward}");
    }
}

#[test]
fn nobody_computes_an_entropy_that_nobody_reads() {
    let case = |entropy| Case {
        entropy,
        ..Case::new(HeadMode::Fused, 8, 64)
    };
    let sums = |entropy| {
        let case = case(entropy);
        let (builder, _) = case.trace(&numbers(), |g, args| {
            let scores = case.scores(args);
            g.grad(
                &(&args[4] * &scores.logprob).sum_all(),
                &[&args[0], &args[1]],
            )
        });
        let text = builder.lower(Platform::Gpu).module.text;
        count(&text, "applies stablehlo.add across dimensions") + count(&text, "stablehlo.reduce")
    };
    assert!(sums(EntropyUse::Unread) < sums(EntropyUse::Differentiated));
}

#[test]
fn no_tensor_is_larger_than_a_tile_of_logits() {
    let text = text(&Case::new(HeadMode::Fused, 8, 64));
    for large in ["x256xf32>", "tensor<256x"] {
        let held: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(large) && !line.contains("tensor<8x256xf32>"))
            .collect();
        assert!(held.is_empty(), "{held:#?}");
    }
}

#[test]
fn temporaries_shrink_with_the_tile() {
    let n = Numbers::new([1, 256, 64, 8192]);
    let temp = |platform, tokens, vocab| {
        let case = Case {
            platform,
            ..Case::new(HeadMode::Fused, tokens, vocab)
        };
        let program = case.compile(&n, |g, args| case.everything(g, args)).0;
        program.memory().temp
    };
    let [whole, chunked, tiled] =
        [(256, 8192), (64, 8192), (64, 512)].map(|(n, v)| temp(Platform::Gpu, n, v));
    let logits = 256 * 8192 * 4;
    assert!(whole >= logits, "{whole}");
    assert!(chunked < whole * 3 / 4, "{chunked} of {whole}");
    assert!(tiled < logits / 8, "{tiled} of {logits}");
    // Kernels hold nothing that XLA knows of.
    let kernels = temp(Platform::Cpu, 256, 8192);
    assert!(kernels < logits / 100, "{kernels} of {logits}");
}

#[test]
fn weights_are_narrowed_tile_by_tile() {
    for mode in [HeadMode::Fused, HeadMode::SinglePass] {
        let text = text(&Case {
            compute: DType::BF16,
            ..Case::new(mode, 8, 64)
        });
        assert!(text.contains("tensor<8x64xbf16>"), "{mode:?}: {text}");
        assert!(!text.contains("tensor<8x256xbf16>"), "{mode:?}: {text}");
    }
}

/// The text of the gradient of the loss alone.
fn gradient(case: &Case) -> String {
    let (builder, _) = case.trace(&numbers(), |g, args| {
        g.grad(&case.loss(args), &[&args[0], &args[1]])
    });
    builder.lower(Platform::Gpu).module.text
}

#[test]
fn the_single_pass_has_three_products_one_barrier_and_one_exponential_a_logit() {
    for (tokens, vocab) in [(8, usize::MAX), (usize::MAX, 64), (8, 64)] {
        let case = |entropy| Case {
            entropy,
            ..Case::new(HeadMode::SinglePass, tokens, vocab)
        };
        let (n, v) = (tokens.min(32), vocab.min(256));
        let logits = format!("tensor<{n}x{v}xf32>");
        for (entropy, exponentials) in [
            (EntropyUse::Unread, 1),
            (EntropyUse::Reported, 1),
            (EntropyUse::Differentiated, 2),
        ] {
            let text = gradient(&case(entropy));
            assert_eq!(
                lines(&text, &["stablehlo.exponential", &logits]),
                exponentials,
                "{text}"
            );
            assert_eq!(count(&text, "stablehlo.dot_general"), 3);
            assert_eq!(count(&text, "stablehlo.optimization_barrier"), 1);
        }
    }
}

#[test]
fn a_single_pass_that_is_not_differentiated_has_one_product() {
    let case = Case::new(HeadMode::SinglePass, 8, 64);
    let (builder, _) = case.trace(&numbers(), |_, args| vec![case.loss(args)]);
    let text = builder.lower(Platform::Gpu).module.text;
    assert_eq!(count(&text, "stablehlo.dot_general"), 1, "{text}");
}

//! Which layer is of which kind, and how layers are cut into stacks.

use std::collections::BTreeSet;

use super::super::layers::stacks;
use super::*;

/// `d` and `a` mix by the delta rule and by attention, capitals have experts.
fn kinds(pattern: &str) -> Vec<LayerKind> {
    let kind = |letter: char| LayerKind {
        mixer: if letter.eq_ignore_ascii_case(&'d') {
            Mixer::Delta
        } else {
            Mixer::Attention
        },
        feed: if letter.is_uppercase() {
            Feed::Experts
        } else {
            Feed::Dense
        },
    };
    pattern.chars().map(kind).collect()
}

fn pattern(kinds: &[LayerKind]) -> String {
    let letter = |kind: &LayerKind| {
        let letter = match kind.mixer {
            Mixer::Delta => 'd',
            Mixer::Attention => 'a',
        };
        match kind.feed {
            Feed::Dense => letter,
            Feed::Experts => letter.to_ascii_uppercase(),
        }
    };
    kinds.iter().map(letter).collect()
}

/// Stacks as `name:block*repeats`.
fn cut(layers: &str) -> String {
    let stacks = stacks(&kinds(layers));
    let text = stacks
        .iter()
        .map(|s| format!("{}:{}*{}", s.name, pattern(&s.block), s.repeats));
    text.collect::<Vec<_>>().join(" ")
}

#[test]
fn layers_are_cut_such_that_the_fewest_are_traced() {
    for (layers, expected) in [
        ("a", "layers:a*1"),
        ("aaaaaa", "layers:a*6"),
        ("ddda", "layers:ddda*1"),
        ("dddaddda", "layers:ddda*2"),
        ("DDDADDDADDDA", "layers:DDDA*3"),
        // Not a multiple of the period.
        ("dddadddadd", "layers:ddda*2 last_layers:dd*1"),
        // Leading dense layers.
        ("aAAAA", "first_layers:a*1 layers:A*4"),
        ("aaAAAAA", "first_layers:aa*1 layers:A*5"),
        (
            "dDDADDDADDDA",
            "first_layers:d*1 layers:DDAD*2 last_layers:DDA*1",
        ),
        // Experts in every second layer.
        ("aAaAaA", "layers:aA*3"),
        ("aAaAa", "layers:aA*2 last_layers:a*1"),
    ] {
        assert_eq!(cut(layers), expected, "{layers}");
    }
}

/// Fewest layers that a first part, a block and a block cut short can have in them, by trying everything.
fn fewest(kinds: &[LayerKind]) -> usize {
    let total = kinds.len();
    let mut best = total;
    for first in 0..total {
        for length in 1..=total - first {
            let rest = &kinds[first..];
            if (0..rest.len()).all(|i| rest[i] == rest[i % length]) {
                best = best.min(first + length + rest.len() % length);
            }
        }
    }
    best
}

#[test]
fn every_layer_is_in_one_stack_and_keeps_its_kind() {
    let letters = ["d", "a", "A"];
    // Every pattern of up to 7 layers of three kinds.
    for length in 1..=7u32 {
        for number in 0..3usize.pow(length) {
            let digit = |place| letters[number / 3usize.pow(place) % 3];
            let layers: String = (0..length).map(digit).collect();
            let kinds = kinds(&layers);
            let stacks = stacks(&kinds);
            let mut seen = BTreeSet::new();
            for stack in &stacks {
                for (place, kind) in stack.block.iter().enumerate() {
                    for layer in stack.layers(place) {
                        assert!(seen.insert(layer), "{layers}: layer {layer} twice");
                        assert_eq!(kinds[layer], *kind, "{layers}: layer {layer}");
                    }
                }
            }
            assert!(seen.into_iter().eq(0..kinds.len()), "{layers}");
            assert!(
                stacks.is_sorted_by_key(|stack| stack.first),
                "{layers}: in order"
            );
            let traced: usize = stacks.iter().map(|stack| stack.block.len()).sum();
            assert_eq!(traced, fewest(&kinds), "{layers}");
            let prefixes: BTreeSet<String> = stacks
                .iter()
                .flat_map(|s| (0..s.block.len()).map(|place| s.prefix(place)))
                .collect();
            assert_eq!(prefixes.len(), traced, "{layers}: paths differ");
        }
    }
}

#[test]
fn places_of_a_block_bear_its_number_and_a_single_one_does_not() {
    let one = &stacks(&kinds("aaa"))[0];
    assert_eq!(one.prefix(0), "layers");
    let four = &stacks(&kinds("dddaddda"))[0];
    assert_eq!(four.prefix(3), "layers/3");
    assert_eq!(four.layers(3).collect::<Vec<_>>(), [3, 7]);
    assert_eq!(four.layers(0).collect::<Vec<_>>(), [0, 4]);
}

fn layers_of(family: &str, changes: Value) -> String {
    pattern(
        &ModelConfig::parse(&edited(family, changes), "")
            .unwrap()
            .layers,
    )
}

#[test]
fn the_kind_of_a_layer_follows_from_its_list_or_its_interval() {
    let eight = |more: Value| {
        let mut changes = json!({"layer_types": null, "num_hidden_layers": 8});
        let more = more.as_object().unwrap().clone();
        changes.as_object_mut().unwrap().extend(more);
        changes
    };
    assert_eq!(layers_of("qwen3_5_text", eight(json!({}))), "dddaddda");
    let three = eight(json!({"full_attention_interval": 3}));
    assert_eq!(layers_of("qwen3_5_text", three), "ddaddadd");
    let listed = json!({"num_hidden_layers": 2, "full_attention_interval": 1,
        "layer_types": ["full_attention", "linear_attention"]});
    assert_eq!(layers_of("qwen3_next", listed), "AD");
    // Families of attention alone have no interval.
    assert_eq!(
        layers_of("qwen3", json!({"full_attention_interval": 1})),
        "aa"
    );
    let short = json!({"layer_types": ["linear_attention"]});
    assert_eq!(
        problems(&edited("qwen3_5_text", short)),
        ["layer_types names 1 layers, but num_hidden_layers is 4"]
    );
    let unknown = json!({"layer_types": ["linear_attention", "chunked_attention", "full_attention", "full_attention"]});
    let found = problems(&edited("qwen3_5_text", unknown));
    assert!(found[0].ends_with("only \"full_attention\" or \"linear_attention\" for every layer"));
    let delta = json!({"layer_types": ["linear_attention", "full_attention"]});
    assert!(problems(&edited("qwen3", delta))[0].contains("only \"full_attention\" for"));
}

#[test]
fn which_layers_have_experts_follows_from_step_and_list() {
    let six = |more: Value| {
        let mut changes =
            json!({"num_hidden_layers": 6, "intermediate_size": 96, "layer_types": null});
        let more = more.as_object().unwrap().clone();
        changes.as_object_mut().unwrap().extend(more);
        changes
    };
    assert_eq!(layers_of("qwen3_moe", six(json!({}))), "AAAAAA");
    let step = six(json!({"decoder_sparse_step": 2}));
    assert_eq!(layers_of("qwen3_moe", step), "aAaAaA");
    let listed = six(json!({"mlp_only_layers": [0, 5]}));
    assert_eq!(layers_of("qwen3_moe", listed), "aAAAAa");
    let both = six(json!({"mlp_only_layers": [1], "decoder_sparse_step": 3}));
    assert_eq!(layers_of("qwen3_moe", both), "aaAaaA");
    let hybrid = six(json!({"mlp_only_layers": [0]}));
    assert_eq!(layers_of("qwen3_next", hybrid), "dDDADD");
    // The file of this family cannot say otherwise.
    let only = six(json!({"mlp_only_layers": [0], "decoder_sparse_step": 2}));
    assert_eq!(layers_of("qwen3_5_moe_text", only), "DDDADD");
    assert_eq!(layers_of("qwen3", json!({"decoder_sparse_step": 1})), "aa");
    for bad in [json!([6]), json!([-1]), json!("all"), json!([0.5])] {
        let found = problems(&edited("qwen3_moe", six(json!({"mlp_only_layers": bad}))));
        assert_eq!(
            found,
            [format!(
                "mlp_only_layers must be a list of layers below 6, found {bad}"
            )]
        );
    }
    // A dense layer needs its width.
    let narrow = six(json!({"mlp_only_layers": [0], "intermediate_size": null}));
    assert_eq!(
        problems(&edited("qwen3_moe", narrow)),
        ["intermediate_size is missing"]
    );
}

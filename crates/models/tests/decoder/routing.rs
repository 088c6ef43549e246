//! Experts that were chosen before, and what is said about the choice.

use ferrotune_graph::DType;

use crate::setup::{Model, Row, ints, sequence, token, worst};

const WIDTH: usize = 24;

fn row() -> Row {
    let tokens: Vec<i32> = (0..17).map(|i| token(4, i)).collect();
    Row::default()
        .padding(2, 0)
        .document(&tokens)
        .padding(WIDTH - 19, 0)
}

#[test]
fn replaying_the_own_choice_changes_nothing_and_another_does() {
    for family in ["qwen3_moe", "qwen3_next", "qwen3_5_moe_text"] {
        let model = Model::load(family);
        let experts = model.config.experts.unwrap();
        let layers = model.config.num_hidden_layers;
        let dims = [1, WIDTH, layers, experts.top_k];
        let free = ints(&dims, &vec![-1; dims.iter().product()]);
        let args = [&row().arrays()[..], &[free]].concat();
        let function = model.compile(family, &args, |decoder, g, args| {
            let seq = sequence(&args[1], &args[2]);
            let forward = decoder.forward(&args[0], &seq, Some(&args[3]));
            let routed = forward.routed.unwrap();
            let real = args[1].gt(&args[1].zeros_like()).convert(DType::F32);
            let loss = (&forward.hidden * real.expand(2)).square().sum(&[0, 1, 2]);
            let stack = model.config.stacks()[0].prefix(0);
            let router = decoder.params.at(&format!("{stack}/mlp/router"));
            let gradient = g.grad(&loss, &[router]).remove(0);
            vec![
                forward.hidden,
                routed.experts,
                routed.load,
                routed.probability,
                gradient,
            ]
        });
        let own = function.run(&args);
        let chosen = own[1].as_slice::<i32>();
        let forced = [&args[..3], &[ints(&dims, chosen)]].concat();
        let again = function.run(&forced);
        for (a, b) in own.iter().zip(&again) {
            assert_eq!(a.bytes(), b.bytes(), "{family}");
        }
        // All tokens to experts 3 and 1, in every layer.
        let other: Vec<i32> = (0..chosen.len()).map(|i| [3, 1][i % 2]).collect();
        let moved = function.run(&[&args[..3], &[ints(&dims, &other)]].concat());
        assert_eq!(moved[1].as_slice::<i32>(), other);
        assert_ne!(own[0].bytes(), moved[0].bytes());
        let gradient = moved[4].as_slice::<f32>();
        assert!(gradient.iter().any(|v| *v != 0.0) && gradient.iter().all(|v| v.is_finite()));
        // Seventeen tokens count, each for two experts in each layer.
        let load = own[2].as_slice::<f32>();
        for layer in load.chunks_exact(experts.count) {
            assert_eq!(layer.iter().sum::<f32>(), 34.0, "{family}");
        }
        let by_expert = moved[2].as_slice::<f32>();
        assert!(
            by_expert
                .chunks_exact(4)
                .all(|l| l == [0.0, 17.0, 0.0, 17.0])
        );
        let sums: Vec<f32> = own[3]
            .as_slice::<f32>()
            .chunks_exact(experts.count)
            .map(|layer| layer.iter().sum())
            .collect();
        assert!(worst(&sums, &vec![17.0; layers]) < 1e-4);
    }
}

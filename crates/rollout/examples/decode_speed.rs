//! Times decoding (temporary).
use std::time::Instant;
use ferrotune_graph::{DType, Mesh, Rules};
use ferrotune_models::{ModelConfig, init_params};
use ferrotune_nn::LOGICAL_AXES;
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_program::{Group, Layout, Leaf};
use ferrotune_rollout::{Request, Sampler, SamplerConfig};

fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) / 100.0
}
fn env(name: &str, d: usize) -> usize { std::env::var(name).ok().map_or(d, |v| v.parse().unwrap()) }
fn main() {
    let (d, l, b, p, n, v) = (env("D", 160), env("L", 4), env("B", 512), env("P", 12), env("N", 21), env("V", 64));
    let (h, k) = (env("H", 4), env("K", 2));
    let text = format!(r#"{{"model_type":"qwen3","hidden_size":{d},"intermediate_size":{},"num_hidden_layers":{l},"num_attention_heads":{h},"num_key_value_heads":{k},"head_dim":{},"vocab_size":{v},"rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true,"hidden_act":"silu"}}"#, env("F", d * 3), env("E", 32));
    let model = ModelConfig::parse(&text, "bench").unwrap();
    let plugin = Plugin::cpu(&mut |l| eprintln!("{l}")).unwrap();
    let client = Client::cpu(&plugin, 1).unwrap();
    let rules = Rules::unsharded(&LOGICAL_AXES);
    let params = init_params(&model, 1).unwrap();
    let leaves: Vec<Leaf> = params.iter().map(|(p, _)| Leaf { name: p.path.clone(), dtype: p.dtype, dims: p.dims.clone(), axes: p.axes.clone() }).collect();
    let layout = Layout::new(&Mesh::single(), &rules, &leaves).unwrap();
    let host: Vec<_> = params.into_iter().map(|x| x.1).collect();
    let weights = Group::upload(&client, &layout, &host).unwrap();
    let compute = if env("BF16", 0) == 1 { DType::BF16 } else { DType::F32 };
    let config = SamplerConfig { batch: b, max_prompt_tokens: p, max_new_tokens: n, tokens_per_dispatch: env("C", n), compute, stop_ids: vec![], pad_id: 0 };
    let t = Instant::now();
    let s = Sampler::new(&client, &rules, &model, &layout, config).unwrap();
    println!("{} params, compile {:.2}s cache {} temp {} KiB alias {} KiB", model.param_count(), t.elapsed().as_secs_f64(), s.decode_program().from_cache(), s.decode_program().memory().temp >> 10, s.decode_program().memory().alias >> 10);
    let run = |new: usize| {
        let rq: Vec<Request> = (0..b).map(|i| Request { prompt: (0..p as u32).map(|k| (k * 7 + i as u32) % v as u32).collect(), seed: i as u64, temperature: 1.0, max_new_tokens: new }).collect();
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..env("R", 5) {
            let (t, c) = (Instant::now(), cpu());
            s.generate(&weights, &rq, &mut |_, _| ()).unwrap();
            best = (best.0.min(t.elapsed().as_secs_f64()), best.1.min(cpu() - c));
        }
        best
    };
    let (one, all) = (run(1), run(n));
    let per = |a: f64, b: f64| (b - a) * 1e3 / (n - 1) as f64;
    println!("prefill + 1 token {:.1} ms (cpu {:.0}); a token more {:.2} ms (cpu {:.1}); all {:.0} ms", one.0 * 1e3, one.1 * 1e3, per(one.0, all.0), per(one.1, all.1), all.0 * 1e3);
}

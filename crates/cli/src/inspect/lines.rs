//! What was found, for people: a name and a value on each line.

use ferrotune_models::{Feed, LayerKind, Mixer, RotaryScaling};
use ferrotune_text::Tokenizer;

use super::{Found, special, system};
use crate::terminal::{bytes, counted, short_count};

/// Tensors and files that are named before the rest is only counted.
const SHOWN: usize = 5;

pub(super) fn of(found: &Found) -> Vec<String> {
    let lines = [model(found), sizes(found), weights(found), tokenizer(found)];
    let line = |(name, value): (&str, String)| format!("{name:<11} {value}");
    lines.into_iter().flatten().map(line).collect()
}

type Lines = Vec<(&'static str, String)>;

fn model(found: &Found) -> Lines {
    let model = &found.model;
    let (total, active) = (model.param_count(), model.active_param_count());
    let mut parameters = format!("{} ({total})", short_count(total));
    if active != total {
        parameters += &format!(", a token meets {} ({active})", short_count(active));
    }
    let kinds = found.kinds();
    let kinds = kinds
        .iter()
        .map(|(kind, count)| format!("{count} of {}", kind_name(*kind)));
    vec![
        ("family", model.family.model_type().to_owned()),
        ("parameters", parameters),
        (
            "layers",
            format!(
                "{}: {}",
                model.num_hidden_layers,
                kinds.collect::<Vec<_>>().join(", ")
            ),
        ),
    ]
}

fn kind_name(kind: LayerKind) -> String {
    format!("{} + {}", mixer_name(kind.mixer), feed_name(kind.feed))
}

fn mixer_name(mixer: Mixer) -> &'static str {
    match mixer {
        Mixer::Attention => "attention",
        Mixer::Delta => "delta rule",
    }
}

fn feed_name(feed: Feed) -> &'static str {
    match feed {
        Feed::Dense => "dense",
        Feed::Experts => "experts",
    }
}

fn sizes(found: &Found) -> Lines {
    let model = &found.model;
    let head = if model.tie_word_embeddings {
        "the head is the embedding"
    } else {
        "the head has its own weights"
    };
    let mut lines = vec![
        (
            "hidden",
            format!(
                "{}, vocabulary of {}; {head}",
                model.hidden_size, model.vocab_size
            ),
        ),
        (
            "attention",
            format!(
                "{}, {} for keys and values, of {}",
                counted(model.num_attention_heads, "head"),
                model.num_key_value_heads,
                model.head_dim
            ),
        ),
    ];
    if let Some(delta) = model.delta {
        lines.push((
            "delta rule",
            format!(
                "{} of {} for keys, {} of {} for values; convolution of {}",
                counted(delta.key_heads, "head"),
                delta.key_dim,
                delta.value_heads,
                delta.value_dim,
                counted(delta.taps, "token")
            ),
        ));
    }
    let has = |feed| model.layers.iter().any(|kind| kind.feed == feed);
    if has(Feed::Dense) {
        lines.push(("dense", format!("{} wide", model.intermediate_size)));
    }
    if let Some(experts) = model.experts.filter(|_| has(Feed::Experts)) {
        let shared = experts.shared;
        let shared =
            shared.map_or_else(String::new, |width| format!("; a shared one, {width} wide"));
        lines.push((
            "experts",
            format!(
                "{}, {} wide, {} for each token{shared}",
                experts.count, experts.width, experts.top_k
            ),
        ));
    }
    lines.push(("rotary", rotary(found)));
    let longest = model.longest();
    let longest = longest.map_or("not said in config.json".to_owned(), |it| {
        counted(it.tokens, "token")
    });
    lines.push(("longest", longest));
    lines
}

fn rotary(found: &Found) -> String {
    let (rotary, size) = (&found.model.rotary, found.model.head_dim);
    let mut text = format!("base {}", rotary.theta);
    if rotary.dims < size {
        text += &format!(", {} of {size} dimensions", rotary.dims);
    }
    match rotary.scaling {
        RotaryScaling::Default => {}
        RotaryScaling::Linear { factor } => text += &format!(", linear scaling by {factor}"),
        RotaryScaling::Llama3 {
            factor, original, ..
        } => text += &format!(", llama3 scaling by {factor} from {original} tokens"),
        RotaryScaling::Yarn {
            factor, original, ..
        } => text += &format!(", yarn scaling by {factor} from {original} tokens"),
        RotaryScaling::LongRope { original, .. } => {
            text += &format!(", longrope scaling of texts up to {original} tokens");
        }
    }
    text
}

fn weights(found: &Found) -> Lines {
    let Some(weights) = &found.weights else {
        return vec![(
            "weights",
            "none: there is neither model.safetensors nor model.safetensors.index.json".to_owned(),
        )];
    };
    let types: Vec<String> = weights.stored.iter().map(ToString::to_string).collect();
    let files = &weights.files;
    let mut lines = vec![(
        "weights",
        format!(
            "{} in {}, {}",
            types.join(" and "),
            counted(files.len(), "file"),
            bytes(found.bytes())
        ),
    )];
    let file = |(path, size): &(std::path::PathBuf, u64)| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        format!("{name}, {}", bytes(*size))
    };
    lines.extend(some(files.iter().map(file)).map(|text| ("", text)));
    lines.push(("unused", counted(weights.unused.len(), "tensor")));
    lines.extend(some(weights.unused.iter().cloned()).map(|text| ("", text)));
    lines
}

/// The first few, and how many more there are.
fn some(all: impl ExactSizeIterator<Item = String>) -> impl Iterator<Item = String> {
    let rest = all.len().saturating_sub(SHOWN);
    let more = (rest > 0).then(|| format!("and {rest} more"));
    all.take(SHOWN).chain(more)
}

fn tokenizer(found: &Found) -> Lines {
    let Some(tokenizer) = &found.tokenizer else {
        return vec![("tokenizer", "none: there is no tokenizer.json".to_owned())];
    };
    let mut lines = vec![("tokenizer", vocabulary(tokenizer, found.model.vocab_size))];
    for (role, id, token) in special(tokenizer) {
        lines.push(("", format!("{token} ({id}) {role} a text")));
    }
    if tokenizer.eos_ids().is_empty() {
        lines.push(("", "no file says what ends a text".to_owned()));
    }
    let template =
        tokenizer
            .chat_template()
            .map(|template| match system::default_message(template) {
                Some(text) => format!("yes, with a system message of its own: {text:?}"),
                None => "yes".to_owned(),
            });
    lines.push(("chat", template.unwrap_or("no template".to_owned())));
    lines
}

fn vocabulary(tokenizer: &Tokenizer, rows: usize) -> String {
    let size = tokenizer.vocab_size();
    if size > rows {
        format!(
            "vocabulary of {size}, more than the model's {rows}: ids from {rows} on will be refused"
        )
    } else {
        format!("vocabulary of {size}")
    }
}

//! What the user may have meant: near misses, and the names that other trainers use for the same thing.

use crate::spec::Table;

/// Words longer than this are no typing slips.
const LONGEST: usize = 64;

/// The candidate that differs from `word` by the fewest slips, if these are few for its length.
///
/// Case, `-`, `_` and blanks do not count.
pub fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    if word.len() > LONGEST {
        return None;
    }
    let word = plain(word);
    candidates
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &plain(candidate)),
                candidate,
            )
        })
        .filter(|(slips, candidate)| *slips <= candidate.len().max(word.len()).max(3) / 3)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, candidate)| candidate)
}

fn plain(word: &str) -> String {
    word.chars()
        .filter(|c| !matches!(c, '-' | '_' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Names in TRL, verl and prime-rl, and the keys that stand for them here.
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("lr", &["rl.learning_rate", "warmup.learning_rate"]),
    (
        "lr_scheduler_type",
        &["rl.lr_schedule", "warmup.lr_schedule"],
    ),
    (
        "warmup_steps",
        &["rl.lr_warmup_steps", "warmup.lr_warmup_steps"],
    ),
    ("max_steps", &["rl.steps", "warmup.steps"]),
    ("num_generations", &["rl.group_size"]),
    ("num_iterations", &["rl.updates_per_step"]),
    ("epsilon", &["rl.clip_ratio_low"]),
    ("epsilon_low", &["rl.clip_ratio_low"]),
    ("epsilon_high", &["rl.clip_ratio_high"]),
    ("clip_low", &["rl.clip_ratio_low"]),
    ("clip_high", &["rl.clip_ratio_high"]),
    ("adv_estimator", &["rl.advantage"]),
    ("loss_agg_mode", &["rl.loss_aggregation"]),
    ("adam_beta1", &["optimizer.beta1"]),
    ("adam_beta2", &["optimizer.beta2"]),
    ("adam_epsilon", &["optimizer.eps"]),
    ("grad_clip", &["optimizer.max_grad_norm"]),
    ("max_completion_length", &["rollout.max_new_tokens"]),
    ("max_tokens", &["rollout.max_new_tokens"]),
    ("max_prompt_length", &["rollout.max_prompt_tokens"]),
    ("max_seq_len", &["packing.row_tokens"]),
    ("model_name_or_path", &["model.path"]),
    ("output_dir", &["run.dir"]),
    ("dtype", &["compute_dtype"]),
    ("dp", &["mesh.data"]),
    ("cp", &["mesh.context"]),
    ("context_parallel_size", &["mesh.context"]),
    ("eval_steps", &["eval.every_steps"]),
    ("save_steps", &["checkpoint.every_steps"]),
    ("save_total_limit", &["checkpoint.keep_last"]),
];

/// A cure for an unknown key: what it may have meant, or else what there is.
pub(crate) fn for_key(path: &str, tables: &[Table]) -> String {
    let (table, word) = path.rsplit_once('.').unwrap_or(("", path));
    let siblings = siblings(table, tables);
    if let Some((_, keys)) = ELSEWHERE.iter().find(|(name, _)| *name == word) {
        let here: Vec<_> = keys
            .iter()
            .copied()
            .filter(|key| !table.is_empty() && key.starts_with(table))
            .collect();
        return did_you_mean(if here.is_empty() { keys } else { &here });
    }
    if let Some(near) = nearest(word, siblings.iter().copied()) {
        let joined = if table.is_empty() {
            near.to_owned()
        } else {
            format!("{table}.{near}")
        };
        return did_you_mean(&[&joined]);
    }
    let all = || {
        tables
            .iter()
            .flat_map(|table| &table.keys)
            .map(|key| key.path)
    };
    if let Some(near) = nearest(word, all().map(last)) {
        let homes: Vec<_> = all().filter(|key| last(key) == near).collect();
        return did_you_mean(&homes);
    }
    let place = if table.is_empty() {
        "the top level".to_owned()
    } else {
        format!("[{table}]")
    };
    format!("{place} has {}", siblings.join(", "))
}

/// The names that may stand in a table: its keys and, at the top level, the other tables.
fn siblings<'t>(table: &str, tables: &'t [Table]) -> Vec<&'t str> {
    let keys = tables
        .iter()
        .filter(|t| t.name == table)
        .flat_map(|t| &t.keys)
        .map(|key| last(key.path));
    let names = tables
        .iter()
        .map(|t| t.name)
        .filter(|name| table.is_empty() && !name.is_empty());
    keys.chain(names).collect()
}

fn did_you_mean(keys: &[&str]) -> String {
    let quoted: Vec<_> = keys.iter().map(|key| format!("`{key}`")).collect();
    format!("did you mean {}?", quoted.join(" or "))
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::tables;

    #[test]
    fn names_of_other_trainers_lead_to_keys_that_exist() {
        let tables = tables();
        for key in ELSEWHERE.iter().flat_map(|(_, keys)| keys.iter()) {
            assert!(
                tables.iter().flat_map(|t| &t.keys).any(|k| k.path == *key),
                "{key} is no key"
            );
        }
    }

    #[test]
    fn a_suggestion_is_near_and_in_place() {
        let tables = tables();
        for (written, cure) in [
            ("rl.group_sise", "did you mean `rl.group_size`?"),
            ("optimiser", "did you mean `optimizer`?"),
            ("Mesh", "did you mean `mesh`?"),
            ("COMPUTE-DTYPE", "did you mean `compute_dtype`?"),
            ("group-size", "did you mean `rl.group_size`?"),
            ("warmup.lr", "did you mean `warmup.learning_rate`?"),
            (
                "lr",
                "did you mean `rl.learning_rate` or `warmup.learning_rate`?",
            ),
            ("num_generations", "did you mean `rl.group_size`?"),
            ("mesh.tensor", "[mesh] has data, fsdp, context, order"),
        ] {
            assert_eq!(for_key(written, &tables), cure, "for {written}");
        }
        assert!(
            for_key("xyzzyxyzzy", &tables)
                .starts_with("the top level has seed, compute_dtype, fp8_history, run, model")
        );
    }

    #[test]
    fn a_far_word_is_no_suggestion() {
        assert_eq!(nearest("banana", ["cosine", "linear"].into_iter()), None);
        assert_eq!(nearest(&"x".repeat(1 << 20), ["cosine"].into_iter()), None);
    }
}

use super::*;
use crate::HeadMode;

/// Each rule: settings that break it, what is said, and the same settings mended.
#[test]
fn every_rule_between_settings_is_kept() {
    for (wrong, said, mended) in [
        (
            "[run]\nname = \"a/b\"",
            "must be able to name a folder",
            "[run]\nname = \"a b\"",
        ),
        (
            "[run]\nname = \"..\"",
            "must be able to name a folder",
            "[run]\nname = \"...\"",
        ),
        (
            "prompt_template = \"Q: {question}\"",
            "must contain {prompt}",
            "prompt_template = \"Q: {prompt}\"",
        ),
        (
            "[rl]\nsteps = 0",
            "there is nothing to train",
            "[rl]\nsteps = 1",
        ),
        (
            "[warmup]\nsteps = 1",
            "the warm-up has no demonstrations",
            "demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 1",
        ),
        (
            "[rl]\nsteps = 5\nlr_warmup_steps = 6",
            "would never reach its full value",
            "[rl]\nsteps = 5\nlr_warmup_steps = 5",
        ),
        (
            "[rl]\nsteps = 5\nlr_schedule = \"cosine\"\nlr_warmup_steps = 5",
            "would rise to the last step and never fall",
            "[rl]\nsteps = 5\nlr_schedule = \"cosine\"\nlr_warmup_steps = 4",
        ),
        (
            "[rl]\nsteps = 5\nlr_schedule = \"stable_decay\"\nlr_warmup_steps = 2\nlr_decay_steps = 4",
            "would fall before it has risen",
            "[rl]\nsteps = 5\nlr_schedule = \"stable_decay\"\nlr_warmup_steps = 2\nlr_decay_steps = 3",
        ),
        (
            "demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 2\nlr_warmup_steps = 3",
            "would never reach its full value",
            "demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 2\nlr_warmup_steps = 2",
        ),
        (
            "[rl]\nprompts_per_step = 3\ngroup_size = 4\nupdates_per_step = 5",
            "must divide 12, the answers of a step",
            "[rl]\nprompts_per_step = 3\ngroup_size = 4\nupdates_per_step = 6",
        ),
        (
            "[rollout]\nmax_new_tokens = 4",
            "a dispatch decodes more tokens",
            "[rollout]\nmax_new_tokens = 4\ntokens_per_dispatch = 4",
        ),
        (
            "[rollout]\ntemperature = 0.7\ntop_p = 0.9",
            "must be 1, where these are known",
            "[rollout]\ntop_p = 0.9",
        ),
        (
            "[packing]\nrow_tokens = 511",
            "must be at least 512",
            "[packing]\nrow_tokens = 512",
        ),
        (
            "[packing]\nrow_tokens = 512\nsegment_align = 96",
            "must be at least 576",
            "[packing]\nrow_tokens = 576\nsegment_align = 96",
        ),
        (
            "[packing]\nrow_tokens = 1000\nsegment_align = 16",
            "try `packing.row_tokens` = 992 or 1008",
            "[packing]\nrow_tokens = 1008\nsegment_align = 16",
        ),
        (
            "[mesh]\ndata = 8",
            "must be a multiple of data * fsdp = 8",
            "[mesh]\ndata = 4",
        ),
        (
            "[mesh]\ncontext = 3",
            "must be a multiple of 2 * context = 6",
            "[mesh]\ncontext = 4",
        ),
        (
            "[mesh]\ncontext = 1024",
            "try `packing.row_tokens` = 2048, or try `mesh.context` = 256",
            "[packing]\nrow_tokens = 2048\n[mesh]\ncontext = 1024",
        ),
        (
            "[mesh]\ncontext = 512",
            "must be a multiple of 2 * context = 1024",
            "[mesh]\ncontext = 512\norder = \"balanced\"",
        ),
        (
            "[packing]\nsegment_align = 8\npad_position = \"start\"\npad_align = 12",
            "try `packing.pad_align` = 8 or 16",
            "[packing]\nsegment_align = 8\npad_position = \"start\"\npad_align = 16",
        ),
        (
            "[packing]\npad_position = \"start\"\npad_align = 512",
            "must be below 512",
            "[packing]\npad_position = \"start\"\npad_align = 511",
        ),
    ] {
        let refused = refusal(&with(wrong), &[]);
        assert!(
            refused.contains(said),
            "{wrong}\nshould say {said:?}:\n{refused}"
        );
        assert!(
            refused.contains("\n1 problem in "),
            "{wrong}\nis one problem:\n{refused}"
        );
        assert!(
            refused.contains("help: "),
            "{wrong}\nneeds a cure:\n{refused}"
        );
        if let Err(refused) = load(&with(mended), &[]) {
            panic!("{mended}\nis good, yet:\n{refused}");
        }
    }
}

/// Each switch: a recipe in which some settings do nothing, and how many.
#[test]
fn settings_without_effect_are_refused() {
    for (wrong, title) in [
        (
            "[warmup]\nlr_warmup_steps = 0",
            "`warmup.lr_warmup_steps` has no effect while warmup.steps is 0",
        ),
        (
            "demonstrations = \"demos.jsonl\"",
            "`data.demonstrations` has no effect while warmup.steps is 0",
        ),
        (
            "[rl]\nmin_lr_ratio = 0.0",
            "`rl.min_lr_ratio` has no effect while rl.lr_schedule is \"constant\"",
        ),
        (
            "demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 1\nmin_lr_ratio = 0.5",
            "`warmup.min_lr_ratio` has no effect while warmup.lr_schedule is \"constant\"",
        ),
        (
            "[warmup]\nlr_warmup_steps = 1\nbatch_size = 8",
            "2 settings have no effect while warmup.steps is 0",
        ),
        (
            "demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 1\n[rl]\nsteps = 0\n[rollout]\ntemperature = 0.5",
            "`rollout.temperature` has no effect while rl.steps is 0",
        ),
        (
            "[packing]\npad_align = 1",
            "`packing.pad_align` has no effect while packing.pad_position is \"end\"",
        ),
        (
            "[head]\nmode = \"off\"\ntoken_chunk = 64\nvocab_chunk = 64",
            "2 settings have no effect while head.mode is \"off\"",
        ),
        (
            "[head]\nmode = \"local\"\ntoken_chunk = 64\nvocab_chunk = 64",
            "`head.vocab_chunk` has no effect while head.mode is \"local\"",
        ),
        (
            "[optimizer]\nshard_over_data = \"moments\"\n[mesh]\nfsdp = 2",
            "`optimizer.shard_over_data` has no effect while mesh.data is 1",
        ),
        (
            "[mesh]\nfsdp = 2\norder = \"balanced\"",
            "`mesh.order` has no effect while mesh.context is 1",
        ),
        (
            "[packing]\nbalance = \"off\"",
            "`packing.balance` has no effect while mesh.data is 1",
        ),
    ] {
        let refused = refusal(&with(wrong), &[]);
        assert!(
            refused.contains(&format!("error: {title}\n")),
            "{wrong}\nshould say {title:?}:\n{refused}"
        );
        assert!(
            refused.contains("\n1 problem in "),
            "{wrong}\nis one problem:\n{refused}"
        );
    }
    // What is idle breaks no other rule.
    let idle = "demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 1\n[rl]\nsteps = 0\nlr_warmup_steps = 6";
    assert!(refusal(&with(idle), &[]).contains("\n1 problem in "));
    assert!(
        load(
            &with("[rl]\nlr_schedule = \"linear\"\nmin_lr_ratio = 0.1\n"),
            &[]
        )
        .is_ok()
    );
}

#[test]
fn a_rule_keeps_silent_about_values_that_could_not_be_read() {
    let refused = refusal(
        &with("[mesh]\ndata = \"2\"\nfsdp = 3\n[packing]\nrow_tokens = -1"),
        &[],
    );
    assert!(
        refused.contains("`mesh.data` must be an integer")
            && refused.contains("`packing.row_tokens` must be")
    );
    assert!(refused.contains("2 problems"), "{refused}");
}

#[test]
fn idle_keys_exist() {
    let folder = Folder::new();
    let keys = Recipe::keys();
    let mut recipe = folder.load(LEAST, &[]).unwrap().recipe().clone();
    recipe.rl.steps = 0;
    let mut found = crate::idle::find(&recipe);
    recipe.rl.steps = 1;
    recipe.warmup.steps = 1;
    found.extend(crate::idle::find(&recipe));
    recipe.head.mode = HeadMode::Off;
    found.extend(crate::idle::find(&recipe));
    recipe.head.mode = HeadMode::Local;
    found.extend(crate::idle::find(&recipe));
    assert!(found.len() >= 5);
    for idle in found {
        assert!(keys.contains(&idle.switch), "{}", idle.switch);
        for key in idle.keys {
            assert!(keys.contains(key), "{key}");
        }
    }
}

#[test]
fn a_mode_of_the_head_that_is_nearly_one_is_refused_with_the_one_that_is_meant() {
    for (wrong, near) in [
        ("Fused", "fused"),
        ("fuse", "fused"),
        ("singlepass", "single_pass"),
        ("single-pass", "single_pass"),
        ("locale", "local"),
    ] {
        let refused = refusal(&with(&format!("[head]\nmode = \"{wrong}\"")), &[]);
        let meant = format!("did you mean \"{near}\"?");
        assert!(refused.contains(&meant), "{wrong}:\n{refused}");
    }
    for wrong in ["token_chunk = 0", "vocab_chunk = 0", "token_chunk = -1"] {
        refusal(&with(&format!("[head]\n{wrong}")), &[]);
    }
}

#[test]
fn adapters_are_trained_beside_weights_that_lie_in_a_folder() {
    let (trained, folder) = ("[lora]\nrank = 2\n", "model.adapter=\"model\"");
    for (refused, key) in [
        (refusal(&with(trained), &[]), "r.toml:9:8"),
        (refusal(LEAST, &[folder]), "override 1"),
        // The folder says what the adapters are.
        (
            refusal(LEAST, &[folder, "lora.rank=2"]),
            "`lora.rank` has no effect",
        ),
    ] {
        for part in [key, "random weights could not be used", "init = \"random\""] {
            assert!(refused.contains(part), "no {part} in {refused}");
        }
    }
    let mended = with(trained).replace("random", "pretrained");
    let folder = Folder::new();
    std::fs::write(folder.path("model/model.safetensors"), "").unwrap();
    assert!(folder.load(&mended, &[]).is_ok());
}

#[test]
fn names_in_a_list_are_there_once() {
    let text = with("[lora]\nrank = 2\ntargets = [\"q_proj\", \"k_proj\", \"q_proj\"]\n");
    let refused = refusal(&text, &[]);
    assert!(
        refused.contains("`lora.targets` names \"q_proj\" more than once")
            && refused.contains("r.toml:10:11"),
        "{refused}"
    );
    let refused = refusal(LEAST, &["model.freeze=[\"a\", \"a\"]"]);
    assert!(
        refused.contains("`model.freeze` names \"a\"") && refused.contains("override 1"),
        "{refused}"
    );
    assert!(load(LEAST, &["model.freeze=[\"a\", \"b\"]"]).is_ok());
}

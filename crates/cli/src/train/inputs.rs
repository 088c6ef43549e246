//! The files that a recipe names, read and checked against each other. No weights yet, no device.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use anyhow::anyhow;
use ferrotune_batch::Trajectory;
use ferrotune_models::ModelConfig;
use ferrotune_recipe::{Checker, Fault, Recipe, Resolved};
use ferrotune_rl::{Dataset, Problems, RunData, Words, check_disjoint};
use ferrotune_text::Tokenizer;

use crate::failure::Failure;
use crate::terminal::counted;
use crate::train::learns::{self, Learns};

/// What a run reads.
pub(crate) struct Inputs {
    pub(crate) model: ModelConfig,
    pub(crate) learns: Learns,
    pub(crate) data: RunData,
    pub(crate) stop_ids: Vec<u32>,
    /// What the user should hear before the run.
    pub(crate) notes: Vec<String>,
}

impl Inputs {
    /// Reads everything; whatever is wrong is refused together.
    pub(crate) fn read(resolved: &Resolved) -> Result<Self, Failure> {
        let recipe = resolved.recipe();
        let mut problems = Problem::default();
        let data = &recipe.data;
        let model = problems.keep(ModelConfig::load(&recipe.model.path));
        let tokenizer = problems.keep(Tokenizer::from_dir(&recipe.model.path));
        let read = |path| Dataset::read_fields(path, &data.prompt_field, &data.answer_field);
        let train = problems.keep(read(&data.train));
        let heldout = problems.keep(read(&data.heldout));
        let demonstrations = match &data.demonstrations {
            Some(path) if recipe.warmup.steps > 0 => problems.keep(read(path)).map(Some),
            _ => Some(None),
        };
        let checker = checker(recipe);
        if let (Some(train), Some(heldout)) = (&train, &heldout) {
            problems.keep(check_disjoint(train, heldout));
        }
        for dataset in [&train, &heldout].into_iter().flatten() {
            problems.keep(dataset.check_answers(checker));
        }
        // What learns hangs on the model alone.
        let mut faults = match &model {
            Some(model) => learns::faults(recipe, model),
            None => Vec::new(),
        };
        let (Some(model), Some(tokenizer), Some(train), Some(heldout), Some(demonstrations)) =
            (model, tokenizer, train, heldout, demonstrations)
        else {
            if !faults.is_empty() {
                problems.add(resolved.refuse(&faults).into());
            }
            return Err(problems.into_failure());
        };
        let learns = if faults.is_empty() {
            problems.keep(Learns::read(recipe, &model))
        } else {
            None
        };
        let repeats = [
            repeated(&train, "data.train"),
            repeated(&heldout, "data.heldout"),
        ];
        let mut notes: Vec<String> = repeats.into_iter().flatten().collect();

        let words = Words {
            tokenizer,
            template: data.prompt_template.clone(),
            vocab_size: model.vocab_size,
            max_prompt_tokens: recipe.rollout.max_prompt_tokens,
            row_tokens: recipe.packing.row_tokens,
        };
        let stop_ids = problems.keep(words.stop_ids().map(<[u32]>::to_vec));
        for (name, dataset) in [("data.train", &train), ("data.heldout", &heldout)] {
            let limit = recipe.rollout.max_new_tokens;
            let count = words.unreachable_answers(dataset, limit);
            if count > 0 && checker == ferrotune_rl::Checker::Exact {
                notes.push(format!(
                    "answers of {name} that do not fit rollout.max_new_tokens = {limit} with their end: {count} of {}; \
                     raise it, or these problems teach to stop short",
                    dataset.problems().len()
                ));
            }
        }
        let train = problems.keep(Problems::new(&train, &words, None));
        let heldout = problems.keep(Problems::new(&heldout, &words, recipe.eval.max_problems));
        let demonstrations = match &demonstrations {
            // Without an end it would only repeat what is said already.
            Some(dataset) if stop_ids.is_some() => problems.keep(words.demonstrations(dataset)),
            _ => Some(Vec::new()),
        };
        faults.extend(too_long(recipe, &model, demonstrations.as_deref()));
        if !faults.is_empty() {
            problems.add(resolved.refuse(&faults).into());
        }
        let temperature = recipe.rollout.temperature;
        if temperature < ferrotune_rollout::MIN_TEMPERATURE {
            problems.add(anyhow!(
                "rollout.temperature is {temperature}; the sampler needs at least {}",
                ferrotune_rollout::MIN_TEMPERATURE
            ));
        }
        match (learns, stop_ids, train, heldout, demonstrations) {
            (Some(learns), Some(stop_ids), Some(train), Some(heldout), Some(demonstrations))
                if problems.0.is_empty() =>
            {
                let tokenizer = words.tokenizer;
                notes.extend(learns.notes.iter().cloned());
                Ok(Self {
                    model,
                    learns,
                    data: RunData {
                        train,
                        heldout,
                        demonstrations,
                        tokenizer,
                    },
                    stop_ids,
                    notes,
                })
            }
            _ => Err(problems.into_failure()),
        }
    }
}

/// What would be longer than the model was made for. Rows may be: positions begin anew with each document.
fn too_long(
    recipe: &Recipe,
    model: &ModelConfig,
    demonstrations: Option<&[Trajectory]>,
) -> Vec<Fault> {
    let Some(limit) = model.longest() else {
        return Vec::new();
    };
    let config = recipe.model.path.join("config.json");
    let source = format!("more than {}", limit.told(config.display()));
    let longest = limit.tokens;
    let mut faults = Vec::new();
    let (prompt, new) = (
        recipe.rollout.max_prompt_tokens,
        recipe.rollout.max_new_tokens,
    );
    if prompt + new > longest {
        faults.push(Fault {
            keys: vec!["rollout.max_new_tokens", "rollout.max_prompt_tokens"],
            title: format!(
                "{} of prompt and {new} of answer are together {source}",
                counted(prompt, "token")
            ),
            help: Some("lower one of them".to_owned()),
        });
    }
    let lengths = demonstrations
        .unwrap_or_default()
        .iter()
        .map(Trajectory::len);
    let long: Vec<usize> = lengths.filter(|&tokens| tokens > longest).collect();
    if let Some(most) = long.iter().max() {
        let count = long.len();
        faults.push(Fault {
            keys: vec!["data.demonstrations"],
            title: format!(
                "{} of up to {most} tokens, {source}",
                counted(count, "demonstration")
            ),
            help: Some("shorten them, or leave them out".to_owned()),
        });
    }
    faults
}

/// What to say of prompts that a file has more than once, white space at both ends apart.
fn repeated(dataset: &Dataset, name: &str) -> Option<String> {
    let mut first = HashMap::new();
    let (mut count, mut others, mut example) = (0, 0, None);
    for problem in dataset.problems() {
        match first.entry(problem.prompt.trim()) {
            Entry::Vacant(entry) => drop(entry.insert(problem)),
            Entry::Occupied(entry) => {
                let before: &&ferrotune_rl::Problem = entry.get();
                count += 1;
                others += usize::from(before.answer.trim() != problem.answer.trim());
                example.get_or_insert((problem.line, before.line));
            }
        }
    }
    let (line, before) = example?;
    let other = match others {
        0 => String::new(),
        n => format!(", {n} of them with another answer"),
    };
    Some(format!(
        "{count} of {} prompts of {name} ({}) are there more than once{other}: line {line} is that of line {before}; \
         they weigh more than the others",
        dataset.problems().len(),
        dataset.path().display(),
    ))
}

/// The checker that a recipe names.
pub(crate) fn checker(recipe: &Recipe) -> ferrotune_rl::Checker {
    match recipe.reward.checker {
        Checker::ExactMatch => ferrotune_rl::Checker::Exact,
        Checker::LastNumber => ferrotune_rl::Checker::Number,
    }
}

/// What is wrong so far.
#[derive(Default)]
struct Problem(Vec<anyhow::Error>);

impl Problem {
    fn add(&mut self, error: anyhow::Error) {
        self.0.push(error);
    }

    fn keep<T, E: Into<anyhow::Error>>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(error.into())).ok()
    }

    fn into_failure(self) -> Failure {
        Failure::Refused(self.0)
    }
}

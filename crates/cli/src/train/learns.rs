//! What of a model learns, as a recipe says: all of it, all but some parameters, or adapters.

use ferrotune_engine::{Error, Lora, RouterSettings, Trains};
use ferrotune_graph::HostArray;
use ferrotune_models::{
    AdapterProblem, Error as ModelError, ModelConfig, init_adapter, load_adapter,
};
use ferrotune_nn::ParamSpec;
use ferrotune_recipe::{ExpertAdapters, Fault, Recipe, Routes, nearest};

/// What learns.
#[derive(Debug)]
pub(crate) struct Learns {
    pub(crate) trains: Trains,
    pub(crate) router: RouterSettings,
    /// The adapters as they begin; empty without.
    pub(crate) adapters: Vec<(ParamSpec, HostArray)>,
    /// What the user should hear.
    pub(crate) notes: Vec<String>,
    /// That the adapters were made for another model.
    pub(crate) warning: Option<String>,
}

/// Everything in the settings of what learns that this model cannot do.
pub(crate) fn faults(recipe: &Recipe, model: &ModelConfig) -> Vec<Fault> {
    let mut faults = Vec::new();
    faults.extend(router_faults(recipe, model));
    if recipe.model.adapter.is_some() {
        return faults;
    }
    let trains = if recipe.lora.rank > 0 {
        let lora = lora(recipe, model);
        faults.extend(lora_faults(&lora, model));
        Trains::Adapters(lora)
    } else {
        faults.extend(freeze_faults(&recipe.model.freeze, model));
        weights(recipe)
    };
    faults.extend(group_faults(&recipe.optimizer.group_norms, &trains, model));
    faults
}

/// What is asked of routers of a model that has none.
fn router_faults(recipe: &Recipe, model: &ModelConfig) -> Vec<Fault> {
    let Err(error) = router(recipe).check(model) else {
        return Vec::new();
    };
    let settings = &recipe.router;
    let asked = [
        ("router.load_balance", settings.load_balance != 0.0),
        ("router.capacity_factor", settings.capacity_factor.is_some()),
        ("router.routes", settings.routes == Routes::Sampler),
    ];
    let asked = asked.into_iter().filter(|(_, asked)| *asked);
    let fault = |(key, _)| Fault {
        keys: vec![key, "model.path"],
        title: error.to_string(),
        help: Some(format!("leave `{key}` out")),
    };
    asked.map(fault).collect()
}

/// The weights themselves, but for those that are frozen.
fn weights(recipe: &Recipe) -> Trains {
    match recipe.model.freeze.as_slice() {
        [] => Trains::All,
        patterns => Trains::AllBut(patterns.to_vec()),
    }
}

/// Patterns of norms that fit nothing that learns.
fn group_faults(patterns: &[String], trains: &Trains, model: &ModelConfig) -> Vec<Fault> {
    // Where what learns is told to be wrong, only what fits no parameter whatever is told too.
    let trains = match trains.check(model) {
        Ok(()) => trains,
        Err(_) => &Trains::All,
    };
    let idle = |pattern: &String| {
        let Err(Error::IdlePattern { pattern, paths }) =
            trains.check_groups(model, std::slice::from_ref(pattern))
        else {
            return None;
        };
        Some(Fault {
            keys: vec!["optimizer.group_norms"],
            title: format!(
                "no parameter that learns fits the pattern \"{pattern}\" of `optimizer.group_norms`"
            ),
            help: Some(format!(
                "the parameters that learn are {}",
                paths.join(", ")
            )),
        })
    };
    patterns.iter().filter_map(idle).collect()
}

fn lora_faults(lora: &Lora, model: &ModelConfig) -> Vec<Fault> {
    let Err(ModelError::Adapter { problems }) = model.adapter_params(lora) else {
        return Vec::new();
    };
    let fault = |problem: AdapterProblem| Fault {
        keys: match problem {
            AdapterProblem::Rank(_) => vec!["lora.rank"],
            AdapterProblem::Alpha(_) => vec!["lora.alpha"],
            AdapterProblem::Targets(_) => vec!["lora.targets"],
            AdapterProblem::NoLayer { .. } => vec!["lora.targets", "model.path"],
            AdapterProblem::Experts(_) => vec!["lora.experts", "lora.targets"],
            AdapterProblem::NoExperts => vec!["lora.experts", "model.path"],
        },
        title: problem.to_string(),
        help: match &problem {
            AdapterProblem::NoLayer { target, known } => Some(other_target(target, known, model)),
            AdapterProblem::Experts(_) => {
                Some("name some of them in `lora.targets`, or leave `lora.experts` out".to_owned())
            }
            AdapterProblem::NoExperts => Some(
                "leave `lora.experts` out: every layer of such a model has adapters without it"
                    .to_owned(),
            ),
            _ => None,
        },
    };
    problems.into_iter().map(fault).collect()
}

/// What to write in place of a target that is none of the `known`.
fn other_target(target: &str, known: &[String], model: &ModelConfig) -> String {
    // PEFT takes the end of a path as well.
    let name = target.rsplit('.').next().unwrap_or(target);
    let has = |names: &[String]| names.iter().any(|it| it == name);
    if has(known) {
        return format!("write \"{name}\": a target is the name of a layer alone");
    }
    if has(&model.adapter_targets(true)) {
        return "the experts have that layer: write `lora.experts = \"each\"` too".to_owned();
    }
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "take it out of `lora.targets`, or leave that out for every layer that can have an adapter".to_owned(),
    }
}

/// Each pattern is judged by itself, so that all that fit nothing are named.
fn freeze_faults(patterns: &[String], model: &ModelConfig) -> Vec<Fault> {
    let fault = |title: String, help: String| Fault {
        keys: vec!["model.freeze"],
        title,
        help: Some(help),
    };
    let idle = |pattern: &String| match Trains::AllBut(vec![pattern.clone()]).check(model) {
        Err(Error::IdlePattern { pattern, paths }) => Some(fault(
            format!("no parameter fits the pattern \"{pattern}\" of `model.freeze`"),
            format!("the parameters are {}", paths.join(", ")),
        )),
        _ => None,
    };
    let mut faults: Vec<Fault> = patterns.iter().filter_map(idle).collect();
    let all = Trains::AllBut(patterns.to_vec());
    if faults.is_empty() && !patterns.is_empty() && all.check(model).is_err() {
        faults.push(fault(
            "`model.freeze` freezes every parameter, so nothing would learn".to_owned(),
            "take a pattern away".to_owned(),
        ));
    }
    faults
}

fn router(recipe: &Recipe) -> RouterSettings {
    RouterSettings {
        load_balance: recipe.router.load_balance,
        replay: recipe.router.routes == Routes::Sampler,
        capacity_factor: recipe.router.capacity_factor,
    }
}

impl Learns {
    /// Reads or makes adapters where the recipe has them. Its settings are those of which [`faults`] found none.
    pub(crate) fn read(recipe: &Recipe, model: &ModelConfig) -> Result<Self, Error> {
        let router = router(recipe);
        let with = |lora, adapters, notes| Self {
            trains: Trains::Adapters(lora),
            router,
            adapters,
            notes,
            warning: None,
        };
        if let Some(folder) = &recipe.model.adapter {
            let found = load_adapter(folder, model)?;
            let warning = found.other_base(&recipe.model.path);
            return Ok(Self {
                warning,
                ..with(found.lora, found.params, found.notes)
            });
        }
        if recipe.lora.rank > 0 {
            let lora = lora(recipe, model);
            let adapters = init_adapter(model, &lora, recipe.seed)?;
            return Ok(with(lora, adapters, Vec::new()));
        }
        Ok(Self {
            trains: weights(recipe),
            router,
            adapters: Vec::new(),
            notes: Vec::new(),
            warning: None,
        })
    }

    /// In a few words.
    pub(crate) fn describe(&self) -> String {
        match &self.trains {
            Trains::All => "all parameters".to_owned(),
            Trains::AllBut(patterns) => format!("all parameters but {}", patterns.join(", ")),
            Trains::Adapters(lora) => format!(
                "adapters of rank {} and alpha {} on {}{}",
                lora.rank,
                lora.alpha,
                lora.targets.join(", "),
                if lora.experts {
                    ", of every expert too"
                } else {
                    ""
                }
            ),
        }
    }
}

fn lora(recipe: &Recipe, model: &ModelConfig) -> Lora {
    let settings = &recipe.lora;
    Lora {
        rank: settings.rank,
        alpha: settings.alpha.unwrap_or(2.0 * settings.rank as f64),
        experts: settings.experts == ExpertAdapters::Each,
        targets: if settings.targets.is_empty() {
            model.adapter_targets(settings.experts == ExpertAdapters::Each)
        } else {
            settings.targets.clone()
        },
    }
}

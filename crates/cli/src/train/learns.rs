//! What of a model learns, as a recipe says: all of it, all but some parameters, or adapters.

use ferrotune_engine::{Error, Lora, RouterSettings, Trains};
use ferrotune_graph::HostArray;
use ferrotune_models::{ModelConfig, init_adapter, load_adapter};
use ferrotune_nn::ParamSpec;
use ferrotune_recipe::Recipe;

/// What learns.
#[derive(Debug)]
pub(crate) struct Learns {
    pub(crate) trains: Trains,
    pub(crate) router: RouterSettings,
    /// The adapters as they begin; empty without.
    pub(crate) adapters: Vec<(ParamSpec, HostArray)>,
    /// What the user should hear.
    pub(crate) notes: Vec<String>,
}

impl Learns {
    /// Reads or makes adapters where the recipe has them.
    pub(crate) fn read(recipe: &Recipe, model: &ModelConfig) -> Result<Self, Error> {
        let router = RouterSettings {
            load_balance: recipe.router.load_balance,
            replay: false,
        };
        router.check(model)?;
        let with = |lora, adapters, notes| Self {
            trains: Trains::Adapters(lora),
            router,
            adapters,
            notes,
        };
        if let Some(folder) = &recipe.model.adapter {
            let found = load_adapter(folder, model)?;
            return Ok(with(found.lora, found.params, found.notes));
        }
        if recipe.lora.rank > 0 {
            let lora = lora(recipe, model);
            let adapters = init_adapter(model, &lora, recipe.seed)?;
            return Ok(with(lora, adapters, Vec::new()));
        }
        let patterns = &recipe.model.freeze;
        let trains = if patterns.is_empty() {
            Trains::All
        } else {
            Trains::AllBut(patterns.clone())
        };
        trains.check(model)?;
        Ok(Self {
            trains,
            router,
            adapters: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// In a few words.
    pub(crate) fn describe(&self) -> String {
        match &self.trains {
            Trains::All => "all parameters".to_owned(),
            Trains::AllBut(patterns) => format!("all parameters but {}", patterns.join(", ")),
            Trains::Adapters(lora) => format!(
                "adapters of rank {} and alpha {} on {}",
                lora.rank,
                lora.alpha,
                lora.targets.join(", ")
            ),
        }
    }
}

fn lora(recipe: &Recipe, model: &ModelConfig) -> Lora {
    let settings = &recipe.lora;
    Lora {
        rank: settings.rank,
        alpha: settings.alpha.unwrap_or(2.0 * settings.rank as f64),
        targets: if settings.targets.is_empty() {
            model.adapter_targets()
        } else {
            settings.targets.clone()
        },
    }
}

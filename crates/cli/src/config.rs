//! `ferrotune config`: a recipe with every default filled in, or the reference of all keys.

use ferrotune_recipe::Recipe;

use crate::args::ConfigArgs;
use crate::failure::Failure;
use crate::terminal::{print, say};

pub(crate) fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let Some(recipe) = &args.recipe else {
        return print(Recipe::reference().trim_end());
    };
    let resolved = Recipe::load(recipe, &args.overrides).map_err(Failure::Recipe)?;
    for note in resolved.notes() {
        say(format_args!("note: {note}"));
    }
    print(resolved.to_toml().trim_end())
}

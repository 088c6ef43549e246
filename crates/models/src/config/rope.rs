//! The rotary settings of `config.json`, in the old and in the new spelling.
//!
//! Old: `rope_theta` and `rope_scaling` at the top. New: `rope_parameters` with both in it. Only unscaled rotary embedding of the
//! whole head is built; anything else is an error that names it.

use serde_json::{Map, Value};

use super::fields::{Fields, brief};

/// Value that `transformers` assumes where a file names none.
const DEFAULT_THETA: f64 = 10_000.0;

/// Reads the base of the rotary frequencies, and reports every kind of scaling.
pub(crate) fn read_theta(fields: &mut Fields<'_>) -> f64 {
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(object) = fields.object(key) {
            refuse_scaling(fields, key, object);
        }
    }
    refuse_partial(
        fields,
        "partial_rotary_factor",
        fields.get("partial_rotary_factor"),
    );
    let top = fields
        .get("rope_theta")
        .is_some()
        .then(|| fields.positive("rope_theta", DEFAULT_THETA));
    let nested = read_nested_theta(fields);
    if let (Some(top), Some(nested)) = (top, nested)
        && top != nested
    {
        fields.problem(format!(
            "rope_theta is {top} at the top and {nested} in rope_parameters: keep one"
        ));
    }
    nested.or(top).unwrap_or(DEFAULT_THETA)
}

fn read_nested_theta(fields: &mut Fields<'_>) -> Option<f64> {
    let value = fields
        .get("rope_parameters")?
        .get("rope_theta")
        .filter(|value| !value.is_null())?;
    match value
        .as_f64()
        .filter(|theta| theta.is_finite() && *theta > 0.0)
    {
        Some(theta) => Some(theta),
        None => {
            fields.problem(format!(
                "rope_parameters.rope_theta must be a number above 0, found {}",
                brief(value)
            ));
            None
        }
    }
}

fn refuse_scaling(fields: &mut Fields<'_>, key: &str, object: &Map<String, Value>) {
    let kind = object.get("rope_type").or_else(|| object.get("type"));
    if let Some(kind) = kind.filter(|&kind| kind != "default") {
        fields.problem(format!(
            "{key}: rotary scaling {} is not supported, only \"default\"",
            brief(kind)
        ));
    } else if kind.is_none() && object.contains_key("factor") {
        fields.problem(format!(
            "{key} has a factor but no rope_type: rotary scaling is not supported, only \"default\""
        ));
    }
    // One set of parameters for each kind of layer.
    if let Some((name, _)) = object.iter().find(|(_, value)| value.is_object()) {
        fields.problem(format!(
            "{key}.{name}: rotary parameters for single kinds of layers are not supported"
        ));
    }
    refuse_partial(
        fields,
        &format!("{key}.partial_rotary_factor"),
        object.get("partial_rotary_factor"),
    );
}

fn refuse_partial(fields: &mut Fields<'_>, key: &str, factor: Option<&Value>) {
    if let Some(factor) = factor.filter(|factor| !factor.is_null() && factor.as_f64() != Some(1.0))
    {
        fields.problem(format!("{key} {} is not supported, only 1", brief(factor)));
    }
}

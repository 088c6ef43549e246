//! The rotary settings of a configuration, judged.

use serde_json::{Map, Value};

use super::{Rotary, RotaryScaling};
use crate::config::family::Family;
use crate::config::fields::{Fields, MAX_SIZE, brief};

/// Value that `transformers` assumes where a file names none.
const DEFAULT_THETA: f64 = 10_000.0;

/// The length of the first training.
pub(crate) const ORIGINAL: &str = "original_max_position_embeddings";

/// Reads the rotary settings of heads of `head_dim`.
pub(crate) fn read(fields: &mut Fields<'_>, family: Family, head_dim: usize) -> Rotary {
    let before = fields.problem_count();
    let theta = read_theta(fields);
    let part = read_part(fields, family);
    let dims = (head_dim as f64 * part) as usize;
    // The size of a head is judged where it is read.
    let keys = [PART, NESTED_PART, "head_dim"];
    let wrong = part < 1.0 && (dims < 2 || !dims.is_multiple_of(2));
    fields.refuse_if(wrong, &keys, || {
        format!("head_dim ({head_dim}) times {PART} ({part}) must be an even number of at least 2")
    });
    let dims = dims.max(2);
    let scaling = read_scaling(fields, dims / 2);
    let rotary = Rotary {
        theta,
        dims,
        scaling,
    };
    // Numbers that are each possible may give none together: a base of 1, or one near 0.
    let ends = [0, rotary.dims / 2 - 1].map(|i| rotary.frequency(i));
    let finite = ends.iter().all(|f| f.is_finite()) && rotary.amplitude().is_finite();
    if !finite && fields.problem_count() == before {
        fields.problem(format!(
            "rope_theta {theta} and its scaling give frequencies that are not finite"
        ));
    }
    rotary
}

fn read_theta(fields: &mut Fields<'_>) -> f64 {
    let top = fields
        .get("rope_theta")
        .is_some()
        .then(|| fields.positive("rope_theta", DEFAULT_THETA));
    let nested = nested(fields, "rope_theta");
    if let (Some(top), Some(nested)) = (top, nested) {
        fields.refuse_if(
            top != nested,
            &["rope_theta", "rope_parameters.rope_theta"],
            || format!("rope_theta is {top} at the top and {nested} in rope_parameters: keep one"),
        );
    }
    nested.or(top).unwrap_or(DEFAULT_THETA)
}

/// The number above 0 at `key` of `rope_parameters`.
fn nested(fields: &mut Fields<'_>, key: &str) -> Option<f64> {
    let object = fields.get("rope_parameters")?.as_object()?;
    Scaling {
        fields,
        key: "rope_parameters",
        object,
    }
    .number(key)
}

/// The share of a head's dimensions that turn: at the top, and in `rope_parameters`.
const PART: &str = "partial_rotary_factor";
const NESTED_PART: &str = "rope_parameters.partial_rotary_factor";

fn read_part(fields: &mut Fields<'_>, family: Family) -> f64 {
    let top = fields.number(PART);
    let nested = nested(fields, PART);
    let part = nested.or(top).unwrap_or(family.default_rotary_part());
    if part > 0.0 && part <= 1.0 {
        part
    } else {
        let text = format!("{PART} must be above 0 and at most 1, found {part}");
        fields.problem_of(PART, text);
        1.0
    }
}

/// One object of rotary scaling.
struct Scaling<'f, 'a> {
    fields: &'f mut Fields<'a>,
    key: &'static str,
    object: &'a Map<String, Value>,
}

impl Scaling<'_, '_> {
    fn problem_of(&mut self, name: &str, what: &str) {
        let path = format!("{}.{name}", self.key);
        self.fields.problem_of(&path, format!("{path} {what}"));
    }

    /// A number above 0, if there.
    fn number(&mut self, name: &str) -> Option<f64> {
        self.number_if(name, "a number above 0", |n| n.is_finite() && n > 0.0)
    }

    /// A number of tokens, if there.
    fn length(&mut self, name: &str) -> Option<f64> {
        let wanted = format!("a whole number from 1 to {MAX_SIZE}");
        self.number_if(name, &wanted, |n| {
            n.fract() == 0.0 && (1.0..=MAX_SIZE as f64).contains(&n)
        })
    }

    /// A number that is as `wanted`, if there.
    fn number_if(&mut self, name: &str, wanted: &str, good: fn(f64) -> bool) -> Option<f64> {
        let value = self.object.get(name).filter(|value| !value.is_null())?;
        let number = value.as_f64().filter(|n| good(*n));
        if number.is_none() {
            self.problem_of(name, &format!("must be {wanted}, found {}", brief(value)));
        }
        number
    }

    fn flag_or(&mut self, name: &str, default: bool) -> bool {
        let Some(value) = self.object.get(name).filter(|value| !value.is_null()) else {
            return default;
        };
        value.as_bool().unwrap_or_else(|| {
            self.problem_of(
                name,
                &format!("must be true or false, found {}", brief(value)),
            );
            default
        })
    }

    fn required(&mut self, name: &str) -> f64 {
        if self.object.get(name).is_none_or(Value::is_null) {
            self.problem_of(name, "is missing");
        }
        self.number(name).unwrap_or(1.0)
    }

    /// The length of the first training: at the top, in the object, or else the longest of all.
    fn original(&mut self) -> f64 {
        let key = ORIGINAL;
        let top = self.fields.size(key).map(|n| n as f64);
        let inner = self.length(key);
        let longest = self.fields.size("max_position_embeddings");
        match top.or(inner).or(longest.map(|n| n as f64)) {
            Some(length) => length,
            None => {
                self.problem_of(key, "is missing");
                1.0
            }
        }
    }

    fn llama3(&mut self) -> RotaryScaling {
        let (low, high) = (
            self.required("low_freq_factor"),
            self.required("high_freq_factor"),
        );
        let key = self.key;
        let keys = ["low_freq_factor", "high_freq_factor"].map(|name| format!("{key}.{name}"));
        self.fields
            .refuse_if(low >= high, &[&keys[0], &keys[1]], || {
                format!("{key}.low_freq_factor ({low}) must be below high_freq_factor ({high})")
            });
        RotaryScaling::Llama3 {
            factor: self.required("factor"),
            low,
            high,
            original: self.original(),
        }
    }

    /// The factor, or else how much longer the longest text is than the original length.
    fn factor(&mut self, original: f64) -> f64 {
        let longest = self.fields.size("max_position_embeddings");
        match self.number("factor") {
            Some(factor) => factor,
            None => longest.map_or_else(|| self.required("factor"), |n| n as f64 / original),
        }
    }

    /// As many numbers above 0 as there are frequencies.
    fn factors(&mut self, name: &str, frequencies: usize) -> Vec<f64> {
        let list = self.object.get(name).and_then(Value::as_array);
        let above_0 = |it: &Value| it.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        let factors = list.and_then(|list| list.iter().map(above_0).collect::<Option<Vec<_>>>());
        let fits = factors.filter(|it| it.len() == frequencies);
        fits.unwrap_or_else(|| {
            let what = format!("must be a list of {frequencies} numbers above 0");
            self.problem_of(name, &what);
            vec![1.0; frequencies]
        })
    }

    fn longrope(&mut self, frequencies: usize) -> RotaryScaling {
        let original = self.original();
        let inner = format!("{}.{ORIGINAL}", self.key);
        let keys = [ORIGINAL, &inner, "max_position_embeddings"];
        self.fields.refuse_if(original < 2.0, &keys, || {
            format!(
                "{ORIGINAL} must be at least 2 for longrope, which takes no longer texts, found {original}"
            )
        });
        let attention = match self.number("attention_factor") {
            Some(told) => told,
            None => {
                // Factors below 1 would shrink it.
                let factor = self.factor(original).max(1.0);
                (1.0 + factor.ln() / original.ln()).sqrt()
            }
        };
        // Judged, though no text here is long enough for them.
        self.factors("long_factor", frequencies);
        RotaryScaling::LongRope {
            short: self.factors("short_factor", frequencies),
            attention,
            original,
        }
    }

    fn yarn(&mut self) -> RotaryScaling {
        let original = self.original();
        let factor = self.factor(original);
        let magnitude = |by: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * by * factor.ln() + 1.0
            }
        };
        let told = self.number("attention_factor");
        let attention =
            told.unwrap_or_else(
                || match (self.number("mscale"), self.number("mscale_all_dim")) {
                    (Some(one), Some(all)) => magnitude(one) / magnitude(all),
                    _ => magnitude(1.0),
                },
            );
        RotaryScaling::Yarn {
            factor,
            fast: self.number("beta_fast").unwrap_or(32.0),
            slow: self.number("beta_slow").unwrap_or(1.0),
            truncate: self.flag_or("truncate", true),
            attention,
            original,
        }
    }
}

/// The scaling of so many frequencies.
fn read_scaling(fields: &mut Fields<'_>, frequencies: usize) -> RotaryScaling {
    let before = fields.problem_count();
    let mut found = RotaryScaling::Default;
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(object) = fields.object(key) else {
            continue;
        };
        // One set of parameters for each kind of layer.
        if let Some((name, _)) = object.iter().find(|(_, value)| value.is_object()) {
            fields.problem(format!(
                "{key}.{name}: rotary parameters for single kinds of layers are not supported"
            ));
        }
        let kind = object.get("rope_type").or_else(|| object.get("type"));
        let mut scaling = Scaling {
            fields,
            key,
            object,
        };
        let one = match kind.and_then(Value::as_str) {
            Some("default") => RotaryScaling::Default,
            Some("linear") => RotaryScaling::Linear {
                factor: scaling.required("factor"),
            },
            Some("llama3") => scaling.llama3(),
            Some("yarn") => scaling.yarn(),
            Some("longrope") => scaling.longrope(frequencies),
            _ => {
                refuse_kind(fields, key, object, kind);
                RotaryScaling::Default
            }
        };
        let differ =
            found != RotaryScaling::Default && one != RotaryScaling::Default && one != found;
        if differ && fields.problem_count() == before {
            fields.problem("rope_parameters and rope_scaling differ: keep one");
        }
        if one != RotaryScaling::Default {
            found = one;
        }
    }
    found
}

fn refuse_kind(
    fields: &mut Fields<'_>,
    key: &str,
    object: &Map<String, Value>,
    kind: Option<&Value>,
) {
    let supported = "supported: default, linear, llama3, yarn, longrope";
    match kind {
        Some(kind) if kind == "dynamic" => fields.problem(format!(
            "{key}: rotary scaling {} depends on the length of the text, which differs among the documents of a row; {supported}",
            brief(kind)
        )),
        Some(kind) => fields.problem(format!(
            "{key}: rotary scaling {} is not supported; {supported}",
            brief(kind)
        )),
        None if object.contains_key("factor") => fields.problem(format!(
            "{key} has a factor but no rope_type; {supported}"
        )),
        None => {}
    }
}

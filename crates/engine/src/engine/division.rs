//! Which parameters learn, and which stay as they are.

use ferrotune_graph::HostArray;
use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;
use sha2::{Digest, Sha256};

use super::Trains;
use crate::error::Error;

/// All parameters in their order, and which of them are trained.
#[derive(Clone, Debug)]
pub(super) struct Division {
    specs: Vec<ParamSpec>,
    trained: Vec<bool>,
}

impl Division {
    pub(super) fn of(model: &ModelConfig, trains: &Trains) -> Result<Self, Error> {
        let mut specs = model.params();
        let count = specs.len();
        let trained = match trains {
            Trains::All => vec![true; count],
            Trains::AllBut(patterns) => all_but(&specs, patterns)?,
            Trains::Adapters(lora) => {
                specs.extend(model.adapter_params(lora)?);
                (0..specs.len()).map(|i| i >= count).collect()
            }
        };
        Ok(Self { specs, trained })
    }

    pub(super) fn specs(&self) -> &[ParamSpec] {
        &self.specs
    }

    /// Refuses arrays that are not those of the parameters, in their order.
    pub(super) fn check_given(&self, given: &[(ParamSpec, HostArray)]) -> Result<(), Error> {
        let specs = self.specs();
        for (i, spec) in specs.iter().enumerate() {
            let wrong = |reason: String| Error::Parameter {
                path: spec.path.clone(),
                reason,
            };
            let (found, array) = given
                .get(i)
                .ok_or_else(|| wrong("it is missing".to_owned()))?;
            if found.path != spec.path {
                return Err(wrong(format!("`{}` stands in its place", found.path)));
            }
            if array.dims() != spec.dims || array.dtype() != spec.dtype {
                let reason = format!(
                    "it is {} {:?}, the model wants {} {:?}",
                    array.dtype(),
                    array.dims(),
                    spec.dtype,
                    spec.dims
                );
                return Err(wrong(reason));
            }
        }
        match given.get(specs.len()) {
            Some((extra, _)) => Err(Error::Parameter {
                path: extra.path.clone(),
                reason: "the model has no such parameter".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Refuses a pattern that fits no parameter that learns.
    pub(super) fn check_groups(&self, patterns: &[String]) -> Result<(), Error> {
        let specs = self.trained(&self.specs);
        let idle = |pattern: &&String| !specs.iter().any(|spec| fits(pattern, &spec.path));
        match patterns.iter().find(idle) {
            None => Ok(()),
            Some(pattern) => Err(Error::IdlePattern {
                pattern: pattern.clone(),
                paths: specs.iter().map(|spec| spec.path.clone()).collect(),
            }),
        }
    }

    /// Those of a value for each parameter that belong to trained ones.
    pub(super) fn trained<'a, T>(&self, of_all: &'a [T]) -> Vec<&'a T> {
        self.where_it_is(true, of_all)
    }

    /// Those that belong to the others.
    pub(super) fn frozen<'a, T>(&self, of_all: &'a [T]) -> Vec<&'a T> {
        self.where_it_is(false, of_all)
    }

    fn where_it_is<'a, T>(&self, trained: bool, of_all: &'a [T]) -> Vec<&'a T> {
        let marked = of_all.iter().zip(&self.trained);
        marked
            .filter_map(|(value, mark)| (*mark == trained).then_some(value))
            .collect()
    }

    /// Values of trained and of frozen parameters, each in their order, as a value for each parameter.
    pub(super) fn join<T>(&self, trained: Vec<T>, frozen: Vec<T>) -> Vec<T> {
        let (mut trained, mut frozen) = (trained.into_iter(), frozen.into_iter());
        let next = |mark: &bool| if *mark { trained.next() } else { frozen.next() };
        let joined: Option<Vec<T>> = self.trained.iter().map(next).collect();
        joined.expect("the parts were divided in the same way")
    }

    /// A hash of the frozen values, if there are any.
    pub(super) fn fingerprint(&self, arrays: &[&HostArray]) -> Option<String> {
        let frozen = self.frozen(arrays);
        if frozen.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        for array in frozen {
            hash.update(array.bytes());
        }
        let bytes = hash.finalize();
        Some(bytes.iter().map(|b| format!("{b:02x}")).collect())
    }
}

/// Which parameters no pattern fits.
fn all_but(specs: &[ParamSpec], patterns: &[String]) -> Result<Vec<bool>, Error> {
    let idle = |pattern: &&String| !specs.iter().any(|spec| fits(pattern, &spec.path));
    if let Some(pattern) = patterns.iter().find(idle) {
        let paths: Vec<String> = specs.iter().map(|spec| spec.path.clone()).collect();
        return Err(Error::IdlePattern {
            pattern: pattern.clone(),
            paths,
        });
    }
    let free = |spec: &ParamSpec| !patterns.iter().any(|pattern| fits(pattern, &spec.path));
    let trained: Vec<bool> = specs.iter().map(free).collect();
    if trained.iter().any(|mark| *mark) {
        Ok(trained)
    } else {
        Err(Error::NothingLearns)
    }
}

/// Whether a path fits a pattern in which `*` stands for any characters.
pub(crate) fn fits(pattern: &str, path: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == path;
    };
    let Some(rest) = path.strip_prefix(before) else {
        return false;
    };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|at| fits(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, path, expected) in [
            ("embed", "embed", true),
            ("embed", "embedding", false),
            ("*/router", "layers/3/mlp/router", true),
            ("layers/*/router", "layers/mlp/router", true),
            ("layers/*/router", "layers/router", false),
            ("*", "anything", true),
            ("*norm*", "layers/input_norm", true),
            ("a*b*c", "axbybzc", true),
            ("a*b*c", "axbyb", false),
        ] {
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
    }
}

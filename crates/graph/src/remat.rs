//! What the forward pass keeps for the derivative, and where.
//!
//! A [`Policy`] is given to a loop or a block. It names tensors (see [`crate::Tensor::named`]) and says for each whether the
//! derivative reads a kept copy or computes the value again.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::arena::{Arena, Graph, NodeId, Value};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Where the derivative finds a value of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// A copy is kept in the memory of the device.
    Device,
    /// A copy is kept in the memory of the host. On the CPU that is the same memory, and nothing is moved.
    Offload,
    /// Nowhere: it is computed again.
    Recompute,
}

/// What happens to the tensors that a policy does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Unnamed {
    #[default]
    Recompute,
    KeepDots,
    KeepAll,
}

/// What a loop or a block keeps for its derivative. What is carried into a step of a loop is always kept, on the device
/// unless a name says otherwise; of the rest, a policy decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    unnamed: Unnamed,
    names: BTreeMap<String, Residual>,
}

impl Policy {
    /// Keep only what is carried: least memory, one more forward pass.
    pub fn recompute() -> Self {
        Self::default()
    }

    /// Keep the results of contractions too: recomputing the rest is cheap.
    pub fn keep_dots() -> Self {
        Self {
            unnamed: Unnamed::KeepDots,
            ..Self::default()
        }
    }

    /// Keep whatever the derivative reads: most memory, no recomputation.
    pub fn keep_all() -> Self {
        Self {
            unnamed: Unnamed::KeepAll,
            ..Self::default()
        }
    }

    /// The same policy with a decision for the tensor called `name`.
    #[must_use]
    pub fn with(mut self, name: &str, residual: Residual) -> Self {
        self.names.insert(name.to_owned(), residual);
        self
    }
}

/// A value of a body that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) value: Value,
    pub(crate) offload: bool,
}

/// A copy that a program keeps between its forward and its backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The name of the tensor, or the operation that computed it.
    pub name: String,
    /// What is kept, all steps of a loop together.
    pub ty: TensorType,
    /// Whether it lives in the memory of the host.
    pub offload: bool,
}

impl Arena {
    /// The value behind names, which are aliases.
    fn unaliased(&self, mut value: Value) -> Value {
        while self.nodes[value.node].op.given_name().is_some() {
            value = self.nodes[value.node].inputs[0];
        }
        value
    }

    /// The name that a value bears in its region, or what computed it.
    pub(crate) fn describe(&self, value: Value) -> String {
        let node = &self.nodes[value.node];
        let region = &self.regions[node.region];
        let named = region.nodes.iter().find_map(|id| {
            let op = &self.nodes[*id].op;
            let name = op.given_name()?;
            (self.unaliased(Value {
                node: *id,
                output: 0,
            }) == value)
                .then(|| name.to_owned())
        });
        let carried = region.params.iter().position(|id| *id == value.node);
        let carried = carried.map(|i| format!("carried value {i}"));
        named.or(carried).unwrap_or_else(|| match &*node.scope {
            "" => node.op.name().to_owned(),
            scope => format!("{scope}/{}", node.op.name()),
        })
    }
}

/// What a policy says of one body.
pub(crate) struct Choice {
    /// Where each carried value is kept.
    pub(crate) carry: Vec<Kept>,
    /// What else is kept.
    pub(crate) others: Vec<Kept>,
}

impl Graph {
    /// Applies a policy to the open region, whose carried parameters are `carry`.
    ///
    /// # Panics
    /// When a name of the policy is borne by no tensor of the region, by tensors of different types, or by one that the
    /// decision cannot be applied to.
    #[track_caller]
    pub(crate) fn choose(&self, policy: &Policy, carry: &[Value]) -> Choice {
        let named = self.named_values(policy);
        let arena = self.0.borrow();
        let region = &arena.regions[self.current_region()];
        let params: HashSet<NodeId> = region.params.iter().copied().collect();
        for (value, (name, residual)) in &named {
            let carried = carry.contains(value);
            if params.contains(&value.node) && (!carried || *residual == Residual::Recompute) {
                let what = if carried {
                    "carried into the body, so it must be kept"
                } else {
                    "not computed in the body"
                };
                panic!("the policy decides about `{name}`, but that is {what}");
            }
        }
        let decided = |value: &Value| named.get(value).map(|(_, residual)| *residual);
        let kept = |value: Value, otherwise: bool| {
            let residual = decided(&value).unwrap_or(if otherwise {
                Residual::Device
            } else {
                Residual::Recompute
            });
            (residual != Residual::Recompute).then_some(Kept {
                value,
                offload: residual == Residual::Offload,
            })
        };
        let mut others = Vec::new();
        for id in region.nodes.iter().filter(|id| !params.contains(id)) {
            let node = &arena.nodes[*id];
            if node.op.is_leaf() || node.op.given_name().is_some() {
                continue;
            }
            let otherwise = match policy.unnamed {
                Unnamed::Recompute => false,
                Unnamed::KeepDots => node.op.is_dot(),
                Unnamed::KeepAll => true,
            };
            others.extend(
                (0..node.types.len())
                    .filter_map(|output| kept(Value { node: *id, output }, otherwise)),
            );
        }
        let carry = carry
            .iter()
            .filter_map(|value| kept(*value, true))
            .collect();
        Choice { carry, others }
    }

    /// The values that bear the policy's names.
    #[track_caller]
    fn named_values(&self, policy: &Policy) -> HashMap<Value, (String, Residual)> {
        let arena = self.0.borrow();
        let nodes = &arena.regions[self.current_region()].nodes;
        let mut found: HashMap<Value, (String, Residual)> = HashMap::new();
        for (name, residual) in &policy.names {
            let mut ty: Option<&TensorType> = None;
            for id in nodes
                .iter()
                .filter(|id| arena.nodes[**id].op.given_name() == Some(name))
            {
                let this = &arena.nodes[*id].types[0];
                if let Some(other) = ty.filter(|other| *other != this) {
                    panic!(
                        "the policy decides about `{name}`, but tensors of different types bear that name: {other} and {this} (at {})",
                        arena.nodes[*id].location
                    );
                }
                ty = Some(this);
                let value = arena.unaliased(Value {
                    node: *id,
                    output: 0,
                });
                let before = found.insert(value, (name.clone(), *residual));
                if let Some((other, different)) = before.filter(|(_, r)| r != residual) {
                    panic!(
                        "one tensor bears the names `{other}` and `{name}`, and the policy decides differently: {different:?} and {residual:?}"
                    );
                }
            }
            if ty.is_none() {
                let borne: std::collections::BTreeSet<&str> = nodes
                    .iter()
                    .filter_map(|id| arena.nodes[*id].op.given_name())
                    .collect();
                let borne: Vec<&str> = borne.into_iter().collect();
                panic!(
                    "the policy decides about `{name}`, but no tensor of the body itself bears that name; bodies inside of it do not count (names there: {})",
                    borne.join(", ")
                );
            }
        }
        found
    }

    /// The kept values of the open region as they leave it.
    pub(crate) fn kept_copies(&self, kept: &[Kept]) -> Vec<Tensor> {
        let copy = |kept: &Kept| {
            let tensor = Tensor {
                graph: self.clone(),
                value: kept.value,
            };
            if kept.offload {
                tensor.to_host_memory()
            } else {
                tensor
            }
        };
        kept.iter().map(copy).collect()
    }

    /// What a program with the given results keeps between its forward and its backward pass.
    #[track_caller]
    pub fn saved(&self, results: &[&Tensor]) -> Vec<Saved> {
        let roots = self.own_values(results);
        let arena = self.0.borrow();
        arena.saved(0, &crate::liveness::Live::of(&arena, 0, &roots))
    }
}

impl Arena {
    /// What an operation keeps: `own` values, one for each of the hidden results `types`, of which some are read, then
    /// those of the live nodes in its body.
    pub(crate) fn kept(
        &self,
        own: &[Kept],
        types: &[TensorType],
        read: &[bool],
        body: crate::RegionId,
        live: &crate::liveness::Live,
    ) -> Vec<Saved> {
        let own = own.iter().zip(types).zip(read);
        let own = own.filter(|(_, read)| **read).map(|((kept, ty), _)| Saved {
            name: self.describe(kept.value),
            ty: ty.clone(),
            offload: kept.offload,
        });
        own.chain(self.saved(body, live)).collect()
    }

    /// What the live nodes of a region keep, those of inner regions included.
    pub(crate) fn saved(
        &self,
        region: crate::RegionId,
        live: &crate::liveness::Live,
    ) -> Vec<Saved> {
        let nodes = self.regions[region].nodes.iter();
        nodes
            .filter_map(|id| Some((&self.nodes[*id], live.outputs(*id)?)))
            .flat_map(|(node, outputs)| node.op.saved(self, outputs))
            .collect()
    }
}

/// The values that copies from [`Graph::kept_copies`] stand for.
pub(crate) fn from_copies(kept: &[Kept], copies: &[Tensor]) -> Vec<Tensor> {
    let value = |(kept, copy): (&Kept, &Tensor)| {
        if kept.offload {
            copy.to_device_memory()
        } else {
            copy.clone()
        }
    };
    kept.iter().zip(copies).map(value).collect()
}

//! The program under construction: one append-only arena of nodes, grouped into regions.
//!
//! Nodes are numbered in construction order, so operands always come before their users and every walk is a loop.
//! A region is the root or the body of a loop. What a body uses from outside becomes an explicit operand: the first use
//! adds a *capture*, a parameter of the body fed by the outer value. Constants are repeated instead of captured. How
//! bodies are traced and repeated stands in `regions`.

mod regions;

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

use ferrotune_pjrt::{Mesh, Sharding};

pub(crate) use regions::ClosedRegion;

use crate::control::manual::ManualScope;
use crate::op::Op;
use crate::ops::param::Param;
use crate::sharding::Rules;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Number of a node in its arena.
pub(crate) type NodeId = usize;

/// Number of a region in its arena; region 0 is the root.
pub type RegionId = usize;

/// One result of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct Value {
    pub(crate) node: NodeId,
    pub(crate) output: usize,
}

pub(crate) struct Node {
    pub(crate) op: Rc<dyn Op>,
    pub(crate) inputs: Vec<Value>,
    pub(crate) types: Vec<TensorType>,
    pub(crate) region: RegionId,
    /// Path of the scopes that were open, such as `layers/attn`.
    pub(crate) scope: Rc<str>,
    pub(crate) location: &'static Location<'static>,
}

#[derive(Default)]
pub(crate) struct Region {
    /// Declared parameters first, then captures in order of first use.
    pub(crate) params: Vec<NodeId>,
    pub(crate) declared: usize,
    /// Nodes in construction order, parameters included.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) results: Vec<Value>,
    /// Outer value (of the parent region) to the parameter that stands for it.
    captures: Vec<(Value, NodeId)>,
    captured: HashMap<Value, NodeId>,
    /// Which axes are manual in the region, where it is the body of `manual`.
    manual: Option<ManualScope>,
}

impl Region {
    /// What the region reads from outside: the outer value, and the parameter that stands for it.
    pub(crate) fn captures(&self) -> Vec<(Value, Value)> {
        let inner = |node: NodeId| Value { node, output: 0 };
        self.captures
            .iter()
            .map(|(outer, node)| (*outer, inner(*node)))
            .collect()
    }
}

/// An argument of the program.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) node: NodeId,
    pub(crate) sharding: Sharding,
}

/// The nodes and regions of one program; read by operations through [`Op`].
pub struct Arena {
    pub(crate) name: String,
    pub(crate) mesh: Mesh,
    pub(crate) rules: Rules,
    pub(crate) nodes: Vec<Node>,
    pub(crate) regions: Vec<Region>,
    pub(crate) inputs: Vec<Input>,
    /// Values that were computed again, and the saved copies that stand for them.
    recalled: HashMap<Value, Value>,
    open: Vec<RegionId>,
    scope: Rc<str>,
}

impl Arena {
    /// Replaces the scope path and returns the one before.
    pub(crate) fn swap_scope(&mut self, scope: Rc<str>) -> Rc<str> {
        std::mem::replace(&mut self.scope, scope)
    }

    /// What is manual in the open manual regions, innermost first.
    pub(crate) fn manual_scopes(&self) -> impl Iterator<Item = &ManualScope> {
        let open = self.open.iter().rev();
        open.filter_map(|r| self.regions[*r].manual.as_ref())
    }

    pub(crate) fn value_type(&self, value: Value) -> &TensorType {
        &self.nodes[value.node].types[value.output]
    }
}

/// A program under construction. Cloning is cheap and names the same program.
#[derive(Clone)]
pub struct Graph(pub(crate) Rc<RefCell<Arena>>);

impl Graph {
    /// An empty program called `name`, for `mesh`, whose logical axes are placed by `rules`.
    ///
    /// # Panics
    /// When the name is empty.
    #[track_caller]
    pub fn new(name: &str, mesh: Mesh, rules: Rules) -> Self {
        assert!(!name.is_empty(), "a program has a name");
        let arena = Arena {
            name: name.to_owned(),
            mesh,
            rules,
            nodes: Vec::new(),
            regions: vec![Region::default()],
            inputs: Vec::new(),
            recalled: HashMap::new(),
            open: vec![0],
            scope: Rc::from(""),
        };
        Self(Rc::new(RefCell::new(arena)))
    }

    /// The program's name.
    pub fn name(&self) -> String {
        self.0.borrow().name.clone()
    }

    /// The mesh that the program is written for.
    pub fn mesh(&self) -> Mesh {
        self.0.borrow().mesh.clone()
    }

    /// The placement that the rules give to a tensor with these dimensions and logical axes (`_` for none). Inside of a manual
    /// region the tensor is one device's part along the axes that are manual there, which split it no further.
    ///
    /// # Panics
    /// As [`Self::input`].
    #[track_caller]
    pub fn placement(&self, tensor: &str, dims: &[usize], axes: &[&str]) -> Sharding {
        let rules = match self.manual_axes() {
            Some(manual) => self.0.borrow().rules.without(&manual),
            None => self.0.borrow().rules.clone(),
        };
        let placed = rules.place(tensor, dims, axes, &self.mesh());
        match placed {
            Ok(sharding) => sharding,
            Err(e) => panic!("{e}"),
        }
    }

    /// Runs `f` with `name` appended to the scope path; paths appear in XLA's messages and in dumps.
    pub fn scope<R>(&self, name: &str, f: impl FnOnce() -> R) -> R {
        let before = self.0.borrow().scope.clone();
        let path = if before.is_empty() {
            name.to_owned()
        } else {
            format!("{before}/{name}")
        };
        self.0.borrow_mut().scope = Rc::from(path);
        let result = f();
        self.0.borrow_mut().scope = before;
        result
    }

    /// Adds an argument of the program; `axes` names one logical axis per dimension, `_` for none.
    ///
    /// # Panics
    /// When `axes` has another length than `dims`, a logical axis is unknown, or the mesh does not divide a dimension:
    /// the message names the tensor. Use [`Rules::place`] first for shapes that come from a user.
    #[track_caller]
    pub fn input(
        &self,
        name: &str,
        dtype: ferrotune_pjrt::DType,
        dims: &[usize],
        axes: &[&str],
    ) -> Tensor {
        let sharding = self.placement(name, dims, axes);
        self.input_placed(name, TensorType::new(dtype, dims), sharding)
    }

    /// Adds an argument whose sharding is already known.
    #[track_caller]
    pub fn input_placed(&self, name: &str, ty: TensorType, sharding: Sharding) -> Tensor {
        let index = self.0.borrow().inputs.len();
        assert_eq!(
            self.current_region(),
            0,
            "argument `{name}` must be added outside of loop bodies"
        );
        let tensor = self
            .add(
                Param {
                    index,
                    types: vec![ty],
                },
                &[],
            )
            .remove(0);
        let mut arena = self.0.borrow_mut();
        arena.inputs.push(Input {
            name: name.to_owned(),
            node: tensor.value.node,
            sharding,
        });
        arena.regions[0].params.push(tensor.value.node);
        drop(arena);
        tensor
    }

    pub(crate) fn current_region(&self) -> RegionId {
        *self
            .0
            .borrow()
            .open
            .last()
            .expect("the root region is always open")
    }

    /// Adds a node and returns its results. The operation may be one of your own.
    ///
    /// # Panics
    /// When the operation's `infer` refuses the operands: the message has its reason, the scope and the operands' types.
    #[track_caller]
    pub fn add(&self, op: impl Op + 'static, inputs: &[&Tensor]) -> Vec<Tensor> {
        self.add_shared(Rc::new(op), inputs)
    }

    /// Adds a single-result node.
    #[track_caller]
    pub(crate) fn add_one(&self, op: impl Op + 'static, inputs: &[&Tensor]) -> Tensor {
        self.add(op, inputs).remove(0)
    }

    #[track_caller]
    pub(crate) fn add_shared(&self, op: Rc<dyn Op>, inputs: &[&Tensor]) -> Vec<Tensor> {
        let mut values = Vec::with_capacity(inputs.len());
        for tensor in inputs {
            values.push(self.localize(tensor).value); // not a closure: the place of the call would be lost
        }
        let inputs = values;
        let mut arena = self.0.borrow_mut();
        let input_types: Vec<TensorType> = inputs
            .iter()
            .map(|v| arena.value_type(*v).clone())
            .collect();
        let sized = |types: Vec<TensorType>| {
            types.iter().try_for_each(TensorType::check_size)?;
            Ok(types)
        };
        let types = match op.infer(&input_types).and_then(sized) {
            Ok(types) => types,
            Err(why) => {
                let shown: Vec<String> = input_types.iter().map(TensorType::to_string).collect();
                let (name, scope) = (op.name().to_owned(), arena.scope.clone());
                drop(arena);
                panic!(
                    "`{name}` in `{scope}`: {why} (operands: {})",
                    shown.join(", ")
                );
            }
        };
        let id = arena.nodes.len();
        let region = *arena.open.last().expect("the root region is always open");
        let scope = arena.scope.clone();
        let outputs = types.len();
        arena.nodes.push(Node {
            op,
            inputs,
            types,
            region,
            scope,
            location: Location::caller(),
        });
        arena.regions[region].nodes.push(id);
        drop(arena);
        (0..outputs)
            .map(|output| Tensor {
                graph: self.clone(),
                value: Value { node: id, output },
            })
            .collect()
    }
}

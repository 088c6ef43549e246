//! Bodies: how they are traced, what they capture, and how they are repeated where their derivative needs them.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::arena::{Graph, Node, NodeId, Region, RegionId, Value};
use crate::control::manual::ManualScope;
use crate::ops::identity::Recall;
use crate::ops::param::Param;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// A finished body: its region and the outer tensors that it captured, in the order of its capture parameters.
pub(crate) struct ClosedRegion {
    pub(crate) id: RegionId,
    pub(crate) captures: Vec<Tensor>,
}

impl Graph {
    /// The tensor as the current region sees it: itself, a repeated constant, or a capture.
    #[track_caller]
    pub(crate) fn localize(&self, tensor: &Tensor) -> Tensor {
        self.check_own(tensor);
        let current = self.current_region();
        let home = self.0.borrow().nodes[tensor.value.node].region;
        if home == current {
            return tensor.clone();
        }
        let op = self.0.borrow().nodes[tensor.value.node].op.clone();
        if op.is_leaf() {
            return self.add_shared(op, &[]).swap_remove(tensor.value.output);
        }
        let path = self.open_regions_below(home);
        let mut value = tensor.value;
        for region in path {
            value = self.capture(region, value);
        }
        Tensor {
            graph: self.clone(),
            value,
        }
    }

    /// Open regions strictly inside `home`, outermost first.
    #[track_caller]
    fn open_regions_below(&self, home: RegionId) -> Vec<RegionId> {
        let arena = self.0.borrow();
        match arena.open.iter().position(|r| *r == home) {
            Some(at) => arena.open[at + 1..].to_vec(),
            None => {
                drop(arena);
                panic!(
                    "a tensor of a loop body is used after the body was closed; return it from the body instead"
                )
            }
        }
    }

    fn capture(&self, region: RegionId, outer: Value) -> Value {
        let mut arena = self.0.borrow_mut();
        if let Some(node) = arena.regions[region].captured.get(&outer) {
            return Value {
                node: *node,
                output: 0,
            };
        }
        let ty = arena.value_type(outer).clone();
        let node = arena.nodes.len();
        let index = arena.regions[region].params.len();
        let (scope, location) = (arena.scope.clone(), arena.nodes[outer.node].location);
        arena.nodes.push(Node {
            op: Rc::new(Param {
                index,
                types: vec![ty.clone()],
            }),
            inputs: Vec::new(),
            types: vec![ty],
            region,
            scope,
            location,
        });
        let owner = &mut arena.regions[region];
        owner.params.push(node);
        owner.nodes.push(node);
        owner.captures.push((outer, node));
        owner.captured.insert(outer, node);
        Value { node, output: 0 }
    }

    /// Traces a body with declared parameters of the given types; its results are what the closure returns.
    #[track_caller]
    pub(crate) fn trace_region(
        &self,
        params: &[TensorType],
        body: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> ClosedRegion {
        let id = {
            let mut arena = self.0.borrow_mut();
            let id = arena.regions.len();
            arena.regions.push(Region::default());
            arena.open.push(id);
            id
        };
        let mut args = Vec::with_capacity(params.len());
        for (index, ty) in params.iter().enumerate() {
            let arg = self
                .add(
                    Param {
                        index,
                        types: vec![ty.clone()],
                    },
                    &[],
                )
                .remove(0);
            self.0.borrow_mut().regions[id].params.push(arg.value.node);
            args.push(arg);
        }
        self.0.borrow_mut().regions[id].declared = params.len();
        let results: Vec<Value> = body(&args).iter().map(|t| self.localize(t).value).collect();
        let mut arena = self.0.borrow_mut();
        arena.regions[id].results = results;
        let closed = arena.open.pop();
        debug_assert_eq!(
            closed,
            Some(id),
            "regions close in the order opposite to opening"
        );
        let captures = arena.regions[id]
            .captures
            .iter()
            .map(|(outer, _)| Tensor {
                graph: self.clone(),
                value: *outer,
            })
            .collect();
        ClosedRegion { id, captures }
    }

    /// The saved copy of a value that was computed again. Rules of differentiation see the copy too.
    #[track_caller]
    fn recall(&self, computed: &Tensor, saved: &Tensor) -> Tensor {
        let copy = self.add_one(Recall, &[computed, saved]);
        self.0
            .borrow_mut()
            .recalled
            .insert(computed.value, copy.value);
        copy
    }

    /// What to read for a value: its saved copy, if there is one.
    pub(crate) fn recalled(&self, value: Value) -> Value {
        *self.0.borrow().recalled.get(&value).unwrap_or(&value)
    }

    /// The values of tensors that must be of this program and outside of bodies.
    ///
    /// # Panics
    /// When one is of another program, or of a body that is closed.
    #[track_caller]
    pub(crate) fn own_values(&self, tensors: &[&Tensor]) -> Vec<Value> {
        for tensor in tensors {
            self.check_own(tensor);
            let home = self.0.borrow().nodes[tensor.value.node].region;
            assert!(
                home == 0,
                "a tensor of a body is used outside of it; return it from the body instead"
            );
        }
        tensors.iter().map(|t| t.value).collect()
    }

    #[track_caller]
    fn check_own(&self, tensor: &Tensor) {
        assert!(
            Rc::ptr_eq(&self.0, &tensor.graph.0),
            "a tensor of program `{}` is used in program `{}`",
            tensor.graph.name(),
            self.name()
        );
    }

    /// Types of the results of a closed region.
    pub(crate) fn result_types(&self, region: RegionId) -> Vec<TensorType> {
        let arena = self.0.borrow();
        let results = arena.regions[region].results.iter();
        results.map(|v| arena.value_type(*v).clone()).collect()
    }

    /// Says what is manual in the region that is being traced.
    pub(crate) fn open_manual_scope(&self, scope: ManualScope) {
        let region = self.current_region();
        self.0.borrow_mut().regions[region].manual = Some(scope);
    }

    /// Repeats a closed body in the current region, with `args` for its parameters (captures included).
    ///
    /// `recall` may replace a value of the body by a saved copy: later nodes then read the copy, while derivatives still
    /// flow through the node that computed it. Returns the results.
    #[track_caller]
    pub(crate) fn inline_region(
        &self,
        region: RegionId,
        args: &[Tensor],
        recall: &HashMap<Value, Tensor>,
    ) -> Vec<Tensor> {
        let (params, nodes, results) = {
            let arena = self.0.borrow();
            let r = &arena.regions[region];
            (r.params.clone(), r.nodes.clone(), r.results.clone())
        };
        assert_eq!(
            params.len(),
            args.len(),
            "a body is repeated with one argument per parameter"
        );
        let mut map: HashMap<Value, Tensor> = HashMap::new();
        for (node, arg) in params.iter().zip(args) {
            map.insert(
                Value {
                    node: *node,
                    output: 0,
                },
                self.localize(arg),
            );
        }
        let is_param: HashSet<NodeId> = params.into_iter().collect();
        for id in nodes.into_iter().filter(|id| !is_param.contains(id)) {
            let (op, inputs, scope) = {
                let arena = self.0.borrow();
                let node = &arena.nodes[id];
                (node.op.clone(), node.inputs.clone(), node.scope.clone())
            };
            let operands: Vec<Tensor> = inputs.iter().map(|v| map[v].clone()).collect();
            let before = std::mem::replace(&mut self.0.borrow_mut().scope, scope);
            let outputs = self.add_shared(op, &operands.iter().collect::<Vec<_>>());
            for (output, computed) in outputs.into_iter().enumerate() {
                let value = Value { node: id, output };
                let tensor = match recall.get(&value) {
                    Some(saved) => self.recall(&computed, saved),
                    None => computed,
                };
                map.insert(value, tensor);
            }
            self.0.borrow_mut().scope = before;
        }
        results.iter().map(|v| map[v].clone()).collect()
    }
}

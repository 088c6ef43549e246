//! Reverse-mode differentiation: one walk forward to see what depends on what, one walk back to gather cotangents.

use std::collections::{HashMap, HashSet};

use crate::arena::{Arena, Graph, RegionId, Value};
use crate::op::{Gradient, VjpContext};
use crate::tensor::Tensor;

impl Graph {
    /// Cotangents of `wrt` from cotangents of results: for each `(y, dy)` in `seeds`, `dy` has the type of `y`.
    ///
    /// A tensor of `wrt` that no `y` depends on gets zeros. Only floating-point tensors have cotangents.
    ///
    /// # Panics
    /// When a seed has another type than its result, when a path leads through an operation that refuses
    /// differentiation (the message gives its reason), or when a tensor of `wrt` is not floating-point.
    #[track_caller]
    pub fn vjp(&self, seeds: &[(&Tensor, &Tensor)], wrt: &[&Tensor]) -> Vec<Tensor> {
        let wrt: Vec<Tensor> = wrt.iter().map(|t| self.localize(t)).collect();
        for t in &wrt {
            assert!(
                t.dtype().is_float(),
                "only floating-point tensors have derivatives, not {}",
                t.ty()
            );
        }
        let sources: HashSet<Value> = wrt.iter().map(|t| t.value).collect();
        let active = self
            .0
            .borrow()
            .depending_on(self.current_region(), &sources);
        self.refuse_paths_outside(&sources, seeds);
        let mut cotangents: HashMap<Value, Tensor> = HashMap::new();
        for (y, dy) in seeds {
            assert_eq!(y.ty(), dy.ty(), "a cotangent has the type of its tensor");
            let y = self.localize(y);
            if active.contains(&y.value) {
                accumulate(&mut cotangents, y.value, (*dy).clone());
            }
        }
        let region = self.current_region();
        let nodes = self.0.borrow().regions[region].nodes.clone();
        for id in nodes.into_iter().rev() {
            let (op, inputs, outputs, scope, location) = {
                let arena = self.0.borrow();
                let node = &arena.nodes[id];
                (
                    node.op.clone(),
                    node.inputs.clone(),
                    node.types.len(),
                    node.scope.clone(),
                    node.location,
                )
            };
            let needs: Vec<bool> = inputs.iter().map(|v| active.contains(v)).collect();
            if !needs.contains(&true) {
                continue;
            }
            let values: Vec<Value> = (0..outputs)
                .map(|output| Value { node: id, output })
                .collect();
            let found: Vec<Option<Tensor>> =
                values.iter().map(|v| cotangents.get(v).cloned()).collect();
            if found.iter().all(Option::is_none) {
                continue;
            }
            let tensor = |value: &Value| Tensor {
                graph: self.clone(),
                value: *value,
            };
            let cx = VjpContext {
                graph: self.clone(),
                inputs: inputs.iter().map(tensor).collect(),
                outputs: values.iter().map(|v| tensor(&self.recalled(*v))).collect(),
                cotangents: found,
                needs: needs.clone(),
            };
            let gradient = self.scope_as(&scope, || op.vjp(&cx));
            match gradient {
                Gradient::Zero(_) => {}
                Gradient::Refused(why) => panic!(
                    "`{}` at {location} cannot be differentiated: {why}",
                    op.name()
                ),
                Gradient::Of(found) => {
                    assert_eq!(
                        found.len(),
                        inputs.len(),
                        "the rule of `{}` answers for every operand",
                        op.name()
                    );
                    for ((value, needed), cotangent) in inputs.iter().zip(needs).zip(found) {
                        let (true, Some(cotangent)) = (needed, cotangent) else {
                            continue;
                        };
                        assert_eq!(
                            cotangent.ty(),
                            tensor(value).ty(),
                            "the rule of `{}` returns the type of its operand",
                            op.name()
                        );
                        accumulate(&mut cotangents, *value, cotangent);
                    }
                }
            }
        }
        wrt.iter()
            .map(|t| {
                cotangents
                    .get(&t.value)
                    .cloned()
                    .unwrap_or_else(|| t.zeros_like())
            })
            .collect()
    }

    /// Derivatives of a scalar with respect to tensors.
    ///
    /// # Panics
    /// When `of` is not a floating-point scalar, and as [`Self::vjp`] does.
    #[track_caller]
    pub fn grad(&self, of: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
        assert_eq!(
            of.rank(),
            0,
            "the derivative is taken of a scalar, not of {}",
            of.ty()
        );
        self.vjp(&[(of, &of.ones_like())], wrt)
    }

    /// Inside of a body, refuses results that depend on a variable by way of values that were computed outside: those are
    /// captures, through which no cotangent flows.
    #[track_caller]
    fn refuse_paths_outside(&self, sources: &HashSet<Value>, seeds: &[(&Tensor, &Tensor)]) {
        let region = self.current_region();
        let results: Vec<Value> = seeds.iter().map(|(y, _)| self.localize(y).value).collect();
        let arena = self.0.borrow();
        let hidden = arena.captures_depending_on(region, sources);
        let reached = arena.depending_on(region, &hidden);
        if let Some(y) = results.iter().find(|y| reached.contains(y)) {
            let name = arena.nodes[y.node].op.name().to_owned();
            let outside = hidden.iter().min().map(|v| arena.nodes[v.node].location);
            let outside = outside.map(ToString::to_string).unwrap_or_default();
            drop(arena);
            panic!(
                "the derivative of `{name}` is taken inside of a body, but it depends on the variable by way of a value computed \
                 outside (at {outside}): compute that value inside of the body, or take the derivative outside"
            );
        }
    }

    /// Runs `f` in the scope of the node that is differentiated.
    fn scope_as<R>(&self, scope: &std::rc::Rc<str>, f: impl FnOnce() -> R) -> R {
        let before = self.0.borrow_mut().swap_scope(scope.clone());
        let result = f();
        self.0.borrow_mut().swap_scope(before);
        result
    }
}

impl Arena {
    /// Floating-point values of a region that depend on `sources`, these included.
    fn depending_on(&self, region: RegionId, sources: &HashSet<Value>) -> HashSet<Value> {
        let mut active = sources.clone();
        for id in &self.regions[region].nodes {
            let node = &self.nodes[*id];
            if !node.op.stops_gradient() && node.inputs.iter().any(|v| active.contains(v)) {
                let floats = node
                    .types
                    .iter()
                    .enumerate()
                    .filter(|(_, ty)| ty.dtype.is_float());
                active.extend(floats.map(|(output, _)| Value { node: *id, output }));
            }
        }
        active
    }

    /// Captures of a region whose outer values depend, outside, on those of the captures among `sources`.
    fn captures_depending_on(&self, region: RegionId, sources: &HashSet<Value>) -> HashSet<Value> {
        let captures = self.regions[region].captures();
        let outer: HashSet<Value> = captures
            .iter()
            .filter(|(_, inner)| sources.contains(inner))
            .map(|(outer, _)| *outer)
            .collect();
        let Some(home) = outer.iter().next().map(|v| self.nodes[v.node].region) else {
            return HashSet::new();
        };
        let mut from = self.captures_depending_on(home, &outer);
        from.extend(outer);
        let reached = self.depending_on(home, &from);
        let hidden = captures
            .iter()
            .filter(|(outer, inner)| reached.contains(outer) && !sources.contains(inner));
        hidden.map(|(_, inner)| *inner).collect()
    }
}

fn accumulate(cotangents: &mut HashMap<Value, Tensor>, value: Value, cotangent: Tensor) {
    let sum = match cotangents.remove(&value) {
        Some(before) => before + &cotangent,
        None => cotangent,
    };
    cotangents.insert(value, sum);
}

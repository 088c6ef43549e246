//! Which part of the traced program an instruction was made for.
//!
//! The compiler hands the locations of the text on, but a collective that it inserts may carry the name of an argument, or none. It
//! is then known by its neighbours: what a sum adds up, what a gathered array is for.

use std::collections::{HashMap, HashSet, VecDeque};

use super::proto::{Computation, Instruction, Module};

/// The names of a module's operations.
pub(super) struct Scopes<'a> {
    /// Names that only say which argument something was computed from.
    arguments: HashSet<&'a str>,
    /// Where each computation is called from.
    callers: HashMap<i64, (&'a Computation, &'a Instruction)>,
}

impl<'a> Scopes<'a> {
    pub(super) fn of(module: &'a Module) -> Scopes<'a> {
        let instructions = |c: &'a Computation| c.instructions.iter().map(move |i| (c, i));
        let arguments = module
            .computations
            .iter()
            .filter(|c| c.id == module.entry)
            .flat_map(|c| &c.instructions)
            .filter(|i| i.opcode == "parameter")
            .map(Instruction::op_name);
        let callers = module
            .computations
            .iter()
            .flat_map(instructions)
            .flat_map(|(c, i)| i.called.iter().map(move |&callee| (callee, (c, i))));
        Scopes {
            arguments: arguments.collect(),
            callers: callers.collect(),
        }
    }

    /// The instruction's own name, else that of the nearest neighbour that has one, else the same of whoever calls its computation.
    pub(super) fn find(
        &self,
        computation: &'a Computation,
        instruction: &'a Instruction,
    ) -> &'a str {
        let (mut computation, mut instruction) = (computation, instruction);
        let mut climbed = HashSet::new();
        loop {
            if let Some(name) = self.near(computation, instruction) {
                return name;
            }
            // No program calls itself; bytes that say so are not followed round and round.
            match self.callers.get(&computation.id) {
                Some(caller) if climbed.insert(computation.id) => {
                    (computation, instruction) = *caller
                }
                _ => return "",
            }
        }
    }

    fn near(&self, computation: &'a Computation, instruction: &'a Instruction) -> Option<&'a str> {
        if let Some(name) = self.name(instruction) {
            return Some(name);
        }
        let mut after: HashMap<i64, Vec<i64>> = HashMap::new();
        let mut before: HashMap<i64, Vec<i64>> = HashMap::new();
        for other in &computation.instructions {
            before.insert(other.id, other.operands.clone());
            for &operand in &other.operands {
                after.entry(operand).or_default().push(other.id);
            }
        }
        let sums = instruction.opcode.contains("reduce");
        let ways = if sums {
            [before, after]
        } else {
            [after, before]
        };
        ways.iter()
            .find_map(|way| self.walk(computation, instruction.id, way))
    }

    /// The name of the nearest named instruction on the ways from one.
    fn walk(
        &self,
        computation: &'a Computation,
        start: i64,
        way: &HashMap<i64, Vec<i64>>,
    ) -> Option<&'a str> {
        let by_id: HashMap<i64, &Instruction> =
            computation.instructions.iter().map(|i| (i.id, i)).collect();
        let mut seen = HashSet::from([start]);
        let mut waiting = VecDeque::from([start]);
        while let Some(id) = waiting.pop_front() {
            for &next in way.get(&id).into_iter().flatten() {
                if let Some(name) = by_id.get(&next).and_then(|i| self.name(i)) {
                    return Some(name);
                }
                if seen.insert(next) {
                    waiting.push_back(next);
                }
            }
        }
        None
    }

    fn name(&self, instruction: &'a Instruction) -> Option<&'a str> {
        let name = instruction.op_name();
        (!name.is_empty() && !self.arguments.contains(name)).then_some(name)
    }
}

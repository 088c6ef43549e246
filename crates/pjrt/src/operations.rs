//! What a compiler has made of a program: its operations by name, and what its devices send to each other.

mod proto;
mod scope;

use std::collections::{BTreeMap, HashMap};

use prost::Message;

use proto::{Computation, Instruction, ModuleWithConfig};
use scope::Scopes;

/// The operations of a compiled program, as it runs on one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operations {
    /// How often each of XLA's opcodes (`dot`, `fusion`, `all-reduce-start`) stands in the program, the insides of loops, branches
    /// and fusions included. The body of a loop counts once, however often it runs.
    pub counts: BTreeMap<String, usize>,
    /// What devices send to each other, in the order of the compiled program.
    pub collectives: Vec<Collective>,
}

/// One exchange of arrays between the devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// XLA's opcode, such as `all-gather`. One that is started first and waited for later counts once, without `-start`.
    pub kind: String,
    /// Size of its result on one device, in bytes.
    pub bytes: u64,
    /// The location that the module's text gives to the operation it was made for. Where the compiler gives it none, that of the
    /// nearest operation that it is for, or that it sums up; empty where none has one.
    pub scope: String,
    /// Whether it stands inside of a loop.
    pub in_loop: bool,
}

const KINDS: [&str; 7] = [
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
];

impl Operations {
    /// How often an opcode stands in the program.
    #[must_use]
    pub fn count(&self, opcode: &str) -> usize {
        self.counts.get(opcode).copied().unwrap_or(0)
    }

    /// From the bytes of an `HloModuleProtoWithConfig`.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Operations, prost::DecodeError> {
        let module = ModuleWithConfig::decode(bytes)?.module.unwrap_or_default();
        let scopes = Scopes::of(&module);
        let in_loop = loops(&module.computations, module.entry);
        let mut operations = Operations::default();
        for computation in &module.computations {
            let in_loop = in_loop.get(&computation.id).copied().unwrap_or(false);
            for instruction in &computation.instructions {
                let opcode = instruction.opcode.clone();
                *operations.counts.entry(opcode).or_default() += 1;
                if let Some((kind, bytes)) = collective(instruction) {
                    operations.collectives.push(Collective {
                        kind: kind.to_owned(),
                        bytes,
                        scope: scopes.find(computation, instruction).to_owned(),
                        in_loop,
                    });
                }
            }
        }
        Ok(operations)
    }
}

/// The computations that are reached from the entry, and whether on a way through a loop.
fn loops(computations: &[Computation], entry: i64) -> HashMap<i64, bool> {
    let by_id: HashMap<i64, &Computation> = computations.iter().map(|c| (c.id, c)).collect();
    let mut reached = HashMap::new();
    let mut waiting = vec![(entry, false)];
    while let Some((id, in_loop)) = waiting.pop() {
        // Come back to what is known already only to say that it is in a loop after all.
        if reached.get(&id).is_some_and(|&known| known || !in_loop) {
            continue;
        }
        reached.insert(id, in_loop);
        for instruction in by_id.get(&id).into_iter().flat_map(|c| &c.instructions) {
            let inside = in_loop || instruction.opcode == "while";
            waiting.extend(instruction.called.iter().map(|&callee| (callee, inside)));
        }
    }
    reached
}

/// Kind, and bytes of the result.
fn collective(instruction: &Instruction) -> Option<(&str, u64)> {
    let opcode = instruction.opcode.as_str();
    let started = opcode.strip_suffix("-start");
    let kind = started.unwrap_or(opcode);
    if !KINDS.contains(&kind) {
        return None;
    }
    let shape = instruction.shape.as_ref()?;
    // These return what they were given beside what will come; an all-reduce that is started is the result itself.
    let with_operands = started.is_some() && matches!(kind, "all-gather" | "collective-permute");
    let result = match shape.parts.get(1) {
        Some(result) if with_operands => result,
        _ => shape,
    };
    Some((kind, result.bytes()))
}

#[cfg(test)]
mod tests;

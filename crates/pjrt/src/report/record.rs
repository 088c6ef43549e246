//! A report as bytes, for the compile cache: little-endian numbers in a fixed order.

use super::{Report, ResultType};
use crate::{Collective, CostAnalysis, MemoryStats, Operations};

/// First bytes of a record; the number changes with the format.
const MAGIC: &[u8; 8] = b"report-3";

impl Report {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut word = |n: u64| bytes.extend(n.to_le_bytes());
        word(self.results.len() as u64);
        for result in &self.results {
            word(result.dtype as u64);
            word(result.dims.len() as u64);
            result.dims.iter().for_each(|&dim| word(dim as u64));
        }
        memory_words(self.memory).into_iter().for_each(&mut word);
        word(u64::from(self.cost.is_some()));
        if let Some(cost) = self.cost {
            let numbers = [
                cost.flops,
                cost.bytes_accessed,
                cost.transcendentals,
                cost.optimal_seconds,
            ];
            numbers.into_iter().for_each(|x| word(x.to_bits()));
        }
        word(u64::from(self.operations.is_some()));
        if let Some(operations) = &self.operations {
            operations_words(operations, &mut word);
        }
        bytes
    }

    /// `None` when these are not the bytes of one whole record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Report> {
        let (words, []) = bytes.strip_prefix(MAGIC)?.as_chunks::<8>() else {
            return None;
        };
        let mut words = words.iter().map(|&word| u64::from_le_bytes(word));
        let mut results = Vec::new();
        for _ in 0..words.next()? {
            let dtype = i32::try_from(words.next()?).ok()?;
            let mut dims = Vec::new();
            for _ in 0..words.next()? {
                dims.push(i64::try_from(words.next()?).ok()?);
            }
            results.push(ResultType { dtype, dims });
        }
        let memory = memory_of(&mut words)?;
        let mut number = || words.next().map(f64::from_bits);
        let cost = match number()?.to_bits() {
            0 => None,
            _ => Some(CostAnalysis {
                flops: number()?,
                bytes_accessed: number()?,
                transcendentals: number()?,
                optimal_seconds: number()?,
            }),
        };
        let operations = match words.next()? {
            0 => None,
            _ => Some(operations_of(&mut words)?),
        };
        words.next().is_none().then_some(Report {
            results,
            memory,
            cost,
            operations,
        })
    }
}

fn memory_words(memory: MemoryStats) -> [u64; 11] {
    [
        memory.argument,
        memory.output,
        memory.alias,
        memory.temp,
        memory.generated_code,
        memory.host_argument,
        memory.host_output,
        memory.host_alias,
        memory.host_temp,
        memory.host_generated_code,
        memory.peak,
    ]
}

fn memory_of(words: &mut impl Iterator<Item = u64>) -> Option<MemoryStats> {
    // Struct expressions are evaluated in the order in which they are written.
    Some(MemoryStats {
        argument: words.next()?,
        output: words.next()?,
        alias: words.next()?,
        temp: words.next()?,
        generated_code: words.next()?,
        host_argument: words.next()?,
        host_output: words.next()?,
        host_alias: words.next()?,
        host_temp: words.next()?,
        host_generated_code: words.next()?,
        peak: words.next()?,
    })
}

fn operations_words(operations: &Operations, word: &mut impl FnMut(u64)) {
    word(operations.counts.len() as u64);
    for (opcode, &count) in &operations.counts {
        text_words(opcode, word);
        word(count as u64);
    }
    word(operations.collectives.len() as u64);
    for collective in &operations.collectives {
        text_words(&collective.kind, word);
        word(collective.bytes);
        text_words(&collective.scope, word);
        word(u64::from(collective.in_loop));
    }
}

fn operations_of(words: &mut impl Iterator<Item = u64>) -> Option<Operations> {
    let mut operations = Operations::default();
    for _ in 0..words.next()? {
        let opcode = text_of(words)?;
        let count = usize::try_from(words.next()?).ok()?;
        operations.counts.insert(opcode, count);
    }
    for _ in 0..words.next()? {
        operations.collectives.push(Collective {
            kind: text_of(words)?,
            bytes: words.next()?,
            scope: text_of(words)?,
            in_loop: words.next()? != 0,
        });
    }
    Some(operations)
}

/// The length in bytes, then the bytes, filled up with zeros to whole words.
fn text_words(text: &str, word: &mut impl FnMut(u64)) {
    word(text.len() as u64);
    for chunk in text.as_bytes().chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        word(u64::from_le_bytes(bytes));
    }
}

fn text_of(words: &mut impl Iterator<Item = u64>) -> Option<String> {
    let len = usize::try_from(words.next()?).ok()?;
    let mut bytes = Vec::new();
    for _ in 0..len.div_ceil(8) {
        bytes.extend(words.next()?.to_le_bytes());
    }
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::{super::ResultType, Report, memory_of};
    use crate::{Collective, CostAnalysis, Operations};

    fn operations() -> Operations {
        let collective = |kind: &str, bytes, scope: &str, in_loop| Collective {
            kind: kind.to_owned(),
            bytes,
            scope: scope.to_owned(),
            in_loop,
        };
        let counts = [("dot", 3), ("all-reduce", 1), ("fusion-8", 1 << 33)];
        Operations {
            counts: counts.map(|(opcode, n)| (opcode.to_owned(), n)).into(),
            collectives: vec![
                collective("all-reduce", 1 << 35, "layers/ättn/q_proj", true),
                collective("all-gather", 7, "", false),
            ],
        }
    }

    fn report(cost: bool, shown: bool) -> Report {
        Report {
            results: vec![
                ResultType {
                    dtype: 11,
                    dims: vec![3, 1 << 40],
                },
                ResultType {
                    dtype: 1,
                    dims: vec![],
                },
            ],
            // All different, so that two that change places are noticed.
            memory: memory_of(&mut (100..)).expect("enough"),
            cost: cost.then_some(CostAnalysis {
                flops: 1.5,
                bytes_accessed: 2.0,
                transcendentals: 0.0,
                optimal_seconds: -3.25,
            }),
            operations: shown.then(operations),
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_and_a_part_of_one_not_at_all() {
        for (cost, shown) in [(false, false), (true, false), (false, true), (true, true)] {
            let report = report(cost, shown);
            let bytes = report.encode();
            assert_eq!(Report::decode(&bytes), Some(report));
            for len in 0..bytes.len() {
                assert_eq!(Report::decode(&bytes[..len]), None, "{len}");
            }
            assert_eq!(Report::decode(&[&bytes[..], &[0; 8]].concat()), None);
            let mut other = bytes;
            other[7] += 1;
            assert_eq!(Report::decode(&other), None);
        }
    }
}

#!/usr/bin/env python3
"""Breaks the reading of configurations and the reading and writing of weights, one place at a time, and counts what is found.

    tools/mutate_models.py [--only WORD] [--every N] [--list]

Each copy is one named fault from the list below: rows of the wrong head, experts exchanged, a formula's term left out, a
stale file left behind. Survivors are listed: each needs a test.
"""

import mutants

SOURCES = "crates/models/src/"
TEST = ["cargo", "test", "-q", "-p", "ferrotune-models"]
BUILD = [*TEST, "--lib", "--test", "load_memory", "--no-run"]
# Not the tests of the decoder, which compile programs.
TESTS = [
    [*TEST, "--lib", "config"],
    [*TEST, "--lib", "files"],
    [*TEST, "--test", "load_memory"],
]

# Name of the fault, file, what stands there, what the broken copy has instead.
FAULTS = [
    # Layers and stacks.
    ("delta layers by the wrong period", "config/layers.rs", "!(layer + 1).is_multiple_of(period)", "!layer.is_multiple_of(period)"),
    ("interval ignored", "config/layers.rs", 'fields.size("full_attention_interval").unwrap_or(4)', "4"),
    ("experts by the wrong step", "config/layers.rs", "!(layer + 1).is_multiple_of(step)", "!layer.is_multiple_of(step)"),
    ("list of dense layers ignored", "config/layers.rs", "dense.contains(&(layer as u64)) || ", ""),
    ("length of layer_types not checked", "config/layers.rs", "Some(mixers) if mixers.len() != count => {", "Some(mixers) if mixers.is_empty() => {"),
    ("last layers counted as whole blocks", "config/layers.rs", "let traced = first + length + rest.len() % length;", "let traced = first + length;"),
    ("leading layers not looked for", "config/layers.rs", "for first in 0..total.min(LONGEST) {", "for first in 0..total.min(1) {"),
    ("layers of a place side by side", "config/layers.rs", "first + repeat * step", "first + repeat"),
    ("first layer of a stack forgotten", "config/layers.rs", "(self.first + place, self.block.len())", "(place, self.block.len())"),
    # Settings.
    ("key/value heads of null are the family's", "config.rs", 'fields.has("num_key_value_heads")', 'fields.get("num_key_value_heads").is_some()'),
    ("the whole model does not tie", "config.rs", 'config.tie_word_embeddings = outer.flag("tie_word_embeddings");', ""),
    ("the whole model may be quantised", "config.rs", "            refuse_quantised(&mut outer);\n", ""),
    ("the text part keeps its number type", "config.rs", "            rename(inner);\n", "            let _ = inner;\n"),
    ("a null gets a number type", "config.rs", "!old.is_null() && old.as_str()", "old.as_str()"),
    ("biases where there are none", "config.rs", "!family.always_has_bias() && fields", "fields"),
    ("top_k above the number of experts", "config/parts.rs", "            top_k > count,", "            top_k > count + 1,"),
    ("second name of experts ignored", "config/parts.rs", 'let named = names.map(|key| fields.size(key));', 'let named = names.map(|_| fields.size(names[0]));'),
    ("weights of experts never add up to one", "config/parts.rs", "Family::Qwen35Moe => true,", "Family::Qwen35Moe => false,"),
    ("channels without values", "config/parts.rs", "2 * self.keys() + self.values()", "3 * self.keys()"),
    # Rotary.
    ("yarn: fast and slow exchanged", "config/rope.rs", "(number(fast), number(slow))", "(number(slow), number(fast))"),
    ("yarn: always truncated", "config/rope.rs", "if truncate {", "if truncate || factor > 0.0 {"),
    ("yarn: rounded inwards", "config/rope.rs", "(begin.floor(), end.ceil())", "(begin.ceil(), end.floor())"),
    ("yarn: the ramp ends anywhere", "config/rope.rs", "end.min(dims - 1.0)", "end"),
    ("yarn: scales exchanged", "config/rope/read.rs", "magnitude(one) / magnitude(all)", "magnitude(all) / magnitude(one)"),
    ("yarn: small factors shrink", "config/rope/read.rs", "if factor <= 1.0 {", "if factor <= 0.0 {"),
    ("yarn: attention factor ignored", "config/rope/read.rs", "told.unwrap_or_else(", "told.filter(|_| false).unwrap_or_else("),
    ("yarn: factor from the lengths ignored", "config/rope/read.rs", "n as f64 / original)", "n as f64 / (2.0 * original))"),
    ("longrope: long factors", "config/rope/read.rs", 'short: self.factors("short_factor"', 'short: self.factors("long_factor"'),
    ("longrope: multiplied", "config/rope.rs", "frequency / short[i]", "frequency * short[i]"),
    ("longrope: attention not rooted", "config/rope/read.rs", "/ original.ln()).sqrt()", "/ original.ln())"),
    ("longrope: small factors shrink", "config/rope/read.rs", "self.factor(original).max(1.0)", "self.factor(original)"),
    ("longrope: as many factors as one likes", "config/rope/read.rs", "it.len() == frequencies", "it.len() <= 99 * frequencies"),
    ("longrope: texts of any length", "config.rs", "told.into_iter().chain(first)", "told.into_iter().chain(first.filter(|_| told.is_none()))"),
    ("all experts share the first one's adapters", "adapter.rs", "leading: host.leading,", "leading: host.leading.min(1),"),
    ("experts without a word", "adapter.rs", "experts && entry.leading == 2", "entry.leading == 2"),
    ("experts of a file not seen", "files/adapter.rs", 'name.contains(".mlp.experts.")', 'name.contains(".experts.mlp.")'),
    ("llama3: kept and divided exchanged", "config/rope.rs", "frequency * (kept + (1.0 - kept) / factor)", "frequency * (1.0 - kept + kept / factor)"),
    ("llama3: ramp from high to low", "config/rope.rs", "(turns - low) / (high - low)", "(turns - high) / (low - high)"),
    ("linear: multiplied", "config/rope.rs", "frequency / factor,\n            RotaryScaling::Llama3", "frequency * factor,\n            RotaryScaling::Llama3"),
    ("original length: the object first", "config/rope/read.rs", "match top.or(inner)", "match inner.or(top)"),
    ("original length: never the longest", "config/rope/read.rs", ".or(longest.map(|n| n as f64))", ".or(longest.map(|_| 1.0))"),
    ("part at the top ignored", "config/rope/read.rs", "nested.or(top).unwrap_or(family", "nested.unwrap_or(family"),
    ("frequencies of the whole head", "config/rope.rs", "-2.0 * i as f64 / self.dims as f64", "-1.0 * i as f64 / self.dims as f64"),
    ("frequencies may be infinite", "config/rope/read.rs", "ends.iter().all(|f| f.is_finite())", "ends.iter().all(|f| *f >= 0.0)"),
    # Names and packing.
    ("up is gate where both are one tensor", "layout/table.rs", 'self.expert("up_proj", count, d, f, width)', 'self.expert("up_proj", count, d, f, 0)'),
    ("gate and up interleaved", "layout/table.rs", "let begin = expert * height + offset;", "let begin = expert * to.0 + offset;"),
    ("experts before layers", "layout/table.rs", ".flat_map(|layer| (0..count).map(move |expert| piece(layer, expert)));", ".flat_map(|layer| (0..count).rev().map(move |expert| piece(layer, expert)));"),
    ("queries and keys of a head exchanged", "layout/delta.rs", "[(0, key), (key, key), (2 * key, value)]", "[(key, key), (0, key), (2 * key, value)]"),
    ("z in the place of v", "layout/delta.rs", "self.runs(self.qkvz_height(), 2 * self.sizes.key_dim + value, value)", "self.runs(self.qkvz_height(), 2 * self.sizes.key_dim, value)"),
    ("a in the place of b", "layout/delta.rs", 'd, (per_head, ba(0)), both, 2 * n),', 'd, (per_head, ba(r)), both, 2 * n),'),
    ("packed projections not by head", "layout/delta.rs", "head * height + offset)", "head * length + offset)"),
    ("decay and bias exchanged", "layout/delta.rs", '"linear_attn.A_log", DECAYS', '"linear_attn.dt_bias", DECAYS'),
    ("taps not turned", "layout/table.rs", "self.entry(path, &sides, name, dims, one_run(whole), true)", "self.entry(path, &sides, name, dims, one_run(whole), false)"),
    ("one gate for query and gate", "layout.rs", "let gates = if config.family.is_hybrid() { 2 } else { 1 };", "let gates = 1;"),
    ("active parameters are all", "layout.rs", "values(spec) / sizes.count as u64 * sizes.top_k as u64", "values(spec)"),
    ("no shared expert", "layout.rs", "if let Some(width) = sizes.shared {", "if let Some(width) = sizes.shared.filter(|w| *w == 0) {"),
    ("head without its prefix", "layout/naming.rs", '("language_model.model.", "language_model.")', '("language_model.model.", "")'),
    ("prefix forgotten", "layout/naming.rs", '("model.language_model.", "")', '("model.language.", "")'),
    ("packing by another part's experts", "layout/naming.rs", "name.starts_with(&layers) && name.ends_with", "name.ends_with"),
    ("other parts are a part of the model", "layout/naming.rs", '    "mtp.",\n', '    "mtps.",\n'),
    ("names that look like other parts", "layout/naming.rs", 'name.starts_with(part))', 'name.contains(part))'),
    # Reading.
    ("rows of a run from the first", "files/element.rs", "let range = rows.start * row_bytes..rows.end * row_bytes;", "let range = (rows.start - rows.start % BAND) * row_bytes..(rows.start - rows.start % BAND + rows.len()) * row_bytes;"),
    ("columns of a run over the first", "files/element.rs", "scatter_columns(&band, columns, &mut out[done..], height);", "scatter_columns(&band, columns, out, height);"),
    ("pages never let go of", "files/load.rs", "if held.len() >= WINDOW {", "if held.len() > usize::MAX - 1 {"),
    ("pages of the whole tensor kept", "files/mapped.rs", "let begin = file.data_start + info.data_offsets.0 + bytes.start;", "let begin = bytes.start;"),
    ("place on disk in the tree's order", "files/load.rs", "(offset % height, offset / height)", "(offset / columns, offset % columns)"),
    ("place in the piece, not the tensor", "files/load.rs", "piece.disk_row(row) * columns", "row * columns"),
    ("tied heads are not compared", "files/load.rs", "if !tensors.same(", "if false && !tensors.same("),
    ("tied heads are compared at the front", "files/mapped.rs", "chunks.enumerate().all(same_chunk)", "chunks.take(0).enumerate().all(same_chunk)"),
    ("shapes are not compared", "files/load.rs", "if info.shape != expected {", "if info.shape.len() != expected.len() {"),
    ("other parts are not told of", "files/load.rs", "unused.push(name.to_owned());", "let _ = &mut unused;"),
    ("not finite values let through", "files/element.rs", "values.position(|v| !v.is_finite())?", "values.position(|v| v.is_nan())?"),
    # Writing.
    ("other parts are lost", "files/save.rs", "        outputs.carry(old);\n", "        let _ = old;\n"),
    ("tied heads are lost", "files/stream.rs", "source.is_some_and(|it| it.info(&head).is_some())", "source.is_some_and(|it| it.info(&head).is_none())"),
    ("packing of the source forgotten", "files/stream.rs", "source.map(|it| Naming::of(it.names())).unwrap_or_default()", "source.map(|_| Naming::default()).unwrap_or_default()"),
    ("gradients apart", "files/stream.rs", "config.entries(&Naming::in_memory())", "config.entries(&Naming::default())"),
    ("rows written one after another", "files/element.rs", "gather_columns(&values[done..], height, columns, &mut turned);", "gather_columns(values, height, columns, &mut turned);"),
    ("every tensor at the place of the first", "files/write.rs", "at += output.size() as u64;", "at += 0 * output.size() as u64;"),
    ("index left in place while files are written", "files/write.rs", "            remove(&index)?;\n            parts.into_iter()", "            parts.into_iter()"),
    ("single file removed too early", "files/write.rs", "            remove(&index)?;\n            parts.into_iter()", "            remove(&index)?;\n            remove(&single)?;\n            parts.into_iter()"),
    ("single file left in place", "files/write.rs", "            remove(&single)?;\n            self.write_index", "            self.write_index"),
    ("index left beside a single file", "files/write.rs", "            self.write_file(&single, feed)?;\n            remove(&index)?;", "            self.write_file(&single, feed)?;"),
    ("index removed before the single file is there", "files/write.rs", "            self.write_file(&single, feed)?;\n            remove(&index)?;", "            remove(&index)?;\n            self.write_file(&single, feed)?;"),
    ("stale files left", "files/write.rs", "!files.contains_key(file.as_str()) && is_weights(file)", "files.is_empty() && is_weights(file)"),
    ("everything that an index names removed", "files/write.rs", "!files.contains_key(file.as_str()) && is_weights(file)", "!files.contains_key(file.as_str())"),
    ("unknown tensors to a single file", "files/write.rs", "known.or(first).unwrap_or(SINGLE_FILE)", "known.or(first.filter(|_| false)).unwrap_or(SINGLE_FILE)"),
    ("total size of one tensor", "files/write.rs", "self.tensors.values().map(Output::size).sum();", "self.tensors.values().take(1).map(Output::size).sum();"),
]

mutants.main(
    __doc__,
    [mutants.replaced(what, SOURCES + file, before, after) for what, file, before, after in FAULTS],
    BUILD,
    TESTS,
)

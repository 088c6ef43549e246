#!/usr/bin/env python3
"""Breaks the training engine, one place at a time, and counts what its tests find.

    tools/mutate_engine.py [--only WORD] [--every N] [--list]

Each copy is one named fault from the list below: a sum that is not added to, a state that is not given away, a formula's term
left out, a check of a checkpoint that is not made. Survivors are listed: each needs a test.
"""

import mutants

SOURCES = "crates/engine/src/"
TEST = ["cargo", "test", "-q", "-p", "ferrotune-engine"]
BUILD = [*TEST, "--lib", "--test", "engine", "--no-run"]
TESTS = [
    [*TEST, "--lib"],
    [*TEST, "--test", "engine", "--", "optimizer", "checkpoints", "evaluation", "structure", "accumulation", "trains", "denominators", "resuming", "shapes", "waiting", "norms", "export", "fp8", "whole_step", "offload", "filters"],
]

# Name of the fault, file, what stands there, what the broken copy has instead.
FAULTS = [
    # Accumulation.
    ("accumulate without adding", "step/gradient.rs", "zip(&self.gradients).map(|(a, b)| a + b)", "zip(&self.gradients).map(|(_, b)| b.clone())"),
    ("accumulate the mean", "step/gradient.rs", "zip(&self.gradients).map(|(a, b)| a + b)", "zip(&self.gradients).map(|(a, b)| (a + b) * 0.5)"),
    ("metrics of the last micro-batch alone", "step/gradient.rs", "m.combine.apply(before, &m.value)", "{ let _ = before; m.value.clone() }"),
    ("accumulators not donated", "step/gradient.rs", "builder.output_replacing(site.accumulators, &gradients, &sums);", "builder.output(site.accumulators, &gradients);"),
    ("moments not donated", "step/update.rs", "builder.output_replacing(site.state, &new.state, &self.moments);", "builder.output(site.state, &new.state);"),
    ("parameters not donated", "step/update.rs", "builder.output_replacing(site.params, &new.params, &self.params);", "builder.output(site.params, &new.params);"),
    ("mixed losses are accumulated", "engine.rs", "filter(|a| a.loss != loss.name)", "filter(|_| false)"),
    ("abandon forgets nothing", "engine.rs", "    pub fn abandon(&mut self) {\n        self.accumulation = None;", "    pub fn abandon(&mut self) {"),
    ("steps are not counted", "engine/train.rs", "self.step += 1;", ""),
    # Whole steps.
    ("the first micro-batch alone", "step/gradient.rs", "so_far[so_far.len() - 1].lt(count)", "so_far[so_far.len() - 1].lt(&(count - 1.0))"),
    ("all places are walked through", "step/gradient.rs", "so_far[so_far.len() - 1].lt(count)", "{ let _ = count; so_far[so_far.len() - 1].lt(&count.scalar_like(rows[0].dim(0) as f64)) }"),
    ("one micro-batch twice", "step/gradient.rs", "&at(rows, place));", "&at(rows, &(place - 1.0)));"),
    ("histories of the first micro-batch", "step/gradient.rs", "let weights = Weights { scaling, ..weights };", "let _ = scaling;"),
    ("a program that is too small", "engine/train.rs", "range(key(count)..=key(usize::MAX))", "range(key(1)..=key(usize::MAX))"),
    ("a program for every number", "engine/train.rs", "range(key(count)..=key(usize::MAX))", "range(key(count)..=key(count))"),
    ("rows of another shape join a step", "engine/train.rs", "others.any(|it| shape(it) != (rows, width))", "others.all(|it| shape(it) != (rows, width))"),
    ("a step joins an accumulation", "engine/train.rs", "if self.accumulation.is_some() {", "if self.accumulation.is_none() && loss.name.is_empty() {"),
    # Offload.
    ("moments stay on the device", "engine.rs", "        let state = state.moved_to(self.config.offload.rest())?;\n", ""),
    ("moments begin on the device", "engine.rs", "Some(zeros(client, &state_layout)?.moved_to(config.offload.rest())?)", "Some(zeros(client, &state_layout)?)"),
    ("moments are restored to the device", "engine/saving.rs", "\"optimizer\" => group.moved_to", "\"moments\" => group.moved_to"),
    ("moments are not brought in", "engine.rs", "        let state = state.moved_to(Memory::Device)?;\n", ""),
    ("offloaded steps are whole", "engine/train.rs", "if self.config.offload != Offload::Nothing || others", "if others"),
    ("offloaded bytes are counted", "engine/state.rs", "it.memory() == Memory::Device", "it.memory() == Memory::Device || !it.is_empty()"),
    # The gate.
    ("norm is not rooted", "optimizer/gate.rs", "let grad_norm = total.sqrt();", "let grad_norm = total;"),
    ("clip by the wrong quotient", "optimizer/gate.rs", "&(&limit / &grad_norm)", "&(&grad_norm / &limit)"),
    ("small gradients are scaled up", "optimizer/gate.rs", ".gt(&limit)", ".gt(&grad_norm.scalar_like(-1.0))"),
    ("gradients that are not finite are learned from", "optimizer/gate.rs", "let mut accepts = finite.clone();", "let mut accepts = finite.or(&finite.not());"),
    ("spikes are learned from", "optimizer/gate.rs", "accepts = accepts.and(&spike.not());", ""),
    ("a window that is not full judges", "optimizer/gate.rs", "finite.and(&full).and(&high)", "{ let _ = &full; finite.and(&high) }"),
    ("spikes are judged by the least norm", "optimizer/gate.rs", "value(guard.window / 2)", "value(0)"),
    ("zeros enter the window", "optimizer/gate.rs", "finite.and(&grad_norm.gt(&zero))", "finite.clone()"),
    ("the window never moves", "optimizer/gate.rs", "counts.select(&moved, window)", "counts.select(window, window)"),
    ("the clip is not applied", "optimizer/mod.rs", "&gradients[place] * &gate.scale", "&gradients[place] * 1.0"),
    # Rules.
    ("decay on norms", "optimizer/mod.rs", "rank > 1 + usize::from(path.contains('/'))", "rank > 0 || path.is_empty()"),
    ("no decay", "optimizer/mod.rs", "optimizer.weight_decay != 0.0 &&", "optimizer.weight_decay < 0.0 &&"),
    ("a skipped update counts for the bias", "optimizer/mod.rs", "count + gate.accepts.convert(DType::S32)", "count + 1.0"),
    ("bias correction a step late", "optimizer/mod.rs", "(count + 1.0).convert", "(count + 2.0).convert"),
    ("moments exchanged", "optimizer/adamw.rs", "vec![m, v]", "vec![v, m]"),
    ("gradient not squared", "optimizer/adamw.rs", "gradient.square() * (1.0", "gradient * (1.0"),
    ("eps under the root", "optimizer/adamw.rs", "m / (v.sqrt() + self.eps)", "m / (v + self.eps).sqrt()"),
    ("half-width second moments to the nearest", "optimizer/adamw.rs", "vec![m.convert(self.moments), rounded_by_chance(&v, at)]", "vec![m.convert(self.moments), { let _ = rounded_by_chance; let _ = at; v.convert(self.moments) }]"),
    ("momentum averaged", "optimizer/sgd.rs", "self.momentum + gradient]", "self.momentum + gradient * (1.0 - self.momentum)]"),
    ("Nesterov forgets the gradient", "optimizer/sgd.rs", "gradient + &kept[0] * self.momentum", "&kept[0] * (1.0 + self.momentum)"),
    ("Muon: four iterations", "optimizer/muon.rs", "const ITERATIONS: usize = 5;", "const ITERATIONS: usize = 4;"),
    ("Muon: not turned back", "optimizer/muon.rs", "turn(&x).reshape(&dims)", "x.reshape(&dims)"),
    ("Muon: the shorter side", "optimizer/muon.rs", ".max(ahead.dim(rank - 1))", ".min(ahead.dim(rank - 1))"),
    ("Muon for embeddings", "optimizer/muon.rs", "name.contains('/') && is_matrix", "is_matrix"),
    # Schedules.
    ("schedule off by one", "schedule.rs", "self.peak * (step + 1) as f64", "self.peak * step as f64"),
    ("late decay off by one", "schedule.rs", "(step + 1 + decay_steps)", "(step + decay_steps)"),
    ("the last step is one before", "schedule.rs", "match after.saturating_sub(1) {", "match after {"),
    # Shapes, waits, norms of groups.
    ("a shape is not remembered", "engine/shapes.rs", "!self.seen.contains(it)", "self.seen.contains(it)"),
    ("one shape more than the limit", "engine/shapes.rs", "self.seen.len() < self.limit", "self.seen.len() <= self.limit"),
    ("scores of any shape", "engine/reading.rs", "([key.0, key.1], Instant::now());\n            self.shapes.check(shape)?;", "([key.0, key.1], Instant::now());"),
    ("another micro-batch is said to be awaited", "engine.rs", "self.micro_batches += 1;", "self.micro_batches += 2;"),
    ("a group's norm of another parameter", "optimizer/gate.rs", "places.iter().map(|i| &squares[*i])", "places.iter().map(|_| &squares[0])"),
    ("a group's norm is not rooted", "optimizer/gate.rs", "group_norms.map(|it| it.sqrt())", "group_norms.map(|it| it)"),
    # Histories of 8-bit products.
    ("histories never move", "engine.rs", "        self.scaling = scaling;\n", "        drop(scaling);\n"),
    ("histories are counted in the norm", "step/gradient.rs", "let scaling = gradients.split_off(weights.params.len());", "let scaling = gradients.split_off(weights.params.len()); gradients[0] = &gradients[0] + scaling.iter().map(|s| s.sum_all()).reduce(|a, b| a + b).unwrap_or_else(|| gradients[0].scalar_like(0.0));"),
    ("evaluation in wide products", "step/gradient.rs", "terms(site, loss, given.weights(), &rows, false)", "terms(&Site { scaling: &Layout::new(site.mesh, site.rules, &[])?, ..*site }, loss, Weights { scaling: &[], ..given.weights() }, &rows, false)"),
    # Reading.
    ("a snapshot of zeros", "engine/reading.rs", "Ok(results?.remove(0))", "drop(results?); Group::upload(&self.client, &self.param_layout, &self.params.as_ref().ok_or(Error::StateLost)?.layout().specs().iter().map(|s| ferrotune_graph::HostArray::zeros(s.dtype, &s.dims)).collect::<Vec<_>>()).map_err(Error::from)"),
    ("scores carry the weights", "scores.rs", "        if weighted {", "        if weighted || config.temperature > 0.0 {"),
    ("top-p and min-p exchanged", "scores.rs", "let [top_k, top_p, min_p] = numbers else {", "let [top_k, min_p, top_p] = numbers else {"),
    ("kept masses left at the token that predicts", "engine/reading.rs", "places.natural(found[0].as_slice::<f32>())", "found[0].as_slice::<f32>().to_vec()"),
    ("tokens that may be drawn left at the one that predicts", "engine/reading.rs", "places.natural(found[1].as_slice::<bool>())", "found[1].as_slice::<bool>().to_vec()"),
    ("a log-prob of what may not be drawn", "engine/report.rs", "false => f32::NEG_INFINITY,", "false => logprob - mass.ln(),"),
    ("the kept mass makes tokens less likely", "engine/report.rs", "true => logprob - mass.ln(),", "true => logprob + mass.ln(),"),
    # Checkpoints.
    ("another version is read", "checkpoint/manifest.rs", "if found != Some(u64::from(SCHEMA)) {", "if found == Some(u64::from(SCHEMA + 1)) {"),
    ("restore without the optimizer", "engine/saving.rs", "self.state = Some(next());", "drop(next());"),
    ("restore without the step", "engine/saving.rs", "self.step = step;", "let _ = step;"),
    ("restore without random state", "engine/saving.rs", "&layouts)?;\n        let placed", "&layouts)?;\n        let mut arrays = arrays;\n        for it in arrays[1].iter_mut().filter(|it| it.dtype() == ferrotune_graph::DType::S32) { *it = ferrotune_graph::HostArray::zeros(it.dtype(), it.dims()); }\n        let placed"),
    ("restore without the spike window", "engine/saving.rs", "&layouts)?;\n        let placed", "&layouts)?;\n        let mut arrays = arrays;\n        for (it, spec) in arrays[1].iter_mut().zip(self.state_layout.specs()).filter(|it| it.1.name == \"recent_norms\") { let _ = spec; *it = ferrotune_graph::HostArray::zeros(it.dtype(), it.dims()); }\n        let placed"),
    ("restore without the histories", "engine/saving.rs", "            self.scaling = next();", "            drop(next());"),
    ("a file that nobody reads is passed over", "checkpoint/read.rs", "if !layouts.iter().any(read) {", "if !layouts.iter().any(read) && differences.len() > 99 {"),
    ("restore keeps an accumulation", "engine/saving.rs", "            metrics: next(),\n        });", "            metrics: next(),\n        }).or(self.accumulation.take());"),
    ("an accumulation is not saved", "engine/saving.rs", "accumulating: self.accumulation.as_ref().map(|a| a.loss.clone()),", "accumulating: None,"),
    ("gradients and metrics of an accumulation exchanged", "engine/saving.rs", "            gradients: next(),\n            metrics: next(),", "            metrics: next(),\n            gradients: next(),"),
    ("the hash of a file is not compared", "checkpoint/read.rs", "if hash(&bytes) == entry.sha256 {", "if bytes.len() as u64 == entry.bytes {"),
    ("the hash of the manifest is not compared", "checkpoint/manifest.rs", "if hash(sealed.contents.as_bytes()) != sealed.sha256 {", "if sealed.sha256.is_empty() {"),
    ("the form of the manifest is not compared", "checkpoint/manifest.rs", "if manifest.seal().as_bytes() != text {", "if text.is_empty() {"),
    ("the damaged array is not named", "checkpoint/read.rs", "it.data()) != sha256", "it.data()) == sha256"),
    ("the frozen are not compared", "checkpoint/read.rs", "if stored.manifest.frozen.as_deref() != frozen {", "if frozen.is_some_and(str::is_empty) {"),
    ("the last one may go", "checkpoint/keep.rs", "keep.last.max(1)", "keep.last"),
    ("damaged ones count", "checkpoint/keep.rs", "found.retain(|(_, path)| looks_whole(path));", ""),
    ("keep-every keeps nothing", "checkpoint/keep.rs", "if keep.every > 0 && step", "if keep.every > 1000 && step"),
    ("no pruning in the background", "checkpoint/background.rs", "prune(parent, keep)?;", "let _ = (parent, keep, prune);"),
    ("a failed save leaves its folder", "checkpoint/write.rs", "let _ = fs::remove_dir_all(&made);", ""),
]

mutants.main(
    __doc__,
    [mutants.replaced(what, SOURCES + file, before, after) for what, file, before, after in FAULTS],
    BUILD,
    TESTS,
)

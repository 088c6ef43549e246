#!/usr/bin/env python3
"""Breaks the log-prob head in many small ways and checks that a test fails each time.

    tools/mutate_head.py [--only WORD] [--list]

Each break names a file, a text that occurs there exactly once, and what replaces it.
"""

import mutants

HEAD = "crates/nn/src/head/"
# In the order of how fast they find things; the first failure ends the search.
GROUPS = ["worked", "structure", "single_pass", "rows", "oracle", "modes", "differences"]

# (what is broken, file, text, replacement)
BREAKS = [
    ("sign of the cotangent", "fused.rs",
     "let dz = hit.select(&rows.logprob.expand(1), &zero) - expected;",
     "let dz = expected - hit.select(&rows.logprob.expand(1), &zero);"),
    ("temperature missing in the backward pass", "fused.rs",
     "dz * (1.0 / self.head.temperature)", "dz"),
    ("temperature missing in the single pass's gradient", "single_pass.rs",
     "dz * (1.0 / self.head.temperature)", "dz"),
    ("temperature ignored in the logits", "plain.rs",
     "z * (1.0 / temperature)", "z"),
    ("maximum and sum swapped", "fused.rs",
     "(scores, vec![m, found.total, mean])", "(scores, vec![found.total, m, mean])"),
    ("the maximum is dropped in the backward pass", "fused.rs",
     "let shifted = z - rows.m.expand(1);", "let shifted = z - rows.m.zeros_like().expand(1);"),
    ("the first chunk's cotangents for all", "fused.rs",
     "logprob: over_devices(&cotangents[0]),",
     "logprob: over_devices(&cotangents[0].slice(0, 0, 1).broadcast_to(&cotangents[0].dims())),"),
    ("sign of the entropy", "fused.rs", "log_total - &mean,", "mean.clone() + log_total,"),
    ("the entropy's cotangent is ignored", "fused.rs",
     "entropy: differentiated.then(|| over_devices(&cotangents[1])),", "entropy: None,"),
    ("the entropy's gradient without its mean", "fused.rs",
     "weigh(&exp, &(shifted - rows.mean.expand(1)))", "weigh(&exp, &shifted)"),
    ("the barrier is removed", "fused.rs",
     "let dz = g.barrier(&[&dz.convert(self.projection.compute)]).remove(0);",
     "let dz = dz.convert(self.projection.compute);"),
    ("the single pass's barrier is removed", "single_pass.rs",
     "let dz = g.barrier(&[&dz.convert(self.compute)]).remove(0);",
     "let dz = dz.convert(self.compute);"),
    ("the last entry of the vocabulary is forgotten", "loops.rs",
     "full: entries / width.max(1),", "full: (entries - 1) / width.max(1),"),
    ("the narrow rest of the vocabulary is forgotten", "loops.rs",
     "if self.rest == 0 {", "if self.rest < usize::MAX {"),
    ("columns are off by one", "projection.rs",
     "g.iota(DType::S32, &[parts, width], 1) + start;",
     "g.iota(DType::S32, &[parts, width], 1) + start + g.scalar(1.0, DType::S32);"),
    ("a maximum that is not finite is subtracted", "plain.rs",
     "peak.is_finite().select(peak, &peak.scalar_like(0.0))", "peak.clone()"),
    ("what cannot be drawn makes the entropy NaN", "plain.rs",
     "exp.eq(&zero).select(&zero, &(exp * shifted))", "let _ = zero; exp * shifted"),
    ("masked hidden states are read", "fused.rs",
     "mask.expand(1).select(x, &x.scalar_like(0.0))", "{ let _ = mask; x.clone() }"),
    ("masked hidden states reach dw", "fused.rs",
     "let x_dn = slice[3].expand(0).select(&slice[1], &x.scalar_like(0.0));",
     "let x_dn = slice[1].clone();"),
    ("masked hidden states reach dw in the single pass", "single_pass.rs",
     "let x_dn = mask.expand(0).select(x_dn, &zero(x));", "let x_dn = x_dn.clone();"),
    ("the running sum is not moved to the new maximum", "fused.rs",
     "(&self.total * &factor, moved * factor)", "(self.total.clone(), moved * factor)"),
    ("the running entropy is not moved to the new maximum", "fused.rs",
     "let moved = &self.weighted + &self.total * finite.select(&by, &by.scalar_like(0.0));",
     "let moved = self.weighted.clone(); let _ = finite;"),
    ("only the last tile's logit of the target counts", "fused.rs",
     "target: &self.target + hit.select", "target: hit.select"),
    ("exponentials keep their tile's maximum", "single_pass.rs",
     "let factor = (m_tile - &self.m).exp() * (&self.logprob / &self.total);",
     "let factor = (m_tile - m_tile).exp() * (&self.logprob / &self.total);"),
    ("dx of one tile only", "fused.rs",
     "whole.dynamic_update_slice(&(before + part.expand(0)), &at)",
     "{ let _ = before; whole.dynamic_update_slice(&part.expand(0), &at) }"),
    ("dw of one chunk only", "fused.rs",
     "let dw = &sums[0] + self.projection.outer(&x_dn, &dz);",
     "let dw = self.projection.outer(&x_dn, &dz);"),
    ("dw of one chunk only in the single pass", "projection.rs",
     "whole.dynamic_update_slice(&(before + part), &at)",
     "{ let _ = before; whole.dynamic_update_slice(part, &at) }"),
    ("the loss of the last chunk only", "single_pass.rs",
     "how.apply(old, new)", "{ let _ = (how, old); new.clone() }"),
    ("the single pass's gradient is not scaled by what the loss is worth", "single_pass.rs",
     "Some(d * by.convert(d.dtype()))", "{ let _ = &by; Some(d.clone()) }"),
    ("the mode is ignored", "mod.rs",
     "let scores = match self.settings.mode {", "let scores = match HeadMode::Off {"),
    ("local is what fused should be", "mod.rs",
     "self.scores_in_region(x, targets, mask, Self::fused)",
     "self.scores_in_region(x, targets, mask, Self::local)"),
    ("a tie for the largest is no hit", "fused.rs",
     "target.ge(&target.scalar_like(0.0)),", "target.gt(&target.scalar_like(0.0)),"),
    ("an entropy that is only reported is differentiated", "mod.rs",
     "scores.entropy.stop_gradient()", "scores.entropy"),
    ("temperature zero is accepted", "mod.rs",
     "self.temperature > 0.0 && self.temperature.is_finite()", "self.temperature >= 0.0"),
]

TEST = ["cargo", "test", "-q", "-p", "ferrotune-nn"]
mutants.main(
    __doc__,
    [mutants.replaced(what, HEAD + file, text, replacement) for what, file, text, replacement in BREAKS],
    TEST + ["--no-run"],
    [TEST + ["--lib"]] + [TEST + ["--test", "head", "--", group] for group in GROUPS],
)

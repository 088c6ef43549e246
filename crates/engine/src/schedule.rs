//! Learning-rate schedules.

/// The shape of the rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    /// The peak rate to the end.
    Constant,
    /// Half a cosine from the peak to the final rate.
    Cosine,
    /// A straight line from the peak to the final rate.
    Linear,
    /// The peak rate, and in the last so many steps a straight line to the final rate.
    StableDecay {
        /// Steps of the line.
        decay_steps: u64,
    },
}

/// A learning rate for every step: a straight line from 0 to the peak, then `kind`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Shape after the warm-up.
    pub kind: ScheduleKind,
    /// Largest rate.
    pub peak: f64,
    /// Steps until the peak; the first step already has a rate above 0.
    pub warmup_steps: u64,
    /// Steps in all.
    pub total_steps: u64,
    /// Final rate as a part of the peak.
    pub final_ratio: f64,
}

impl Schedule {
    /// The rate of step `step`, counted from 0.
    ///
    /// Warm-up: peak · (step + 1) / warmup_steps. Afterwards, with `x` running from 0 at the end of the warm-up to 1 at the
    /// last step: cosine peak · (r + (1 − r) · (1 + cos πx) / 2), linear peak · (1 − (1 − r) · x), r the final ratio. With
    /// decay in the last d steps, the k-th of these, k = 1..d, has the rate peak · (1 − (1 − r) · k / d).
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let after = self.total_steps.saturating_sub(self.warmup_steps);
        let x = match after.saturating_sub(1) {
            // The only step of all has the peak rate; the only one after a warm-up is the last.
            0 if self.warmup_steps == 0 && step == 0 => 0.0,
            0 => 1.0,
            span => ((step - self.warmup_steps) as f64 / span as f64).min(1.0),
        };
        let r = self.final_ratio;
        match self.kind {
            ScheduleKind::Constant => self.peak,
            ScheduleKind::Cosine => {
                self.peak * (r + (1.0 - r) * 0.5 * (1.0 + (std::f64::consts::PI * x).cos()))
            }
            ScheduleKind::Linear => self.peak * (1.0 - (1.0 - r) * x),
            ScheduleKind::StableDecay { decay_steps } => {
                let falling = (step + 1 + decay_steps).saturating_sub(self.total_steps);
                let y = (falling as f64 / decay_steps.max(1) as f64).min(1.0);
                self.peak * (1.0 - (1.0 - r) * y)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: ScheduleKind) -> Schedule {
        Schedule {
            kind,
            peak: 2.0,
            warmup_steps: 4,
            total_steps: 15,
            final_ratio: 0.1,
        }
    }

    #[test]
    fn warm_up_is_a_line_that_starts_above_zero_and_reaches_the_peak() {
        let rates: Vec<f64> = (0..5)
            .map(|s| schedule(ScheduleKind::Cosine).rate(s))
            .collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0, 2.0]);
    }

    #[test]
    fn the_last_step_has_the_final_rate() {
        assert!((schedule(ScheduleKind::Cosine).rate(14) - 0.2).abs() < 1e-12);
        assert!((schedule(ScheduleKind::Linear).rate(14) - 0.2).abs() < 1e-12);
        assert_eq!(schedule(ScheduleKind::Constant).rate(14), 2.0);
        assert!(
            (schedule(ScheduleKind::Cosine).rate(9) - 1.1).abs() < 1e-12,
            "half way is the mean of peak and final"
        );
        assert!(
            (schedule(ScheduleKind::Cosine).rate(99) - 0.2).abs() < 1e-12,
            "and stays there"
        );
    }

    #[test]
    fn a_single_step_after_the_warm_up_is_the_last() {
        for kind in [ScheduleKind::Cosine, ScheduleKind::Linear] {
            let s = Schedule {
                warmup_steps: 14,
                ..schedule(kind)
            };
            assert_eq!(s.rate(13), 2.0);
            assert!((s.rate(14) - 0.2).abs() < 1e-12, "{kind:?}");
        }
    }

    #[test]
    fn a_late_decay_is_a_line_over_the_last_steps() {
        let s = schedule(ScheduleKind::StableDecay { decay_steps: 4 });
        let rates: Vec<f64> = (9..16).map(|step| s.rate(step)).collect();
        let expected = [2.0, 2.0, 1.55, 1.1, 0.65, 0.2, 0.2];
        for (found, expected) in rates.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{rates:?}");
        }
    }

    #[test]
    fn no_warm_up_and_one_step_are_fine() {
        let s = Schedule {
            warmup_steps: 0,
            total_steps: 1,
            ..schedule(ScheduleKind::Linear)
        };
        assert_eq!(s.rate(0), 2.0);
    }
}

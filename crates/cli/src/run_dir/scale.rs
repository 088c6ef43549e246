//! The vertical axis of a chart: its ends, its round marks, and numbers in few characters.

/// From the lowest value shown to the highest. On a logarithmic one these are exponents of ten.
#[derive(Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// An axis for these values, with a small margin; `at_least` is shown whatever they are.
    ///
    /// It is logarithmic if that is asked for and all values are positive.
    pub(super) fn over(
        values: impl Iterator<Item = f64>,
        at_least: Option<(f64, f64)>,
        logarithmic: bool,
    ) -> Self {
        let (mut low, mut high) = at_least.unwrap_or((f64::INFINITY, f64::NEG_INFINITY));
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if logarithmic && low > 0.0 {
            let (low, high) = (low.log10(), high.log10());
            let margin = ((high - low) * 0.05).max(0.05);
            return Self {
                low: low - margin,
                high: high + margin,
                logarithmic: true,
            };
        }
        let margin = match high - low {
            0.0 => high.abs().max(1e-12) * 0.1,
            span => span * 0.05,
        };
        // A quantity that is never negative needs no room below zero.
        let bottom = if low >= 0.0 {
            (low - margin).max(0.0)
        } else {
            low - margin
        };
        Self {
            low: bottom,
            high: high + margin,
            logarithmic: false,
        }
    }

    /// How far up a value stands: 0 at the bottom, 1 at the top.
    pub(super) fn share(&self, value: f64) -> f64 {
        let value = if self.logarithmic {
            value.log10()
        } else {
            value
        };
        (value - self.low) / (self.high - self.low)
    }

    /// Round numbers to mark, from the bottom up.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            return linear_ticks(self.low, self.high, 4);
        }
        let decades = self.low.floor() as i32..=self.high.ceil() as i32;
        let steps: &[f64] = if self.high - self.low < 2.5 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0]
        };
        let all =
            decades.flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|tick| (self.low..=self.high).contains(&tick.log10()))
            .collect()
    }
}

/// About `wanted` round numbers between two.
pub(super) fn linear_ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let span = high - low;
    if !(span > 0.0 && span.is_finite()) {
        return vec![low];
    }
    let rough = span / wanted as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|m| m * magnitude)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    // Counted, not added up, so that 0.3 is not 0.30000000000000004; the cap holds where `step` is lost in `low`.
    (first..first + 3 * wanted as i64)
        .map(|i| i as f64 * step)
        .take_while(|tick| *tick <= high)
        .collect()
}

/// A number in few characters: three digits, thousands as k, M, G.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    for (unit, sign) in [(1e9, "G"), (1e6, "M"), (1e4, "k")] {
        if size >= unit && size < 1e12 {
            let scale = if sign == "k" { 1e3 } else { unit };
            return format!("{}{sign}", three_digits(value / scale));
        }
    }
    if (1e-3..1e12).contains(&size) {
        three_digits(value)
    } else {
        format!("{value:.1e}").replace(".0e", "e")
    }
}

fn three_digits(value: f64) -> String {
    let digits_before = value.abs().log10().floor().max(0.0) as usize + 1;
    // Numbers below one keep three digits after their leading zeros.
    let zeros = if value.abs() < 1.0 {
        (-value.abs().log10()).floor() as usize
    } else {
        0
    };
    let text = format!(
        "{value:.*}",
        3usize.saturating_sub(digits_before) + zeros + usize::from(value.abs() < 1.0)
    );
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

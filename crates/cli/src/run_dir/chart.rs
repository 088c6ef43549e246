//! Line charts as inline SVG: axes, lines, a band, a shaded phase, a tooltip a point. Colours come from the page's CSS.

use std::fmt::Write;

use super::scale::{Axis, linear_ticks, short};

/// One chart; `x` is the step.
#[derive(Debug, Default)]
pub(super) struct Chart {
    pub(super) lines: Vec<Line>,
    /// Filled between two values at each step.
    pub(super) band: Vec<(f64, f64, f64)>,
    /// The first and last step of the axis.
    pub(super) steps: (f64, f64),
    /// The last step of the warm-up, which is shaded.
    pub(super) warmup_end: Option<f64>,
    /// The values that the axis shows whatever the data, such as 0 and 1 for a share.
    pub(super) at_least: Option<(f64, f64)>,
    /// A logarithmic axis, if all values are positive.
    pub(super) logarithmic: bool,
}

/// One line of a chart.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: &'static str,
    /// Step and value; steps that have none are left out.
    pub(super) points: Vec<(f64, f64)>,
    pub(super) style: Style,
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Noisy: faintly, behind its running mean.
    Noisy,
    /// As it is.
    Exact,
    /// As it is, with a mark at each of its few points.
    Marked,
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 24.0;
/// More points than pixels only make the file larger.
const MOST_POINTS: usize = 400;

impl Chart {
    /// The `<svg>` element; `label` says what it shows to those who cannot see it.
    pub(super) fn svg(&self, label: &str) -> String {
        let y = self.y_axis();
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(label)
        );
        if let Some(end) = self.warmup_end.filter(|end| *end > self.steps.0) {
            let width = self.x(end) - LEFT;
            let height = HEIGHT - TOP - BOTTOM;
            let _ = write!(
                out,
                "<rect class=\"warmup\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"/>"
            );
            if width > 56.0 {
                let _ = write!(
                    out,
                    "<text class=\"phase\" x=\"{}\" y=\"{}\">warm-up</text>",
                    LEFT + 5.0,
                    HEIGHT - BOTTOM - 6.0
                );
            }
        }
        self.write_axes(&y, &mut out);
        if !self.band.is_empty() {
            let edge = |pick: fn(&(f64, f64, f64)) -> (f64, f64)| -> Vec<(f64, f64)> {
                self.band.iter().map(pick).collect()
            };
            let mut outline = thin(&edge(|&(x, low, _)| (x, low)));
            outline.extend(thin(&edge(|&(x, _, high)| (x, high))).into_iter().rev());
            let _ = write!(
                out,
                "<path class=\"band\" d=\"{}Z\"/>",
                self.path(&outline, &y)
            );
        }
        for (i, line) in self.lines.iter().enumerate() {
            self.write_line(i, line, &y, &mut out);
        }
        out.push_str("</svg>");
        out
    }

    fn write_axes(&self, y: &Axis, out: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in y.ticks() {
            let at = height(y, tick);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                at + 3.5,
                short(tick)
            );
        }
        let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>");
        for tick in linear_ticks(self.steps.0, self.steps.1, 6)
            .into_iter()
            .filter(|tick| tick.fract() == 0.0)
        {
            let _ = write!(
                out,
                "<text class=\"x\" x=\"{:.1}\" y=\"{}\">{}</text>",
                self.x(tick),
                HEIGHT - 7.0,
                short(tick)
            );
        }
    }

    fn write_line(&self, index: usize, line: &Line, y: &Axis, out: &mut String) {
        let class = if index == 0 { "first" } else { "second" };
        let _ = write!(out, "<g class=\"{class}\">");
        for part in self.parts(line) {
            let points = thin(part);
            let smooth = if line.style == Style::Noisy {
                running_mean(part)
            } else {
                Vec::new()
            };
            let raw = if smooth.is_empty() { "line" } else { "raw" };
            let _ = write!(
                out,
                "<path class=\"{raw}\" d=\"{}\"/>",
                self.path(&points, y)
            );
            if !smooth.is_empty() {
                let _ = write!(
                    out,
                    "<path class=\"line\" d=\"{}\"/>",
                    self.path(&thin(&smooth), y)
                );
            }
            // A lone point makes no line, so it is marked too.
            let mark = if line.style == Style::Marked || points.len() == 1 {
                "mark"
            } else {
                "hover"
            };
            for &(step, value) in &points {
                let _ = write!(
                    out,
                    "<circle class=\"{mark}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>step {step}: {} {}</title></circle>",
                    self.x(step),
                    height(y, value),
                    escape(line.name),
                    short(value)
                );
            }
        }
        out.push_str("</g>");
    }

    /// The two phases are different tasks: no line and no mean leads from one to the other. Marked points are
    /// measurements of one thing throughout.
    fn parts<'l>(&self, line: &'l Line) -> impl Iterator<Item = &'l [(f64, f64)]> {
        let boundary = match self.warmup_end {
            Some(end) if line.style != Style::Marked => {
                line.points.partition_point(|&(step, _)| step <= end)
            }
            _ => 0,
        };
        let (before, after) = line.points.split_at(boundary);
        [before, after].into_iter().filter(|part| !part.is_empty())
    }

    fn x(&self, step: f64) -> f64 {
        let span = (self.steps.1 - self.steps.0).max(1.0);
        LEFT + (step - self.steps.0) / span * (WIDTH - LEFT - RIGHT)
    }

    fn path(&self, points: &[(f64, f64)], y: &Axis) -> String {
        let mut d = String::new();
        for (i, &(step, value)) in points.iter().enumerate() {
            let _ = write!(
                d,
                "{}{:.1} {:.1}",
                if i == 0 { 'M' } else { 'L' },
                self.x(step),
                height(y, value)
            );
        }
        d
    }

    fn y_axis(&self) -> Axis {
        let lines = self
            .lines
            .iter()
            .flat_map(|line| &line.points)
            .map(|&(_, value)| value);
        let values = lines.chain(self.band.iter().flat_map(|&(_, low, high)| [low, high]));
        Axis::over(values, self.at_least, self.logarithmic)
    }
}

/// The height on the page.
fn height(y: &Axis, value: f64) -> f64 {
    HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM)
}

/// At most [`MOST_POINTS`] points, keeping the lowest and highest of each stretch so that no spike is lost.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let mut kept = Vec::new();
    for part in points.chunks(stretch) {
        let low = part.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let high = part.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut both: Vec<_> = low.into_iter().chain(high).collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both.dedup();
        kept.extend(both);
    }
    kept
}

/// The mean over the neighbours on both sides; empty for a line too short to be smoothed.
fn running_mean(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = points.len() / 40;
    if reach == 0 {
        return Vec::new();
    }
    let mean = |i: usize| {
        // As many on both sides, so that the ends are not drawn aside.
        let reach = reach.min(i).min(points.len() - 1 - i);
        let near = &points[i - reach..=i + reach];
        near.iter().map(|&(_, value)| value).sum::<f64>() / near.len() as f64
    };
    (0..points.len()).map(|i| (points[i].0, mean(i))).collect()
}

/// Text that is safe inside an element and a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

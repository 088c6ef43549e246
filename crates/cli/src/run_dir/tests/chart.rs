use crate::run_dir::chart::{Chart, Line, Style};
use crate::run_dir::scale::short;

fn line(values: impl IntoIterator<Item = f64>, style: Style) -> Line {
    Line {
        name: "v",
        points: values
            .into_iter()
            .enumerate()
            .map(|(i, v)| (i as f64 + 1.0, v))
            .collect(),
        style,
    }
}

fn chart(line: Line) -> Chart {
    let steps = (line.points[0].0, line.points[line.points.len() - 1].0);
    Chart {
        lines: vec![line],
        steps,
        ..Chart::default()
    }
}

/// The numbers at the left edge, bottom up.
fn y_labels(svg: &str) -> Vec<&str> {
    svg.split("<text class=\"y\"")
        .skip(1)
        .map(|rest| rest.split(['>', '<']).nth(1).unwrap())
        .collect()
}

#[test]
fn numbers_are_short_and_true() {
    for (value, text) in [
        (0.0, "0"),
        (1.0, "1"),
        (0.25, "0.25"),
        (0.1666666, "0.167"),
        (0.00123456, "0.00123"),
        (0.0001, "1e-4"),
        (2.56e-7, "2.6e-7"),
        (12.345, "12.3"),
        (123.456, "123"),
        (1234.5, "1234"),
        (10.0, "10"),
        (12_345.0, "12.3k"),
        (1_080_000.0, "1.08M"),
        (100_000.0, "100k"),
        (-0.5, "-0.5"),
        (3e15, "3e15"),
    ] {
        assert_eq!(short(value), text, "{value}");
    }
}

#[test]
fn axes_are_marked_at_round_numbers_around_the_data() {
    let svg = chart(line([0.31, 0.5, 0.93], Style::Exact)).svg("v");
    assert_eq!(y_labels(&svg), ["0.4", "0.6", "0.8"]);
    let svg = Chart {
        at_least: Some((0.0, 1.0)),
        ..chart(line([0.31, 0.5], Style::Exact))
    }
    .svg("v");
    assert_eq!(y_labels(&svg), ["0", "0.5", "1"]);
    let svg = Chart {
        logarithmic: true,
        ..chart(line([1e-7, 1e-3], Style::Exact))
    }
    .svg("v");
    assert_eq!(y_labels(&svg), ["1e-7", "1e-6", "1e-5", "1e-4", "0.001"]);
    // A logarithm of zero is nowhere, so such data fall back to a plain axis.
    let svg = Chart {
        logarithmic: true,
        ..chart(line([0.0, 1.0], Style::Exact))
    }
    .svg("v");
    assert_eq!(y_labels(&svg), ["0", "0.5", "1"]);
}

#[test]
fn points_stand_where_their_values_are() {
    let svg = Chart {
        at_least: Some((0.0, 1.0)),
        ..chart(line([0.0, 1.0], Style::Marked))
    }
    .svg("v");
    // The axis runs from 0 to 1 and a margin of 5%: 166 units for 1.05, from 176 upwards.
    assert!(
        svg.contains(
            "<circle class=\"mark\" cx=\"52.0\" cy=\"176.0\" r=\"3\"><title>step 1: v 0</title>"
        ),
        "{svg}"
    );
    assert!(
        svg.contains(
            "<circle class=\"mark\" cx=\"470.0\" cy=\"17.9\" r=\"3\"><title>step 2: v 1</title>"
        ),
        "{svg}"
    );
    assert!(
        svg.contains("<path class=\"line\" d=\"M52.0 176.0L470.0 17.9\"/>"),
        "{svg}"
    );
}

#[test]
fn no_value_makes_a_chart_that_cannot_be_drawn() {
    for values in [
        vec![5.0],
        vec![0.0, 0.0],
        vec![-3.0; 4],
        vec![1e300, -1e300],
        vec![1e-300, 2e-300],
        vec![1e16, 1e16 + 2.0],
    ] {
        for logarithmic in [false, true] {
            let svg = Chart {
                logarithmic,
                ..chart(line(values.clone(), Style::Noisy))
            }
            .svg("v");
            assert!(
                !svg.contains("NaN") && !svg.contains("inf"),
                "{values:?}: {svg}"
            );
        }
    }
}

#[test]
fn a_long_line_is_thinned_but_keeps_its_spikes() {
    let values = (0..100_000).map(|i| if i == 54_321 { 99.0 } else { (i % 7) as f64 });
    let svg = chart(line(values, Style::Exact)).svg("v");
    assert!(svg.contains("step 54322: v 99<"));
    assert!(svg.len() < 80_000, "{} bytes", svg.len());
}

#[test]
fn noise_is_drawn_behind_its_mean_and_phases_are_not_mixed() {
    let noisy = |i: usize| if i < 100 { 4.0 } else { (i % 2) as f64 };
    let whole = Chart {
        warmup_end: Some(100.0),
        ..chart(line((0..200).map(noisy), Style::Noisy))
    }
    .svg("v");
    assert_eq!(
        whole.matches("<path class=\"raw\"").count(),
        2,
        "one a phase"
    );
    assert_eq!(whole.matches("<path class=\"line\"").count(), 2);
    assert_eq!(whole.matches("<rect class=\"warmup\"").count(), 1);
    // The mean of the warm-up is level to its very end: nothing of what follows is in it.
    let mean = whole
        .split("<path class=\"line\" d=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let heights: Vec<&str> = mean
        .split(['M', 'L'])
        .skip(1)
        .map(|point| point.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(heights.len(), 100);
    assert!(heights.iter().all(|height| *height == heights[0]), "{mean}");
}

#[test]
fn a_band_goes_out_along_its_floor_and_back_along_its_top() {
    let band = vec![(1.0, 0.0, 10.0), (2.0, 0.0, 10.0)];
    let svg = Chart {
        band,
        ..chart(line([5.0, 5.0], Style::Exact))
    }
    .svg("v");
    assert!(
        svg.contains("<path class=\"band\" d=\"M52.0 176.0L470.0 176.0L470.0 17.9L52.0 17.9Z\"/>"),
        "{svg}"
    );
}

#[test]
fn a_label_cannot_break_out_of_its_attribute() {
    assert!(
        chart(line([1.0], Style::Exact))
            .svg("a\"><script>")
            .contains("aria-label=\"a&quot;&gt;&lt;script&gt;\"")
    );
}

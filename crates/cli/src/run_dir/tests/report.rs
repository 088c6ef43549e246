use super::*;

fn report(steps: std::ops::RangeInclusive<u64>) -> String {
    let scratch = Scratch::new();
    let mut run = RunDir::create(&scratch.path(), false).unwrap();
    run.write_config("seed = 7  # \"override 1\" </pre>\n")
        .unwrap();
    steps.for_each(|step| record(&mut run, step));
    let path = run.write_report("sums & <products>").unwrap();
    assert_eq!(path, scratch.path().join("report.html"));
    scratch.text("report.html")
}

#[test]
fn text_of_user_and_model_is_escaped() {
    let html = report(1..=6);
    assert!(html.contains("<h1>sums &amp; &lt;products&gt;</h1>"));
    assert!(
        html.contains("<bdi>&lt;b&gt;6&lt;&#x2f;b&gt;</bdi>"),
        "{html}"
    );
    assert!(!html.contains("<b>6</b>"));
    assert!(html.contains("seed = 7  # &quot;override 1&quot; &lt;&#x2f;pre&gt;"));
}

#[test]
fn the_page_needs_nothing_else() {
    let html = report(1..=6);
    for outside in [
        "http:", "https:", "src=", "href=", "url(", "@import", "<script", "NaN", "inf\"",
    ] {
        assert!(!html.contains(outside), "{outside} in {html}");
    }
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
}

#[test]
fn what_was_measured_is_shown_and_what_was_not_is_left_out() {
    let html = report(1..=6);
    assert!(html.contains("3 steps of warm-up, 3 steps of GRPO"));
    assert!(html.contains("<h3>Loss</h3><b>0.167</b>"));
    assert!(html.contains("<h3>Reward</h3><b>0.5</b>"));
    assert!(html.contains("<title>step 4: loss 0.25</title>"));
    assert!(!html.contains("<h3>Entropy</h3>"));
    // The reward is of steps 4 to 6 only, and its chart begins at 4.
    assert!(
        html.contains("cx=\"52.0\" cy=\"97.0\" r=\"3\"><title>step 4: reward 0.5</title>"),
        "{html}"
    );
    for step in 4..=6 {
        assert!(
            html.contains(&format!("<h3>Step {step}</h3>")),
            "answers of step {step}"
        );
    }
    assert!(html.contains("<td class=\"number up\">+1.00</td>"));
    assert!(html.contains("<td class=\"number down\">\u{2212}1.00</td>"));
    assert!(
        html.contains(
            "<td class=\"number quiet\">\u{2212}0.17</td><td class=\"number quiet\">2</td>"
        )
    );
}

#[test]
fn pass_at_1_is_told_before_and_after() {
    let scratch = Scratch::new();
    let mut run = RunDir::create(&scratch.path(), false).unwrap();
    for (step, phase, value) in [
        (1, Phase::Warmup, Some(0.125)),
        (2, Phase::Warmup, Some(0.25)),
        (3, Phase::Grpo, None),
        (4, Phase::Grpo, Some(0.9375)),
    ] {
        let mut metrics = StepMetrics::new(step, phase);
        if let Some(value) = value {
            metrics.set("eval/pass@1", value);
        }
        metrics.set("step_time", 50.0);
        run.record_metrics(&metrics).unwrap();
    }
    run.write_report("r").unwrap();
    let html = scratch.text("report.html");
    assert!(
        html.contains("pass@1 after warm-up</span><b>0.250</b>"),
        "{html}"
    );
    assert!(html.contains("pass@1 at last</span><b>0.938</b>"), "{html}");
    assert!(
        html.contains("time in steps</span><b>3 min 20 s</b>"),
        "{html}"
    );
}

#[test]
fn a_run_that_was_killed_early_has_a_report_too() {
    let scratch = Scratch::new();
    let run = RunDir::create(&scratch.path(), false).unwrap();
    run.write_report("r").unwrap();
    assert!(
        scratch
            .text("report.html")
            .contains("No step has been recorded yet.")
    );

    std::fs::write(
        scratch.path().join("metrics.jsonl"),
        "{\"step\":1,\"phase\":\"grpo\",\"reward\":0.5}\n{\"st",
    )
    .unwrap();
    run.write_report("r").unwrap();
    let html = scratch.text("report.html");
    assert!(
        html.contains("1 step of GRPO") && html.contains("<circle class=\"mark\""),
        "{html}"
    );
}

#[test]
fn of_a_long_run_a_few_steps_are_sampled() {
    let html = report(1..=103);
    let shown: Vec<&str> = html
        .split("<h3>Step ")
        .skip(1)
        .map(|rest| rest.split('<').next().unwrap())
        .collect();
    assert_eq!(shown, ["4", "28", "53", "78", "103"]);
}

//! Chat templates against renders of Jinja2 (`fixtures/make_chat.py`), and what goes wrong.

// A list of one span is meant as such.
#![allow(clippy::single_range_in_vec_init)]

use ferrotune_text::{ChatTemplate, Conversation, TextError, message};
use serde_json::{Value, json};

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("fixtures/chat.json")).unwrap()
}

/// The conversation of a fixture's variables.
fn conversation<'a>(variables: &'a Value) -> Conversation<'a> {
    let list = |key: &str| variables.get(key).and_then(Value::as_array);
    let mut conversation = Conversation::new(list("messages").map_or(&[], Vec::as_slice));
    conversation.tools = list("tools").map(Vec::as_slice);
    conversation.add_generation_prompt = variables["add_generation_prompt"] == true;
    conversation.variables = variables.as_object().unwrap().clone();
    conversation
}

#[test]
fn renders_equal_jinja2() {
    let cases = cases();
    assert!(cases.len() > 20);
    for case in &cases {
        let name = &case["name"];
        let template = ChatTemplate::new(case["template"].as_str().unwrap())
            .unwrap()
            .with_now(1_721_952_000);
        let rendered = template.render(&conversation(&case["variables"]));
        if let Some(words) = case.get("error") {
            match rendered {
                Err(TextError::TemplateRefused { message }) => {
                    assert_eq!(&message, words, "{name}")
                }
                other => panic!("{name}: {other:?}"),
            }
            continue;
        }
        let rendered = rendered.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(rendered.text, case["text"].as_str().unwrap(), "{name}");
        let spans = rendered.assistant.map(|spans| {
            spans
                .iter()
                .map(|span| [span.start, span.end])
                .collect::<Vec<_>>()
        });
        assert_eq!(json!(spans), case["assistant"], "{name}");
    }
}

#[test]
fn variables_of_the_model_and_of_the_call() {
    let template =
        ChatTemplate::new("{{ bos_token }}{{ eos_token }}{{ documents is none }}").unwrap();
    let template = template.with_variables([("bos_token", "<s>"), ("eos_token", "</s>")]);
    let mut conversation = Conversation::prompt(&[]);
    assert_eq!(template.render(&conversation).unwrap().text, "<s></s>True");
    conversation
        .variables
        .insert("bos_token".to_owned(), json!("[B]"));
    assert_eq!(template.render(&conversation).unwrap().text, "[B]</s>True");
}

#[test]
fn a_message_may_hold_any_character() {
    let template =
        ChatTemplate::new("{% generation %}{{ messages[0].content }}{% endgeneration %}").unwrap();
    for content in [
        "\u{F0000}\u{F0001}",
        "\u{F0001}a\u{F0000}",
        "{% generation %}",
    ] {
        let rendered = template
            .render(&Conversation::new(&[message("user", content)]))
            .unwrap();
        assert_eq!(rendered.text, content);
        assert_eq!(rendered.assistant, Some(vec![0..content.len()]));
    }
}

#[test]
fn a_template_asks_for_todays_date() {
    let template = ChatTemplate::new("{{ strftime_now('%Y') }}").unwrap();
    let year: u32 = template
        .render(&Conversation::new(&[]))
        .unwrap()
        .text
        .parse()
        .unwrap();
    assert!(year >= 2024);
    let error = ChatTemplate::new("{{ strftime_now('%Q') }}")
        .unwrap()
        .render(&Conversation::new(&[]))
        .unwrap_err();
    assert!(
        error.to_string().contains("strftime_now does not know %Q"),
        "{error}"
    );
}

#[test]
fn bad_templates_are_told_at_once_with_the_line() {
    for source in [
        "a\n{% if x %}",
        "\n{% generation %}x",
        "\n{% endgeneration %}",
        "\n{{ x | }}",
    ] {
        let error = ChatTemplate::new(source).unwrap_err();
        assert!(matches!(error, TextError::TemplateSyntax { .. }), "{error}");
        assert!(
            error.to_string().contains("(in chat template:2)"),
            "{error}"
        );
    }
}

#[test]
fn templates_that_fail_say_why() {
    let fail = |source: &str| {
        let error = ChatTemplate::new(source)
            .unwrap()
            .render(&Conversation::new(&[]))
            .unwrap_err();
        assert!(matches!(error, TextError::TemplateFailed { .. }), "{error}");
        error.to_string()
    };
    assert!(fail("{{ x.y.z }}").contains("chat template:1"));
    assert!(fail("{{ x | tojson }}").contains("tojson: an undefined value"));
    assert!(fail("{{ 1 | tojson(color=2) }}").contains("color"));
    assert!(fail("{{ 1 | tojson(indent=-1) }}").contains("indent"));
    assert!(fail("{{ 1 | tojson(separators=[',']) }}").contains("separators are not two texts"));
    assert!(fail("{% include 'other' %}").contains("other"));
    let refused = ChatTemplate::new("{{ raise_exception('no') }}")
        .unwrap()
        .render(&Conversation::new(&[]))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the chat template refuses the conversation: no"
    );
}

//! The files beside the tokenizer, and what is wrong with them.

use std::fs;

use ferrotune_text::{TextError, Tokenizer};
use serde_json::{Value, json};

use crate::made::{characters, folder, open, pairs};

#[test]
fn special_tokens_of_the_folder() {
    let tokenizer = characters("ab", "<unk>");
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": "</s>", "unk_token": null});
    let open = |generation: &Value, model: &Value, config: &Value| {
        let files = [
            ("tokenizer.json", &tokenizer),
            ("tokenizer_config.json", config),
            ("generation_config.json", generation),
            ("config.json", model),
        ];
        open(&files)
    };
    let none = json!({});
    let eos = |generation: Value, model: Value, config: &Value| {
        open(&generation, &model, config)
            .unwrap()
            .eos_ids()
            .to_vec()
    };
    assert_eq!(
        eos(
            json!({"eos_token_id": 3}),
            json!({"eos_token_id": 2}),
            &config
        ),
        [3]
    );
    assert_eq!(
        eos(
            json!({"eos_token_id": [1, 0]}),
            json!({"eos_token_id": 2}),
            &config
        ),
        [1, 0]
    );
    assert_eq!(
        eos(
            json!({"eos_token_id": null}),
            json!({"eos_token_id": 2}),
            &config
        ),
        [1]
    );
    assert_eq!(eos(json!({}), json!({"eos_token_id": 2}), &none), [2]);
    assert_eq!(eos(json!({}), json!({}), &none), [0; 0]);

    let full = open(&none, &none, &config).unwrap();
    assert_eq!((full.bos_id(), full.pad_id()), (Some(0), Some(1)));
    let bare = open(&none, &none, &none).unwrap();
    assert_eq!(
        (bare.bos_id(), bare.pad_id(), bare.chat_template().is_none()),
        (None, None, true)
    );

    let unknown = open(&none, &none, &json!({"pad_token": "<pad>"}))
        .unwrap_err()
        .to_string();
    assert!(
        unknown.starts_with("pad_token of ")
            && unknown.contains("tokenizer_config.json is `<pad>`, which"),
        "{unknown}"
    );
    let outside = open(&json!({"eos_token_id": [1, 77]}), &none, &none)
        .unwrap_err()
        .to_string();
    assert!(
        outside.contains("generation_config.json is 77, which"),
        "{outside}"
    );
    for bad in [
        json!(-1),
        json!("1"),
        json!([1, null]),
        json!(1.5),
        json!(1_u64 << 40),
    ] {
        let error = open(&json!({"eos_token_id": bad}), &none, &none).unwrap_err();
        assert!(matches!(error, TextError::Damaged { .. }), "{error}");
        assert!(
            error.to_string().contains("which is not a token id"),
            "{error}"
        );
    }
}

#[test]
fn chat_templates_of_the_folder() {
    let tokenizer = characters("ab", "<unk>");
    let render = |config: &Value, file: Option<&str>| {
        let folder = folder(&[
            ("tokenizer.json", &tokenizer),
            ("tokenizer_config.json", config),
        ]);
        if let Some(source) = file {
            fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
        }
        let tokenizer = Tokenizer::from_dir(folder.path())?;
        let template = tokenizer.chat_template().unwrap();
        Ok::<_, TextError>(
            template
                .render(&ferrotune_text::Conversation::new(&[]))
                .unwrap()
                .text,
        )
    };
    let key = json!({"chat_template": "key {{ bos_token }}", "bos_token": "<s>"});
    assert_eq!(render(&key, None).unwrap(), "key <s>");
    assert_eq!(
        render(&key, Some("file {{ bos_token }}")).unwrap(),
        "file <s>"
    );
    let named = json!({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]});
    assert_eq!(render(&named, None).unwrap(), "d");
    for bad in [
        json!({"chat_template": [{"name": "rag", "template": "r"}]}),
        json!({"chat_template": 5}),
    ] {
        assert!(matches!(render(&bad, None), Err(TextError::Damaged { .. })));
    }
    assert!(matches!(
        render(&json!({}), Some("{% if")),
        Err(TextError::TemplateSyntax { .. })
    ));
}

#[test]
fn missing_and_damaged_files_name_themselves() {
    let empty = tempfile::tempdir().unwrap();
    let missing = Tokenizer::from_dir(empty.path()).unwrap_err().to_string();
    assert!(
        missing.starts_with(&format!(
            "there is no tokenizer.json in {}; copy it",
            empty.path().display()
        )),
        "{missing}"
    );
    let nowhere = Tokenizer::from_dir(empty.path().join("nowhere")).unwrap_err();
    assert!(matches!(nowhere, TextError::NoTokenizer { .. }));

    let good = characters("ab", "<unk>").to_string();
    let damaged = |name: &str, content: &[u8]| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), &good).unwrap();
        fs::write(folder.path().join(name), content).unwrap();
        match Tokenizer::from_dir(folder.path()) {
            Err(error @ TextError::Damaged { .. }) => {
                assert!(error.to_string().contains(name), "{error}");
            }
            other => panic!("{name}: {other:?}"),
        }
    };
    for content in [
        &b"{\"version\""[..],
        b"",
        b"[]",
        b"\xff\xfe",
        &good.as_bytes()[..good.len() / 2],
    ] {
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "config.json",
        ] {
            damaged(name, content);
        }
    }
    damaged(
        "tokenizer.json",
        json!({"version": "1.0", "model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}})
            .to_string()
            .as_bytes(),
    );
    let mut misnumbered = pairs();
    misnumbered["added_tokens"][0]["id"] = json!(9);
    damaged("tokenizer.json", misnumbered.to_string().as_bytes());
    damaged("chat_template.jinja", b"\xff");
}

#[test]
fn a_folder_in_the_place_of_a_file_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tokenizer.json")).unwrap();
    assert!(matches!(
        Tokenizer::from_dir(folder.path()),
        Err(TextError::Read { .. })
    ));
}

//! The stored state is read back as it was, and nothing else is taken for it.

use super::*;

fn progress() -> Progress {
    let order = |seed| DataOrder {
        seed,
        epoch: 2,
        position: 7,
        problems: 60,
    };
    Progress {
        schema: Progress::SCHEMA,
        completed: 12,
        num_tokens: 34_567,
        failed_updates: 1,
        demonstrations: Some(order(u64::MAX)),
        problems: order(5),
        data: Fingerprint {
            train: "a".into(),
            heldout: "b".into(),
            demonstrations: "c".into(),
        },
    }
}

#[test]
fn it_survives_being_stored() {
    let stored = serde_json::to_string(&progress()).unwrap();
    let read = Progress::read(serde_json::from_str(&stored).unwrap());
    assert_eq!(read, Ok(progress()));
}

#[test]
fn other_schemas_and_other_things_are_refused() {
    let with = |key: &str, value: Value| {
        let mut stored = serde_json::to_value(progress()).unwrap();
        stored[key] = value;
        Progress::read(stored).unwrap_err()
    };
    assert!(with("schema", 99.into()).contains("schema 99"));
    assert!(with("completed", "x".into()).contains("cannot be read"));
    assert!(with("more", 1.into()).contains("more"));
    assert!(Progress::read(Value::Null).unwrap_err().contains("none"));
}

#[test]
fn data_that_changed_is_named() {
    let other = Fingerprint {
        train: "a".into(),
        heldout: "x".into(),
        demonstrations: "y".into(),
    };
    assert_eq!(
        progress().data.differences(&other),
        ["data.heldout", "data.demonstrations"]
    );
}

use super::check_form;

#[test]
fn a_name_is_a_generation_and_sizes() {
    for good in ["tpu7x:2x2x1", "v5e:2x2", "v4:4x4x16", "v2:1"] {
        assert_eq!(check_form(good), Ok(()), "{good}");
    }
    for bad in [
        "",
        "v5e",
        ":",
        ":2x2",
        "v5e:",
        "v5e:2x",
        "v5e:x2",
        "v5e:2x2x0",
        "v5e:+2x2",
        "v5e:2x2 ",
        "v5 e:2x2",
        "v5e:2x99999999999",
        "v5e:2x2:1",
        "v5e:-1x2",
    ] {
        assert!(check_form(bad).is_err(), "{bad}");
    }
}

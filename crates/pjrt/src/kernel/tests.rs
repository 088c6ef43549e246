use super::Attribute;

#[test]
fn attributes_are_spelled_as_mlir_reads_them() {
    let number = |value| Attribute::Number(value).to_mlir();
    assert_eq!(number(1.0), "1.0e0 : f64");
    assert_eq!(number(-1.5), "-1.5e0 : f64");
    assert_eq!(number(-0.0), "-0.0e0 : f64");
    assert_eq!(number(1e-300), "1.0e-300 : f64");
    assert_eq!(number(0.1), "1.0e-1 : f64");
    assert_eq!(number(1.0 / 3.0), "3.333333333333333e-1 : f64");
    assert_eq!(number(f64::INFINITY), "0x7FF0000000000000 : f64");
    assert_eq!(number(f64::NEG_INFINITY), "0xFFF0000000000000 : f64");
    assert!(number(f64::NAN).starts_with("0x7FF8"));
    assert_eq!(
        Attribute::Integer(i64::MIN).to_mlir(),
        "-9223372036854775808 : i64"
    );
    assert_eq!(Attribute::Flag(true).to_mlir(), "true");
    let text = |value: &str| Attribute::Text(value.to_owned()).to_mlir();
    assert_eq!(text("plain {words}"), "\"plain {words}\"");
    assert_eq!(text("a\"b\\c\n"), "\"a\\22b\\5Cc\\0A\"");
    assert_eq!(text("é\u{7f}"), "\"\\C3\\A9\\7F\"");
    let integers = |values: &[i64]| Attribute::Integers(values.to_vec()).to_mlir();
    assert_eq!(integers(&[]), "array<i64>");
    assert_eq!(integers(&[1, -2]), "array<i64: 1, -2>");
}

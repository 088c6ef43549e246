//! Where the tests of this crate find the model folders that `transformers` wrote.

use std::path::PathBuf;

/// The committed model folder of a family.
pub(crate) fn fixture(family: &str) -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/hf"
    ))
    .join(family)
}

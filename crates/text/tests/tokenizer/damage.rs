//! Any damage is survived, any text kept.

use std::fs;
use std::path::Path;

use ferrotune_text::{Special, Tokenizer};
use proptest::prelude::*;

use crate::made::{bytes, characters, load, pairs};

/// Every damaged copy of a tokenizer file loads or is refused; none panics.
fn survives(good: &str, folder: &Path, damage: impl Fn(&mut Vec<u8>)) {
    let mut bytes = good.as_bytes().to_vec();
    damage(&mut bytes);
    fs::write(folder.join("tokenizer.json"), bytes).unwrap();
    if let Ok(tokenizer) = Tokenizer::from_dir(folder) {
        let _ = tokenizer.encode("ab é <s> h\n", true);
        let _ = tokenizer.decode(&[0, 1, 2, 3, 4, 5], Special::Skip);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damage_never_panics(kind in 0..3, at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let good = [characters("ab", "<unk>"), pairs(), bytes()][kind as usize].to_string();
        let folder = tempfile::tempdir().unwrap();
        survives(&good, folder.path(), |bytes| {
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = byte }
        });
    }

    #[test]
    fn every_text_survives_bytes(text in "[^éöü]{0,24}") {
        let tokenizer = load(&bytes());
        // Normalisation composes characters, so compare what has been through it once.
        let once = tokenizer.decode(&tokenizer.encode(&text, false).unwrap(), Special::Keep).unwrap();
        let twice = tokenizer.decode(&tokenizer.encode(&once, false).unwrap(), Special::Keep).unwrap();
        prop_assert_eq!(&once, &twice);
        if text.is_ascii() {
            prop_assert_eq!(once, text);
        }
    }

    #[test]
    fn marked_ids_are_the_encoded_ids(text in "[ab ]{0,12}", start in 0usize..13, len in 0usize..13) {
        let tokenizer = load(&characters("ab ", "<unk>"));
        let start = start.min(text.len());
        let end = (start + len).min(text.len());
        let (ids, marks) = tokenizer.encode_marked(&text, std::slice::from_ref(&(start..end))).unwrap();
        prop_assert_eq!(&ids, &tokenizer.encode(&text, false).unwrap());
        prop_assert_eq!(marks, (0..text.len()).map(|t| start <= t && t < end).collect::<Vec<_>>());
        prop_assert_eq!(tokenizer.decode(&ids, Special::Keep).unwrap(), text);
    }
}

//! Whatever a file or an override holds, the answer is a recipe or an error: never a panic, never a hang.

use super::*;

/// A small generator of the same numbers every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

#[test]
fn damaged_text_never_panics() {
    let folder = Folder::new();
    let good = with(
        "demonstrations = \"demos.jsonl\"\n[warmup]\nsteps = 3\n[rl]\nsteps = 2\nupdates_per_step = 2\n\
         [packing]\nrow_tokens = 512\nsegment_align = 4\npad_position = \"start\"\npad_align = 8\n[mesh]\nfsdp = 2\n",
    );
    folder.load(&good, &[]).unwrap();
    let scraps = [
        "=", "\"", "[", "]", "\n", ".", "'", "\u{feff}", "\u{e9}", "9", "-", "{", "}", "#", "\t",
        "\r", "e", "0x", "\u{0}", ",",
    ];
    let mut numbers = Numbers(1);
    let mut accepted = 0;
    for _ in 0..600 {
        let mut text: Vec<char> = good.chars().collect();
        for _ in 0..1 + numbers.below(3) {
            let at = numbers.below(text.len().max(1));
            match numbers.below(3) {
                0 if at < text.len() => drop(text.remove(at)),
                1 => text.truncate(at),
                _ => text
                    .splice(at..at, scraps[numbers.below(scraps.len())].chars())
                    .for_each(drop),
            }
        }
        let text: String = text.into_iter().collect();
        let cut = (0..=numbers.below(text.len() + 1))
            .rev()
            .find(|&at| text.is_char_boundary(at))
            .unwrap();
        for tried in [
            folder.load(&text, &[]),
            folder.load(LEAST, &[&text[..cut], &text[cut..]]),
        ] {
            match tried {
                Ok(_) => accepted += 1,
                Err(refused) => assert!(refused.contains("error: "), "{refused}"),
            }
        }
    }
    // Some damage is harmless: a blank more, a comment cut short.
    assert!((1..300).contains(&accepted), "{accepted} of 1200");
}

#[test]
fn numbers_of_any_size_never_overflow() {
    let folder = Folder::new();
    let keys = tables_of_numbers();
    for number in [
        "9223372036854775807",
        "1000000000",
        "-9223372036854775808",
        "0",
        "1e308",
        "-1e308",
        "5e-324",
        "nan",
        "-inf",
    ] {
        for key in &keys {
            if let Err(refused) = folder.load(LEAST, &[&format!("{key}={number}")]) {
                assert!(refused.contains(key.as_str()), "{key}={number}: {refused}");
            }
        }
        let all: Vec<String> = keys.iter().map(|key| format!("{key}={number}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(folder.load(LEAST, &all).is_err());
    }
}

fn tables_of_numbers() -> Vec<String> {
    let tables = crate::reference::tables();
    let keys = tables
        .iter()
        .flat_map(|table| &table.keys)
        .filter(|key| !key.kind.is_textual());
    keys.map(|key| key.path.to_owned()).collect()
}

#[test]
fn a_byte_order_mark_moves_no_caret() {
    let refused = refusal("\u{feff}seed = -1\n", &[]);
    assert!(
        refused.contains("r.toml:1:") && refused.contains("must be at least 0"),
        "{refused}"
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_without_end_is_an_error() {
    let refused = Recipe::load("/dev/zero", &[]).unwrap_err().to_string();
    assert!(refused.contains("larger than 1 MiB"), "{refused}");
}

#[test]
fn deep_nesting_is_an_error() {
    let deep = format!("seed = {}", "[".repeat(100_000));
    assert!(refusal(&deep, &[]).contains("error: "));
    let deep = format!("{} = 1", vec!["a"; 100_000].join("."));
    assert!(refusal(&deep, &[]).contains("error: "));
}

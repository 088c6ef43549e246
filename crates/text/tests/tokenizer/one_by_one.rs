//! Text of tokens as they come.

use ferrotune_text::{Detokenizer, Special};

use crate::made::{bytes, characters, load};

#[test]
fn text_of_tokens_one_by_one_is_the_text_of_all() {
    let (by_bytes, marks) = (load(&bytes()), load(&characters("abc é€", "a")));
    for (tokenizer, text) in [
        (&by_bytes, "Grüße, 😀 und \u{fffd}€ \n\u{0}é"),
        (&marks, "a b  c é€"),
    ] {
        let ids = tokenizer.encode(text, false).unwrap();
        let mut detokenizer = Detokenizer::new(tokenizer, Special::Keep);
        let mut found = String::new();
        for (n, &id) in ids.iter().enumerate() {
            found.push_str(&detokenizer.push(id).unwrap());
            let so_far = tokenizer.decode(&ids[..=n], Special::Keep).unwrap();
            assert_eq!(found, so_far.trim_end_matches('\u{fffd}'), "after {n}");
        }
        found.push_str(&detokenizer.finish().unwrap());
        assert_eq!(found, text);
    }
    // Half a letter is held back, and given out when it stays half; an id without a token is a mark.
    let ids = by_bytes.encode("😀", false).unwrap();
    let mut detokenizer = Detokenizer::new(&by_bytes, Special::Keep);
    assert_eq!(detokenizer.push(ids[0]).unwrap(), "");
    assert_eq!(detokenizer.finish().unwrap(), "\u{fffd}");
    assert_eq!(detokenizer.push(ids[0]).unwrap(), "");
    assert_eq!(detokenizer.push(99_999).unwrap(), "\u{fffd}\u{fffd}");
}

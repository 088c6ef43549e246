//! What settings are called.

use ferrotune_batch::{Assembler, Blocks, OrderKind, PadPosition};

#[test]
fn names() {
    assert_eq!("packed".parse(), Ok(Assembler::Packed));
    assert_eq!("padded".parse(), Ok(Assembler::Padded));
    assert_eq!("end".parse(), Ok(PadPosition::End));
    assert_eq!("start".parse(), Ok(PadPosition::Start));
    let wrong = "middle".parse::<PadPosition>().unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "unknown pad_position `middle`; known: end, start"
    );
    assert!("Packed".parse::<Assembler>().is_err());
}

#[test]
fn names_of_orders_and_blocks() {
    for kind in OrderKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    assert_eq!(
        "striped".parse::<OrderKind>().unwrap_err().to_string(),
        "unknown order `striped`; known: contiguous, dual_chunk_swap, balanced"
    );
    assert_eq!(
        "1024x4096".parse(),
        Ok(Blocks {
            queries: 1024,
            keys: 4096
        })
    );
    for wrong in ["", "1024", "0x8", "8x0", "8x8x8", "8X8", "-1x8", "8 x 8"] {
        assert!(wrong.parse::<Blocks>().is_err(), "{wrong}");
    }
}

//! Operations that contain regions: loops, branches, blocks whose values are recomputed, functions
//! with their own derivative, regions that each device runs for itself.

pub(crate) mod block;
pub(crate) mod cond;
pub(crate) mod custom_vjp;
pub(crate) mod manual;
pub(crate) mod scan;
pub(crate) mod while_loop;

use crate::tensor_type::TensorType;

/// Refuses two lists of types that must be equal. `law` says so; each list bears where its types are from.
#[track_caller]
fn check_equal(law: &str, a: (&[TensorType], &str), b: (&[TensorType], &str)) {
    let ((a, in_a), (b, in_b)) = (a, b);
    assert!(
        a.len() == b.len(),
        "{law}: there are {} {in_a} and {} {in_b}",
        a.len(),
        b.len()
    );
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!(x == y, "{law}: number {i} is {x} {in_a} and {y} {in_b}");
    }
}

//! Reading and adding by index: batching, label pick, permutations, empty tables, indices outside of the table.

use ferrotune_graph::{DType, HostArray};

use crate::check::run;

fn s32(dims: &[usize], values: &[i32]) -> HostArray {
    HostArray::from_slice(dims, values).unwrap()
}

#[test]
fn each_batch_row_reads_its_own_table() {
    let table = s32(&[2, 3, 2], &(0..12).collect::<Vec<_>>());
    let ids = s32(&[2, 4], &[2, 0, 0, 1, 1, 2, 1, 0]);
    let out = run("take_along", &[table, ids], |_, x| {
        let labels = x[1].slice(1, 0, 3);
        let flat = x[0].reshape(&[2, 3, 2]);
        vec![
            x[0].take_along(1, &x[1]),
            flat.take_along(2, &labels.minimum(&labels.scalar_like(1.0))),
        ]
    });
    assert_eq!(out[0].dims(), [2, 4, 2]);
    assert_eq!(
        out[0].as_slice::<i32>(),
        [4, 5, 0, 1, 0, 1, 2, 3, 8, 9, 10, 11, 8, 9, 6, 7]
    );
    // No dimension of their own: one element for each place of the batch, the label pick.
    assert_eq!(out[1].dims(), [2, 3]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 2, 4, 7, 9, 11]);
}

#[test]
fn indices_may_have_several_dimensions() {
    let out = run("take_grid", &[s32(&[2, 3], &[1, 2, 3, 4, 5, 6])], |g, x| {
        let ids = g.constant(s32(&[2, 2, 2], &[0, 1, 2, 0, 2, 2, 1, 1]));
        let read = x[0].take_along(1, &ids);
        let added = x[0].scatter_add_along(1, &ids, &read);
        vec![read, added]
    });
    assert_eq!(out[0].as_slice::<i32>(), [1, 2, 3, 1, 6, 6, 5, 5]);
    assert_eq!(out[1].as_slice::<i32>(), [3, 4, 6, 4, 15, 18]);
}

#[test]
fn a_permutation_and_its_inverse_give_back_the_rows_without_a_scatter() {
    let rows = s32(&[3, 2], &[1, 2, 3, 4, 5, 6]);
    let out = run("permute", &[rows], |g, x| {
        let (order, back) = (
            g.constant(s32(&[3], &[2, 0, 1])),
            g.constant(s32(&[3], &[1, 2, 0])),
        );
        let moved = x[0].permute_rows(&order, &back);
        vec![moved.clone(), moved.permute_rows(&back, &order)]
    });
    assert_eq!(out[0].as_slice::<i32>(), [5, 6, 1, 2, 3, 4]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn nothing_may_be_read_from_anything_and_added_to_nothing() {
    let out = run(
        "nothing",
        &[s32(&[0, 2], &[]), s32(&[3, 2], &[1; 6])],
        |g, x| {
            let none = g.full(0.0, DType::S32, &[0]);
            vec![
                x[0].take(&none),
                x[1].take(&none),
                x[1].scatter_add_rows(&none, &x[0]),
            ]
        },
    );
    assert_eq!((out[0].dims(), out[1].dims()), (&[0, 2][..], &[0, 2][..]));
    assert_eq!(out[2].as_slice::<i32>(), [1; 6]);
}

#[test]
fn indices_outside_are_clamped_when_read_and_dropped_when_added() {
    let out = run("outside", &[s32(&[3], &[1, 2, 3])], |g, x| {
        let ids = g.constant(s32(&[3], &[-1, 7, 1]));
        vec![
            x[0].take(&ids),
            x[0].scatter_add_rows(&ids, &g.full(10.0, DType::S32, &[3])),
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [1, 3, 2]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 12, 3]);
}

#[test]
#[should_panic(expected = "must begin with the dimensions [2]")]
fn indices_of_another_batch_are_refused() {
    run("batch", &[s32(&[2, 3], &[0; 6])], |g, x| {
        vec![x[0].take_along(1, &g.full(0.0, DType::S32, &[3, 1]))]
    });
}

#[test]
#[should_panic(expected = "axis 2 of tensor<2x3xi32>")]
fn an_axis_that_is_not_there_is_refused() {
    run("axis", &[s32(&[2, 3], &[0; 6])], |g, x| {
        vec![x[0].take_along(2, &g.full(0.0, DType::S32, &[2, 3, 1]))]
    });
}

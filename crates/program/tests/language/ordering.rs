//! Largest, smallest, first, sorted: equal elements, NaN, zeros of both signs, empty axes.

use ferrotune_graph::{DType, HostArray};

use crate::check::run;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn s32(dims: &[usize], values: &[i32]) -> HostArray {
    HostArray::from_slice(dims, values).unwrap()
}

fn f32s(dims: &[usize], values: &[f32]) -> HostArray {
    HostArray::from_slice(dims, values).unwrap()
}

#[test]
fn the_smallest_of_equals_is_the_first() {
    let x = f32s(&[2, 4], &[4.0, 1.0, 1.0, 2.0, INF, INF, INF, INF]);
    let out = run("argmin", &[x], |_, x| vec![x[0].argmin(1), x[0].argmin(0)]);
    assert_eq!(out[0].as_slice::<i32>(), [1, 0]);
    assert_eq!(out[1].as_slice::<i32>(), [0, 0, 0, 0]);
}

#[test]
fn a_nan_is_found_as_the_largest_and_as_the_smallest_and_the_first_of_several() {
    let x = f32s(
        &[3, 5],
        &[
            1.0, NAN, 9.0, NAN, INF, NAN, NAN, NAN, NAN, NAN, -INF, 2.0, -NAN, 0.0, 1.0,
        ],
    );
    let out = run("arg_nan", &[x], |_, x| vec![x[0].argmax(1), x[0].argmin(1)]);
    assert_eq!(out[0].as_slice::<i32>(), [1, 0, 2]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 0, 2]);
}

#[test]
fn places_of_extremes_are_right_on_long_axes() {
    // Long enough that the plugin splits the axis among threads and vector lanes.
    let n = 100_003;
    let mut values: Vec<f32> = (0..n).map(|i| (i * 7919 % 1000) as f32).collect();
    values[70_001] = 2000.0;
    values[90_001] = 2000.0;
    values[60_001] = -5.0;
    values[80_001] = -5.0;
    let out = run("arg_long", &[f32s(&[n], &values)], |_, x| {
        vec![x[0].argmax(0), x[0].argmin(0)]
    });
    assert_eq!(out[0].as_slice::<i32>(), [70_001]);
    assert_eq!(out[1].as_slice::<i32>(), [60_001]);
}

#[test]
fn unsigned_numbers_are_compared_without_sign() {
    let x = HostArray::from_slice(&[3], &[1_u32, u32::MAX, 5]).unwrap();
    let out = run("unsigned", &[x], |_, x| {
        vec![
            x[0].argmax(0),
            x[0].argmin(0),
            x[0].sort_by_key(&[], 0, false).0.convert(DType::S64),
            x[0].cumulative_max(0).convert(DType::S64),
            x[0].top_k(1).1,
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [1]);
    assert_eq!(out[1].as_slice::<i32>(), [0]);
    assert_eq!(out[2].as_slice::<i64>(), [1, 5, 4_294_967_295]);
    assert_eq!(out[3].as_slice::<i64>(), [1, 4_294_967_295, 4_294_967_295]);
    assert_eq!(out[4].as_slice::<i32>(), [1]);
}

#[test]
fn running_extremes_and_sums_run_along_their_axis() {
    let x = s32(&[2, 3], &[3, -1, 5, -4, 2, 2]);
    let out = run("running", &[x], |_, x| {
        vec![
            x[0].cumulative_max(1),
            x[0].cumulative_min(1),
            x[0].cumulative_max(0),
            x[0].cumulative_sum(0),
            x[0].reverse(1).cumulative_sum(1).reverse(1),
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [3, 3, 5, -4, 2, 2]);
    assert_eq!(out[1].as_slice::<i32>(), [3, -1, -1, -4, -4, -4]);
    assert_eq!(out[2].as_slice::<i32>(), [3, -1, 5, 3, 2, 5]);
    assert_eq!(out[3].as_slice::<i32>(), [3, -1, 5, -1, 1, 7]);
    assert_eq!(out[4].as_slice::<i32>(), [7, 4, 5, 0, 4, 2]);
}

#[test]
fn running_values_of_a_long_axis_agree_with_the_host() {
    let n = 5000;
    let values: Vec<i32> = (0..n).map(|i| (i * 7919 % 1013) - 500 + i / 9).collect();
    let out = run("running_long", &[s32(&[5000], &values)], |_, x| {
        vec![
            x[0].cumulative_sum(0),
            x[0].cumulative_max(0),
            x[0].cumulative_min(0),
        ]
    });
    let (mut sum, mut most, mut least) = (0, i32::MIN, i32::MAX);
    for (i, v) in values.into_iter().enumerate() {
        (sum, most, least) = (sum + v, most.max(v), least.min(v));
        let found = [&out[0], &out[1], &out[2]].map(|o| o.as_slice::<i32>()[i]);
        assert_eq!(found, [sum, most, least], "element {i}");
    }
}

#[test]
fn the_cotangent_of_a_running_extreme_goes_to_the_first_of_equals() {
    let x = f32s(&[5], &[1.0, 1.0, 3.0, 3.0, 2.0]);
    let weights = f32s(&[5], &[1.0, 10.0, 100.0, 1000.0, 10_000.0]);
    let out = run("running_ties", &[x, weights], |g, x| {
        let most = (x[0].cumulative_max(0) * &x[1]).sum_all();
        let least = ((-&x[0]).cumulative_min(0) * &x[1]).sum_all();
        [most, least]
            .map(|y| g.grad(&y, &[&x[0]]).remove(0))
            .to_vec()
    });
    assert_eq!(out[0].as_slice::<f32>(), [11.0, 0.0, 11_100.0, 0.0, 0.0]);
    assert_eq!(out[1].as_slice::<f32>(), [-11.0, 0.0, -11_100.0, 0.0, 0.0]);
}

#[test]
fn equal_keys_keep_their_order_in_both_directions() {
    let keys = s32(&[6], &[2, 1, 2, 1, 3, 2]);
    let out = run("stable", &[keys], |g, x| {
        let places = g.iota(DType::S32, &[6], 0);
        let (up, carried_up) = x[0].sort_by_key(&[&places], 0, false);
        let (down, carried_down) = x[0].sort_by_key(&[&places], 0, true);
        vec![up, carried_up[0].clone(), down, carried_down[0].clone()]
    });
    assert_eq!(out[0].as_slice::<i32>(), [1, 1, 2, 2, 2, 3]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 3, 0, 2, 5, 4]);
    assert_eq!(out[2].as_slice::<i32>(), [3, 2, 2, 2, 1, 1]);
    assert_eq!(out[3].as_slice::<i32>(), [4, 0, 2, 5, 1, 3]);
}

#[test]
fn many_equal_keys_keep_their_order() {
    // More than a plugin sorts by insertion, which is stable by itself.
    let n = 3000;
    let values: Vec<i32> = (0..n).map(|i| i * 7919 % 5).collect();
    let out = run("stable_long", &[s32(&[3000], &values)], |g, x| {
        let places = g.iota(DType::S32, &[3000], 0);
        let sorted = |descending| x[0].sort_by_key(&[&places], 0, descending).1.remove(0);
        vec![sorted(false), sorted(true)]
    });
    let mut places: Vec<i32> = (0..n).collect();
    places.sort_by_key(|i| values[*i as usize]);
    assert_eq!(out[0].as_slice::<i32>(), places);
    places.sort();
    places.sort_by_key(|i| -values[*i as usize]);
    assert_eq!(out[1].as_slice::<i32>(), places);
}

#[test]
fn nan_sorts_as_the_largest_and_zeros_of_both_signs_are_equal() {
    let keys = f32s(&[7], &[NAN, 0.0, -INF, -0.0, -NAN, INF, -1.0]);
    let out = run("sort_nan", &[keys], |g, x| {
        let places = g.iota(DType::S32, &[7], 0);
        let sorted = |descending| x[0].sort_by_key(&[&places], 0, descending).1.remove(0);
        vec![sorted(false), sorted(true)]
    });
    assert_eq!(out[0].as_slice::<i32>(), [2, 6, 1, 3, 5, 0, 4]);
    assert_eq!(out[1].as_slice::<i32>(), [0, 4, 5, 1, 3, 6, 2]);
}

#[test]
fn the_largest_elements_come_in_order_and_equal_ones_by_their_place() {
    let x = f32s(
        &[2, 6],
        &[1.0, 7.0, 3.0, 7.0, 3.0, 3.0, NAN, -0.0, 0.0, INF, -NAN, 0.0],
    );
    let out = run("top_k", &[x], |_, x| {
        let (values, places) = x[0].top_k(4);
        vec![values, places, x[0].top_k(0).0]
    });
    assert_eq!(out[0].as_slice::<f32>()[..4], [7.0, 7.0, 3.0, 3.0]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 3, 2, 4, 0, 3, 2, 5]);
    assert_eq!(out[2].dims(), [2, 0]);
}

#[test]
fn the_largest_of_integers_and_narrow_floats() {
    let ints = s32(&[4], &[-3, 8, -9, 8]);
    let out = run("top_k_types", &[ints], |_, x| {
        let narrow = x[0].convert(DType::BF16).top_k(2);
        vec![
            x[0].top_k(3).0,
            x[0].top_k(3).1,
            narrow.0.convert(DType::F32),
            narrow.1,
        ]
    });
    assert_eq!(out[0].as_slice::<i32>(), [8, 8, -3]);
    assert_eq!(out[1].as_slice::<i32>(), [1, 3, 0]);
    assert_eq!(out[2].as_slice::<f32>(), [8.0, 8.0]);
    assert_eq!(out[3].as_slice::<i32>(), [1, 3]);
}

#[test]
fn empty_axes_stay_empty() {
    let x = f32s(&[2, 0], &[]);
    let out = run("empty", &[x], |g, x| {
        let y = x[0].cumulative_max(1) + x[0].cumulative_sum(1) + x[0].sort_by_key(&[], 1, true).0;
        let d = g.grad(&y.sum_all(), &[&x[0]]).remove(0);
        vec![y, d, x[0].cumulative_min(0), x[0].argmax(0)]
    });
    assert!(out.iter().take(3).all(|o| o.dims() == [2, 0]));
    assert_eq!(out[3].dims(), [0]);
}

#[test]
#[should_panic(expected = "axis 1 of tensor<4xf32>")]
fn an_axis_that_is_not_there_is_refused_with_the_type() {
    run("axis", &[f32s(&[4], &[0.0; 4])], |_, x| {
        vec![x[0].argmin(1)]
    });
}

#[test]
#[should_panic(expected = "axis 2 of tensor<4xf32>")]
fn a_sort_along_an_axis_that_is_not_there_is_refused() {
    run("axis", &[f32s(&[4], &[0.0; 4])], |_, x| {
        vec![x[0].sort_by_key(&[], 2, false).0]
    });
}

#[test]
#[should_panic(expected = "has no 5 elements")]
fn more_than_there_are_cannot_be_the_largest() {
    run("many", &[f32s(&[4], &[0.0; 4])], |_, x| {
        vec![x[0].top_k(5).0]
    });
}

#[test]
#[should_panic(expected = "other dimensions than the keys")]
fn what_is_carried_has_the_dimensions_of_the_keys() {
    run("carried", &[f32s(&[4], &[0.0; 4])], |_, x| {
        vec![x[0].sort_by_key(&[&x[0].slice(0, 0, 3)], 0, false).0]
    });
}

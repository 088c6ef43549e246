//! Worked numbers of the literature and of other implementations.

use super::Estimator::{GroupMean, GroupNorm, Rloo};
use super::*;

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance, "{found:?} against {expected:?}");
    }
}

#[test]
fn each_estimator_gives_the_published_numbers() {
    let rewards = [0.5745, 0.0997, 0.7420];
    assert_close(
        &GroupNorm.advantages(&rewards, 3).unwrap(),
        &[0.3075, -1.1176, 0.8101],
        1e-4,
    );
    assert_close(
        &GroupMean.advantages(&rewards, 3).unwrap(),
        &[0.10245, -0.37237, 0.26992],
        3e-5,
    );
    let counting = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_close(
        &Rloo.advantages(&counting, 3).unwrap(),
        &[-1.5, 0.0, 1.5, -1.5, 0.0, 1.5],
        0.0,
    );
}

#[test]
fn three_right_answers_of_eight_compare_as_worked_out_by_hand() {
    let rewards = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    for (estimator, right, wrong) in [
        (Rloo, 0.7143, -0.4286),
        (GroupMean, 0.625, -0.375),
        (GroupNorm, 1.2076, -0.7246),
    ] {
        let expected = [right, right, right, wrong, wrong, wrong, wrong, wrong];
        assert_close(&estimator.advantages(&rewards, 8).unwrap(), &expected, 5e-5);
    }
}

#[test]
fn groups_do_not_touch_each_other() {
    for estimator in [GroupNorm, GroupMean, Rloo] {
        let both = estimator
            .advantages(&[1.0, 0.0, 0.5, 7.0, 9.0, 3.0], 3)
            .unwrap();
        assert_eq!(
            both[..3],
            estimator.advantages(&[1.0, 0.0, 0.5], 3).unwrap()
        );
        assert_eq!(
            both[3..],
            estimator.advantages(&[7.0, 9.0, 3.0], 3).unwrap()
        );
        assert_close(
            &[both[..3].iter().sum(), both[3..].iter().sum()],
            &[0.0, 0.0],
            1e-5,
        );
    }
}

#[test]
fn equal_rewards_give_exact_zeros() {
    for estimator in [GroupNorm, GroupMean, Rloo] {
        for reward in [0.1, -0.3, 1.0 / 3.0, 1e-30, 1e30] {
            for size in [2, 3, 7, 1000] {
                assert_eq!(
                    estimator.advantages(&vec![reward; size], size).unwrap(),
                    vec![0.0; size]
                );
            }
        }
        assert_eq!(estimator.advantages(&[], 3).unwrap(), [0.0f32; 0]);
    }
}

#[test]
fn what_is_not_a_group_of_finite_rewards_is_refused() {
    assert!(matches!(
        GroupNorm.advantages(&[1.0], 1),
        Err(Error::GroupSize { size: 1 })
    ));
    assert!(matches!(
        GroupNorm.advantages(&[], 0),
        Err(Error::GroupSize { size: 0 })
    ));
    assert!(matches!(
        Rloo.advantages(&[1.0; 5], 2),
        Err(Error::PartialGroup {
            rewards: 5,
            group_size: 2
        })
    ));
    let error = GroupMean
        .advantages(&[1.0, 0.0, f32::NAN, 0.0], 2)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "reward 2 (group 1) is NaN: a checker must return a finite number"
    );
}

#[test]
fn the_names_in_a_recipe_are_these() {
    let names = [GroupNorm, GroupMean, Rloo].map(|e| serde_json::to_string(&e).unwrap());
    assert_eq!(names, ["\"group_norm\"", "\"group_mean\"", "\"rloo\""]);
}

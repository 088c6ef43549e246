//! Columns that do not hold what their field holds.

use ferrotune_batch::{Column, Field, Packing, Trajectory, Values};

use crate::refusal;

#[test]
fn columns_of_whole_numbers() {
    let document = || Trajectory::document(vec![1, 2, 3]);
    let versions = |values| Column::new(Values::S32(values));
    let mut batch = [document(), document(), document()];
    batch[0] = document()
        .with_policy_version(4)
        .with_expert_ids(4, &[0; 12]);
    batch[1] = document().with_expert_ids(2, &[0, -1, -2, 0, 0]);
    batch[1]
        .fields
        .set_column(Field::PolicyVersion, versions(vec![0, -1]));
    batch[2] = document()
        .with_policy_version(0)
        .with_expert_ids(4, &[7; 16]);
    assert_eq!(
        refusal(&Packing::packed(4), &batch).to_string(),
        "5 problems with the batch:\n  \
         - trajectory 1: policy_version has 2 values for 3 tokens; give one value a token\n  \
         - trajectory 1: policy_version is -1 at token 1; the least is 0\n  \
         - trajectory 1: expert_ids is -2 at token 1; the least is -1\n  \
         - trajectory 2: expert_ids has 16 values for 3 tokens; give 4 values a token\n  \
         - trajectory 1: expert_ids has 2 values a token, and trajectory 0 has 4 values; give all as many"
    );
}

#[test]
#[should_panic(expected = "field policy_version holds S32, not F32")]
fn a_column_of_another_kind_is_a_fault_of_the_caller() {
    let _ = Trajectory::document(vec![1]).with(Field::PolicyVersion, vec![1.0]);
}

#[test]
#[should_panic(expected = "field expert_ids needs at least one value a token")]
fn a_column_without_width_is_a_fault_of_the_caller() {
    let _ = Trajectory::document(vec![1]).with_expert_ids(0, &[]);
}

#[test]
#[should_panic(expected = "field expert_ids holds no floats")]
fn ids_are_not_read_as_floats() {
    let it = Trajectory::document(vec![1]).with_expert_ids(1, &[]);
    it.fields.get(Field::ExpertIds);
}

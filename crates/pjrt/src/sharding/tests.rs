use super::Sharding;
use crate::{Error, Mesh};

fn sharding(dims: &[&[&str]]) -> Sharding {
    Sharding {
        dims: dims
            .iter()
            .map(|axes| axes.iter().map(|&axis| axis.to_owned()).collect())
            .collect(),
    }
}

fn mesh() -> Mesh {
    Mesh::new(&[("data", 2), ("fsdp", 4)]).unwrap()
}

#[test]
fn each_dimension_is_divided_by_the_product_of_its_axes() {
    let local = |s: &[&[&str]], dims: &[usize]| sharding(s).local_dims(&mesh(), dims).unwrap();
    assert_eq!(local(&[&["data"], &[]], &[6, 5]), [3, 5]);
    assert_eq!(local(&[&["data", "fsdp"], &[]], &[16, 5]), [2, 5]);
    assert_eq!(local(&[&["fsdp"], &["data"]], &[4, 2]), [1, 1]);
    assert_eq!(local(&[&["data"]], &[0]), [0]);
    assert_eq!(
        Sharding::replicated(2)
            .local_dims(&mesh(), &[3, 5])
            .unwrap(),
        [3, 5]
    );
    assert_eq!(
        Sharding::replicated(0)
            .local_dims(&Mesh::single(), &[])
            .unwrap(),
        [0usize; 0]
    );
}

#[test]
fn what_does_not_fit_is_refused_with_the_place() {
    let refused =
        |s: &[&[&str]], dims: &[usize]| sharding(s).local_dims(&mesh(), dims).unwrap_err();
    assert!(matches!(
        refused(&[&[]], &[2, 2]),
        Error::ShardingRank {
            sharding: 1,
            array: 2
        }
    ));
    assert!(matches!(
        refused(&[&[], &["expert"]], &[2, 2]),
        Error::UnknownAxis { dim: 1, .. }
    ));
    assert!(matches!(
        refused(&[&["data"], &["data"]], &[2, 2]),
        Error::AxisUsedTwice { .. }
    ));
    assert!(matches!(
        refused(&[&["data", "data"]], &[4]),
        Error::AxisUsedTwice { .. }
    ));
    let error = refused(&[&[], &["data", "fsdp"]], &[2, 12]);
    assert_eq!(
        error.to_string(),
        "dimension 1 of size 12 cannot be split 8 ways over data, fsdp; make it a multiple of 8"
    );
}

#[test]
fn it_prints_as_shardy_writes_it() {
    assert_eq!(
        sharding(&[&["data", "fsdp"], &[]]).to_string(),
        r#"[{"data", "fsdp"}, {}]"#
    );
    assert_eq!(Sharding::replicated(0).to_string(), "[]");
}

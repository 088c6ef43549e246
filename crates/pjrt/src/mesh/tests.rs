use super::Mesh;
use crate::Error;

#[test]
fn devices_are_row_major_over_the_axes() {
    let mesh = Mesh::new(&[("a", 2), ("b", 3)]).unwrap();
    let all: Vec<Vec<usize>> = (0..6).map(|device| mesh.coordinates(device)).collect();
    assert_eq!(all, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
    assert_eq!(Mesh::single().coordinates(0), [0usize; 0]);
}

#[test]
fn a_mesh_knows_its_axes() {
    let mesh = Mesh::new(&[("data", 2), ("fsdp", 4)]).unwrap();
    assert_eq!(
        (
            mesh.device_count(),
            mesh.axis_size("fsdp"),
            mesh.axis_size("x")
        ),
        (8, Some(4), None)
    );
    assert_eq!(mesh.to_string(), "data=2 fsdp=4");
    assert_eq!(
        mesh,
        Mesh::new(&[("data".to_owned(), 2), ("fsdp".to_owned(), 4)]).unwrap()
    );
    assert_ne!(mesh, Mesh::new(&[("fsdp", 4), ("data", 2)]).unwrap());
    assert_eq!(Mesh::new::<&str>(&[]).unwrap(), Mesh::single());
}

#[test]
fn what_cannot_be_a_mesh_is_refused() {
    let refused = |axes: &[(&str, usize)]| Mesh::new(axes).unwrap_err();
    for name in ["", "a b", "a\"", "1a", "_"] {
        assert!(
            matches!(refused(&[(name, 2)]), Error::AxisName { .. }),
            "{name:?}"
        );
    }
    assert!(matches!(
        refused(&[("a", 2), ("a", 2)]),
        Error::AxisRepeated { .. }
    ));
    assert!(matches!(
        refused(&[("a", 0)]),
        Error::AxisSize { size: 0, .. }
    ));
    assert!(matches!(refused(&[("a", 1 << 40)]), Error::AxisSize { .. }));
    assert!(matches!(
        refused(&[("a", usize::MAX), ("b", 2)]),
        Error::AxisSize { .. }
    ));
}

use super::Placement;
use crate::{Mesh, Sharding};

fn sharding(dims: &[&str]) -> Sharding {
    Sharding {
        dims: dims
            .iter()
            .map(|axes| axes.split_whitespace().map(str::to_owned).collect())
            .collect(),
    }
}

/// Meshes of 1, 2, 4 and 8 devices, with up to three axes.
fn meshes() -> Vec<Mesh> {
    vec![
        Mesh::single(),
        Mesh::new(&[("a", 2)]).unwrap(),
        Mesh::new(&[("a", 2), ("b", 2)]).unwrap(),
        Mesh::new(&[("a", 2), ("b", 4)]).unwrap(),
        Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]).unwrap(),
        Mesh::new(&[("a", 1), ("b", 8)]).unwrap(),
    ]
}

/// Every sharding of three dimensions that uses axes of the mesh, in both orders where two split one dimension.
fn shardings(mesh: &Mesh) -> Vec<Sharding> {
    let candidates: [&[&str]; 9] = [
        &["", "", ""],
        &["a", "", ""],
        &["", "a", ""],
        &["", "", "a"],
        &["a", "b", ""],
        &["", "b", "a"],
        &["a b", "", ""],
        &["", "b a", ""],
        &["c", "", "b a"],
    ];
    let known = |s: &Sharding| {
        s.dims
            .iter()
            .flatten()
            .all(|axis| mesh.axis_size(axis).is_some())
    };
    candidates
        .iter()
        .map(|dims| sharding(dims))
        .filter(known)
        .collect()
}

/// The global index of the element at `local` on a device, worked out from the definition.
fn global_index(
    mesh: &Mesh,
    s: &Sharding,
    local_dims: &[usize],
    device: usize,
    local: [usize; 3],
) -> [usize; 3] {
    let at = mesh.coordinates(device);
    let mut global = local;
    for dim in 0..3 {
        let mut part = 0;
        for name in &s.dims[dim] {
            let axis = mesh.axis(name).unwrap();
            part = part * mesh.axes()[axis].1 + at[axis];
        }
        global[dim] += part * local_dims[dim];
    }
    global
}

#[test]
fn cutting_takes_the_elements_that_the_definition_names() {
    const DIMS: [usize; 3] = [8, 8, 16];
    // Two-byte elements, each its own index.
    let global: Vec<u8> = (0..8u16 * 8 * 16).flat_map(u16::to_le_bytes).collect();
    for mesh in meshes() {
        for s in shardings(&mesh) {
            let placement = Placement::new(&mesh, &s, &DIMS).unwrap();
            let [l0, l1, l2] = placement.local[..] else {
                panic!("three dimensions")
            };
            let mut rebuilt = vec![0xff; global.len()];
            for device in 0..mesh.device_count() {
                let mut part = vec![0; l0 * l1 * l2 * 2];
                placement.cut(device, 2, &global, &mut part);
                let mut elements = part
                    .chunks_exact(2)
                    .map(|b| u16::from_le_bytes([b[0], b[1]]));
                for i in 0..l0 {
                    for j in 0..l1 {
                        for k in 0..l2 {
                            let [x, y, z] =
                                global_index(&mesh, &s, &placement.local, device, [i, j, k]);
                            let expected = (x * 8 + y) * 16 + z;
                            assert_eq!(
                                elements.next(),
                                Some(expected as u16),
                                "{mesh} {s} device {device}"
                            );
                        }
                    }
                }
                if let Some(offset) = placement.contiguous(device, 2) {
                    assert_eq!(
                        part,
                        global[offset..offset + part.len()],
                        "{mesh} {s} device {device}"
                    );
                }
                if placement.first_holder[device] {
                    placement.paste(device, 2, &part, &mut rebuilt);
                }
            }
            assert_eq!(rebuilt, global, "{mesh} {s}");
        }
    }
}

#[test]
fn each_part_has_exactly_one_first_holder() {
    for mesh in meshes() {
        for s in shardings(&mesh) {
            let placement = Placement::new(&mesh, &s, &[8, 8, 16]).unwrap();
            let parts = 8 * 8 * 16 / placement.local.iter().product::<usize>();
            let holders = placement
                .first_holder
                .iter()
                .filter(|&&first| first)
                .count();
            assert_eq!(holders, parts, "{mesh} {s}");
            let starts = |device: usize| &placement.starts[device];
            for device in 0..mesh.device_count() {
                let first = (0..device).all(|before| starts(before) != starts(device));
                assert_eq!(
                    placement.first_holder[device], first,
                    "{mesh} {s} device {device}"
                );
            }
        }
    }
}

#[test]
fn a_part_is_contiguous_only_when_it_is_one_run() {
    let mesh = Mesh::new(&[("a", 2), ("b", 2)]).unwrap();
    let contiguous = |dims: &[usize], s: &[&str], device| {
        Placement::new(&mesh, &sharding(s), dims)
            .unwrap()
            .contiguous(device, 4)
    };
    assert_eq!(contiguous(&[4, 6], &["a", ""], 3), Some(48));
    assert_eq!(contiguous(&[4, 6], &["", ""], 3), Some(0));
    assert_eq!(contiguous(&[4, 6], &["", "b"], 1), None);
    assert_eq!(contiguous(&[1, 6], &["", "b"], 1), Some(12));
    assert_eq!(contiguous(&[2, 6], &["a", "b"], 3), Some(36));
    assert_eq!(contiguous(&[4, 6], &["a", "b"], 3), None);
    assert_eq!(contiguous(&[], &[], 2), Some(0));
}

#[test]
fn empty_arrays_have_nothing_to_copy() {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let placement = Placement::new(&mesh, &sharding(&["", "a", ""]), &[3, 4, 0]).unwrap();
    placement.cut(1, 4, &[], &mut []);
    placement.paste(1, 4, &[], &mut []);
}

//! Rows on the device.

use ferrotune_batch::{Field, Rows};
use ferrotune_graph::{DType, HostArray, Mesh, PlacementError, Rules, Tensor};
use ferrotune_nn::Sequence;
use ferrotune_pjrt::Client;
use ferrotune_program::{Group, Layout, Leaf};

use crate::error::Error;

/// Arguments of a program that reads rows, in the order of [`layout`].
pub(crate) struct RowTensors {
    pub(crate) token_ids: Tensor,
    pub(crate) sequence: Sequence,
    pub(crate) loss_weight: Tensor,
    pub(crate) fields: Vec<(Field, Tensor)>,
}

/// The arrays of `[B,T]` rows that a program with these fields reads.
pub(crate) fn layout(
    mesh: &Mesh,
    rules: &Rules,
    rows: usize,
    width: usize,
    fields: &[Field],
) -> Result<Layout, PlacementError> {
    let leaf = |name: &str, dtype| Leaf::new(name, dtype, &[rows, width], &["batch", "tokens"]);
    let mut leaves = vec![
        leaf("token_ids", DType::S32),
        leaf("segment_ids", DType::S32),
        leaf("positions", DType::S32),
        leaf("loss_weight", DType::F32),
    ];
    leaves.extend(fields.iter().map(|f| leaf(f.name(), DType::F32)));
    Layout::new(mesh, rules, &leaves)
}

impl RowTensors {
    pub(crate) fn new(arguments: &[Tensor], fields: &[Field]) -> Self {
        let [token_ids, segment_ids, positions, loss_weight, rest @ ..] = arguments else {
            unreachable!("the layout of rows has at least four arrays")
        };
        Self {
            token_ids: token_ids.clone(),
            sequence: Sequence {
                segment_ids: segment_ids.clone(),
                positions: positions.clone(),
            },
            loss_weight: loss_weight.clone(),
            fields: fields.iter().copied().zip(rest.iter().cloned()).collect(),
        }
    }
}

/// Copies rows to the devices.
///
/// # Errors
/// A field that the rows have not got, a token id outside of the vocabulary, a failure of the device.
pub(crate) fn upload(
    client: &Client,
    layout: &Layout,
    rows: &Rows,
    fields: &[Field],
    loss: &str,
    vocabulary: usize,
) -> Result<Group, Error> {
    let inside = |id: i32| usize::try_from(id).is_ok_and(|id| id < vocabulary);
    if let Some(at) = rows.token_ids().iter().position(|id| !inside(*id)) {
        let (row, column) = (at / rows.width(), at % rows.width());
        return Err(Error::TokenId {
            id: rows.token_ids()[at],
            row,
            column,
            vocabulary,
        });
    }
    let dims = [rows.row_count(), rows.width()];
    let ints = |values: &[i32]| {
        HostArray::from_slice(&dims, values).map_err(ferrotune_program::Error::from)
    };
    let floats = |values: &[f32]| {
        HostArray::from_slice(&dims, values).map_err(ferrotune_program::Error::from)
    };
    let mut host = vec![
        ints(rows.token_ids())?,
        ints(rows.segment_ids())?,
        ints(rows.positions())?,
        floats(rows.loss_weight())?,
    ];
    for field in fields {
        let missing = || Error::MissingField {
            loss: loss.to_owned(),
            field: field.name(),
        };
        host.push(floats(rows.field(*field).ok_or_else(missing)?)?);
    }
    Ok(Group::upload(client, layout, &host)?)
}

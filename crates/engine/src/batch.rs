//! Rows on the device.

use std::sync::Arc;

use ferrotune_batch::{Column, Field, Rows};
use ferrotune_graph::{DType, HostArray, Mesh, PlacementError, Rules, Tensor};
use ferrotune_nn::Sequence;
use ferrotune_pjrt::{ArraySpec, Client};
use ferrotune_program::{Group, Layout, Leaf};

use crate::error::Error;
use crate::order::{TokenOrder, TokenPlaces};

/// Arguments of a program that reads rows, in the order of [`layout`].
pub(crate) struct RowTensors {
    pub(crate) token_ids: Tensor,
    pub(crate) sequence: Sequence,
    /// The token that each place predicts, −1 for none.
    pub(crate) targets: Tensor,
    /// Of the predicted token, as the fields.
    pub(crate) loss_weight: Tensor,
    /// Experts that tokens were sent to before, s32 `[B,T,N,J]`, if they are to go there again.
    pub(crate) expert_ids: Option<Tensor>,
    pub(crate) fields: Vec<(Field, Tensor)>,
}

/// How many experts are named of each token, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replayed {
    /// `N`: layers with experts.
    pub(crate) layers: usize,
    /// `J`: experts of each token.
    pub(crate) top_k: usize,
    /// Experts of a layer.
    pub(crate) count: usize,
}

/// What a program reads of rows besides tokens, documents and weights.
pub(crate) struct Wanted<'a> {
    /// Fields of one number for each token.
    pub(crate) fields: &'a [Field],
    /// Who reads them, for messages.
    pub(crate) reader: &'a str,
    /// Tokens of the model.
    pub(crate) vocabulary: usize,
    /// Tokens of the longest document that the model reads as it would by itself, if there is one.
    pub(crate) longest: Option<usize>,
    /// The experts, if they are named.
    pub(crate) experts: Option<Replayed>,
    /// How tokens go to devices.
    pub(crate) order: TokenOrder,
}

/// The arrays of `[B,T]` rows that a program with these fields reads.
pub(crate) fn layout(
    mesh: &Mesh,
    rules: &Rules,
    rows: usize,
    width: usize,
    fields: &[Field],
    experts: Option<Replayed>,
) -> Result<Layout, PlacementError> {
    let leaf = |name: &str, dtype| Leaf::new(name, dtype, &[rows, width], &["batch", "tokens"]);
    let mut leaves = vec![
        leaf("token_ids", DType::S32),
        leaf("segment_ids", DType::S32),
        leaf("positions", DType::S32),
        leaf("targets", DType::S32),
        leaf("loss_weight", DType::F32),
    ];
    leaves.extend(fields.iter().map(|f| leaf(f.name(), DType::F32)));
    leaves.extend(experts.map(|it| {
        let dims = [rows, width, it.layers, it.top_k];
        let axes = ["batch", "tokens", "_", "_"];
        Leaf::new(Field::ExpertIds.name(), DType::S32, &dims, &axes)
    }));
    Layout::new(mesh, rules, &leaves)
}

impl RowTensors {
    pub(crate) fn new(arguments: &[Tensor], fields: &[Field]) -> Self {
        let [
            token_ids,
            segment_ids,
            positions,
            targets,
            loss_weight,
            rest @ ..,
        ] = arguments
        else {
            unreachable!("the layout of rows has at least five arrays")
        };
        Self {
            token_ids: token_ids.clone(),
            sequence: Sequence {
                segment_ids: segment_ids.clone(),
                positions: positions.clone(),
            },
            targets: targets.clone(),
            loss_weight: loss_weight.clone(),
            expert_ids: rest.get(fields.len()).cloned(),
            fields: fields.iter().copied().zip(rest.iter().cloned()).collect(),
        }
    }
}

/// Copies rows to the devices, in the order of these; several, of one shape, one behind the other into a layout that stacks
/// as many or more, with zeros behind the last. Also says where the tokens of each stand there.
///
/// # Errors
/// A field that the rows have not got, a token id outside of the vocabulary, a document that is too long, experts that the model
/// has not got, a failure of the device.
pub(crate) fn upload(
    client: &Client,
    layout: &Layout,
    rows: &[Rows],
    wanted: &Wanted<'_>,
) -> Result<(Group, Vec<TokenPlaces>), Error> {
    let each: Result<Vec<_>, Error> = rows.iter().map(|it| arrays(it, wanted)).collect();
    let (each, places): (Vec<Vec<HostArray>>, _) = each?.into_iter().unzip();
    let stacked = |(at, spec): (usize, &Arc<ArraySpec>)| {
        let given: Vec<&[u8]> = each.iter().map(|arrays| arrays[at].bytes()).collect();
        let mut bytes = given.concat();
        let places = spec.dims.iter().product::<usize>();
        bytes.resize(bytes.len().max(places * spec.dtype.bytes()), 0);
        HostArray::new(spec.dtype, spec.dims.clone(), bytes).map_err(ferrotune_program::Error::from)
    };
    let host: Result<Vec<HostArray>, _> = layout.specs().iter().enumerate().map(stacked).collect();
    Ok((Group::upload(client, layout, &host?)?, places))
}

/// The arrays of [`layout`], and the order that they are in.
fn arrays(rows: &Rows, wanted: &Wanted<'_>) -> Result<(Vec<HostArray>, TokenPlaces), Error> {
    let vocabulary = wanted.vocabulary;
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
    if let Some(longest) = wanted.longest {
        let beyond = |(at, segment): (&i32, &i32)| *segment > 0 && *at as usize >= longest;
        let mut places = rows.positions().iter().zip(rows.segment_ids());
        if let Some(at) = places.position(beyond) {
            let row = at / rows.width();
            return Err(Error::LongDocument { row, longest });
        }
    }
    let places = wanted.order.places(rows)?;
    let dims = [rows.row_count(), rows.width()];
    let ints = |values: &[i32]| {
        HostArray::from_slice(&dims, values).map_err(ferrotune_program::Error::from)
    };
    let of_tokens = |values: &[i32]| ints(&places.here(values, 1));
    let of_targets = |values: &[f32]| {
        let values = places.next(values);
        HostArray::from_slice(&dims, &values).map_err(ferrotune_program::Error::from)
    };
    let mut host = vec![
        of_tokens(rows.token_ids())?,
        of_tokens(rows.segment_ids())?,
        of_tokens(rows.positions())?,
        ints(&places.targets(rows))?,
        of_targets(rows.loss_weight())?,
    ];
    let missing = |field: Field| Error::MissingField {
        loss: wanted.reader.to_owned(),
        field: field.name(),
    };
    for field in wanted.fields {
        let values = rows.field(*field).ok_or_else(|| missing(*field))?;
        host.push(of_targets(values)?);
    }
    if let Some(experts) = wanted.experts {
        let column = rows.column(Field::ExpertIds);
        let column = column.ok_or_else(|| missing(Field::ExpertIds))?;
        host.push(expert_ids(rows, column, experts, &places)?);
    }
    Ok((host, places))
}

/// The experts of every token as s32 `[B,T,N,J]`.
fn expert_ids(
    rows: &Rows,
    column: &Column,
    wanted: Replayed,
    places: &TokenPlaces,
) -> Result<HostArray, Error> {
    let Replayed {
        layers,
        top_k,
        count,
    } = wanted;
    let per_token = layers * top_k;
    let ids = column.s16().filter(|_| column.per_token() == per_token);
    let ids = ids.ok_or(Error::ExpertsPerToken {
        found: column.per_token(),
        layers,
        top_k,
    })?;
    let known = |id: i16| id == -1 || usize::try_from(id).is_ok_and(|id| id < count);
    if let Some(at) = ids.iter().position(|id| !known(*id)) {
        let token = at / per_token;
        return Err(Error::ExpertId {
            id: ids[at],
            row: token / rows.width(),
            column: token % rows.width(),
            count,
        });
    }
    let ids = places.here(ids, per_token);
    let ids: Vec<i32> = ids.into_iter().map(i32::from).collect();
    let dims = [rows.row_count(), rows.width(), layers, top_k];
    Ok(HostArray::from_slice(&dims, &ids).map_err(ferrotune_program::Error::from)?)
}

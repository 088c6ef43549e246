//! The table of optional per-token fields, and the columns that are present.
//!
//! To add a field is to add one line to the table below: trajectories, packing, padding, micro-batches, orders, truncation
//! and unpacking all walk [`Field::ALL`].

use crate::column::{Column, Element, Values};

macro_rules! per_token_fields {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $element:ident;)*) => {
        /// An optional per-token field. The value for a token sits at that token's own index.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum Field {
            $($(#[$doc])* $variant,)*
        }

        impl Field {
            /// Every field, in the order of the table.
            pub const ALL: &'static [Field] = &[$(Field::$variant),*];

            /// The name used for program arguments, JSON keys and error messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Field::$variant => $name,)*
                }
            }

            /// What one value is, and with it what padding holds.
            pub fn element(self) -> Element {
                match self {
                    $(Field::$variant => Element::$element,)*
                }
            }
        }
    };
}

per_token_fields! {
    /// How much better than expected the action was.
    Advantage = "advantage", F32;
    /// Log-prob under the policy that the ratio is taken against.
    OldLogprob = "old_logprob", F32;
    /// Log-prob under the frozen reference policy.
    RefLogprob = "ref_logprob", F32;
    /// Log-prob under the distribution that the sampler drew from.
    SamplerLogprob = "sampler_logprob", F32;
    /// What a critic expected before the update.
    Value = "value", F32;
    /// What a critic should have expected.
    Return = "return", F32;
    /// Updates made to the policy that sampled the token.
    PolicyVersion = "policy_version", S32;
    /// The experts that the sampler's router chose, layer by layer; −1 leaves the router free.
    ExpertIds = "expert_ids", S16;
}

impl Field {
    /// The field of that name.
    pub fn from_name(name: &str) -> Option<Field> {
        Field::ALL
            .iter()
            .copied()
            .find(|field| field.name() == name)
    }
}

/// The fields that are present.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fields {
    columns: [Option<Column>; Field::ALL.len()],
}

impl Fields {
    /// The values of a field of floats, if it is present.
    ///
    /// # Panics
    ///
    /// If `field` holds something else: see [`Fields::column`].
    #[track_caller]
    pub fn get(&self, field: Field) -> Option<&[f32]> {
        let values = self.column(field)?.f32();
        Some(values.unwrap_or_else(|| panic!("field {} holds no floats", field.name())))
    }

    /// The column of `field`, if it is present.
    pub fn column(&self, field: Field) -> Option<&Column> {
        self.columns[field as usize].as_ref()
    }

    /// Sets a field of floats, replacing what was there. Lengths are checked when the trajectory is packed.
    ///
    /// # Panics
    ///
    /// If `field` holds something else.
    #[track_caller]
    pub fn set(&mut self, field: Field, values: Vec<f32>) {
        self.set_column(field, Column::new(Values::F32(values)));
    }

    /// Sets `field`, replacing what was there. Lengths are checked when the trajectory is packed.
    ///
    /// # Panics
    ///
    /// If `field` holds something else than the column does.
    #[track_caller]
    pub fn set_column(&mut self, field: Field, column: Column) {
        field.expect(&column);
        self.columns[field as usize] = Some(column);
    }

    /// Takes `field` out.
    pub fn remove(&mut self, field: Field) -> Option<Column> {
        self.columns[field as usize].take()
    }

    /// The fields that are present, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (Field, &Column)> {
        Field::ALL
            .iter()
            .filter_map(|&field| Some((field, self.column(field)?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Column> {
        self.columns.iter_mut().flatten()
    }

    /// `tokens` tokens of padding for every field that is present here.
    pub(crate) fn padding(&self, tokens: usize) -> Fields {
        let mut fields = Fields::default();
        for (field, column) in self.iter() {
            fields.set_column(field, column.padding(tokens));
        }
        fields
    }
}

//! The table of optional per-token fields, and the arrays that hold them.
//!
//! To add a field is to add one line to the table below: trajectories, packing, padding, micro-batches, truncation and
//! unpacking all walk [`Field::ALL`]. Left out: fields that are not one `f32` a token.

macro_rules! per_token_fields {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// An optional per-token field. The value for a token sits at that token's own index; padding holds 0.
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
        }
    };
}

per_token_fields! {
    /// How much better than expected the action was.
    Advantage = "advantage";
    /// Log-prob under the policy that the ratio is taken against.
    OldLogprob = "old_logprob";
    /// Log-prob under the frozen reference policy.
    RefLogprob = "ref_logprob";
    /// Log-prob under the distribution that the sampler drew from.
    SamplerLogprob = "sampler_logprob";
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

/// The fields that are present, each an array of one `f32` a token.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fields {
    columns: [Option<Vec<f32>>; Field::ALL.len()],
}

impl Fields {
    /// The values of `field`, if it is present.
    pub fn get(&self, field: Field) -> Option<&[f32]> {
        self.columns[field as usize].as_deref()
    }

    /// Sets `field`, replacing what was there. Lengths are checked when the trajectory is packed.
    pub fn set(&mut self, field: Field, values: Vec<f32>) {
        self.columns[field as usize] = Some(values);
    }

    /// Takes `field` out.
    pub fn remove(&mut self, field: Field) -> Option<Vec<f32>> {
        self.columns[field as usize].take()
    }

    /// The fields that are present, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (Field, &[f32])> {
        Field::ALL
            .iter()
            .filter_map(|&field| Some((field, self.get(field)?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.columns.iter_mut().flatten()
    }
}

//! The default and the permitted range of a setting, and the macro that declares a table of them.

use std::fmt;
use std::ops::Bound;

use crate::setting::Kind;

/// What a key takes when the recipe is silent, and what it may be.
#[derive(Debug)]
pub(crate) struct Spec<T> {
    pub(crate) preset: Preset<T>,
    pub(crate) range: Option<Range>,
    pub(crate) base: Base,
    /// Whether a run may go on with another value.
    pub(crate) may_change: bool,
}

/// What a key takes when the recipe is silent.
#[derive(Debug)]
pub(crate) enum Preset<T> {
    /// Silence is an error.
    Required,
    /// This value.
    Value(T),
    /// A value that hangs on others; the text says which.
    Derived(&'static str),
}

/// Where a relative path in the recipe file starts from. (In an override it is always the working directory.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// The folder of the recipe: inputs travel with it.
    Recipe,
    /// The working directory: outputs go where the user stands.
    WorkingDirectory,
}

pub(crate) fn required<T>() -> Spec<T> {
    Spec {
        preset: Preset::Required,
        range: None,
        base: Base::Recipe,
        may_change: false,
    }
}

pub(crate) fn preset<T>(value: T) -> Spec<T> {
    Spec {
        preset: Preset::Value(value),
        range: None,
        base: Base::Recipe,
        may_change: false,
    }
}

pub(crate) fn text(value: &str) -> Spec<String> {
    preset(value.to_owned())
}

pub(crate) fn unset<T>() -> Spec<Option<T>> {
    preset(None)
}

pub(crate) fn derived<T>(from: &'static str) -> Spec<T> {
    Spec {
        preset: Preset::Derived(from),
        range: None,
        base: Base::Recipe,
        may_change: false,
    }
}

impl<T> Spec<T> {
    pub(crate) fn within(self, range: Range) -> Self {
        Self {
            range: Some(range),
            ..self
        }
    }

    pub(crate) fn relative_to(self, base: Base) -> Self {
        Self { base, ..self }
    }

    /// A setting that changes nothing in what the steps of a run compute: names and places (the data itself is compared by its
    /// hash), how long the run is, how often it is measured and saved, what is measured. `--resume` takes another value.
    pub(crate) fn may_change(self) -> Self {
        Self {
            may_change: true,
            ..self
        }
    }
}

/// A span of numbers, with the reason for its limits where that is not plain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    low: Bound<f64>,
    high: Bound<f64>,
    /// What goes wrong outside.
    pub(crate) because: Option<&'static str>,
}

/// Counts stay below this, so that the product of any two fits in 64 bits.
const LARGEST_COUNT: f64 = 1e9;

/// A whole number of something.
pub(crate) fn count(at_least: u32) -> Range {
    Range {
        low: Bound::Included(f64::from(at_least)),
        high: Bound::Included(LARGEST_COUNT),
        because: None,
    }
}

pub(crate) fn above(low: f64) -> Range {
    Range {
        low: Bound::Excluded(low),
        high: Bound::Excluded(f64::INFINITY),
        because: None,
    }
}

pub(crate) fn between(low: f64, high: f64) -> Range {
    Range {
        low: Bound::Included(low),
        high: Bound::Included(high),
        because: None,
    }
}

impl Range {
    pub(crate) fn below(self, high: f64) -> Self {
        Self {
            high: Bound::Excluded(high),
            ..self
        }
    }

    pub(crate) fn at_most(self, high: f64) -> Self {
        Self {
            high: Bound::Included(high),
            ..self
        }
    }

    pub(crate) fn because(self, reason: &'static str) -> Self {
        Self {
            because: Some(reason),
            ..self
        }
    }

    /// False for NaN.
    pub(crate) fn contains(&self, x: f64) -> bool {
        let above = match self.low {
            Bound::Included(low) => x >= low,
            Bound::Excluded(low) => x > low,
            Bound::Unbounded => !x.is_nan(),
        };
        let below = match self.high {
            Bound::Included(high) => x <= high,
            Bound::Excluded(high) => x < high,
            Bound::Unbounded => !x.is_nan(),
        };
        above && below
    }
}

impl Range {
    /// The limit that `x` breaks, as in "must be …".
    pub(crate) fn broken_by(&self, x: f64) -> String {
        match (self.low, self.high) {
            (Bound::Included(low), _) if x < low => format!("at least {low}"),
            (Bound::Excluded(low), _) if x <= low => format!("above {low}"),
            (_, Bound::Included(high)) if x > high => format!("at most {high}"),
            (_, Bound::Excluded(high)) if x >= high && high.is_finite() => format!("below {high}"),
            _ if x.is_nan() => "a number".to_owned(),
            _ => "finite".to_owned(),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.low {
            Bound::Included(low) => write!(f, "at least {low}")?,
            Bound::Excluded(low) => write!(f, "above {low}")?,
            Bound::Unbounded => {}
        }
        match self.high {
            // A count has a limit only so that arithmetic is safe; nobody needs to read it.
            Bound::Included(f64::INFINITY) => f.write_str(" (inf is allowed)"),
            Bound::Excluded(f64::INFINITY) | Bound::Unbounded => f.write_str(" and finite"),
            Bound::Included(high) if high == LARGEST_COUNT => Ok(()),
            Bound::Included(high) => write!(f, " and at most {high}"),
            Bound::Excluded(high) => write!(f, " and below {high}"),
        }
    }
}

/// One row of the reference.
#[derive(Debug)]
pub(crate) struct Key {
    /// Dotted: `mesh.fsdp`.
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    pub(crate) base: Base,
    pub(crate) range: Option<Range>,
    pub(crate) preset: Preset<Option<String>>,
    /// Whether a run may go on with another value.
    pub(crate) may_change: bool,
    /// From the doc comment.
    pub(crate) meaning: &'static str,
}

/// One row of the reference: a table.
#[derive(Debug)]
pub(crate) struct Table {
    /// Empty for the top level.
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) keys: Vec<Key>,
}

/// What [`settings!`] writes for each table.
pub(crate) trait Settings: Sized {
    /// This table's row, then those of its sub-tables.
    fn describe(out: &mut Vec<Table>);
    /// Takes each key from the reader, which notes what is wrong and goes on.
    fn read(reader: &mut crate::reader::Reader<'_>) -> Self;
    /// Each key with its value as TOML (`None`: unset), in the order of the reference.
    fn write(&self, out: &mut Vec<(&'static str, Option<String>)>);
}

/// Declares a table of settings: the struct, and everything that reads, writes and explains it.
macro_rules! settings {
    (
        $(#[doc = $doc:literal])*
        $name:ident at $prefix:literal {
            $( $(#[doc = $meaning:literal])* $field:ident: $ty:ty = $spec:expr; )*
            $( [tables] { $( $table:ident: $table_ty:ident, )* } )?
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $( $(#[doc = $meaning])* pub $field: $ty, )*
            $( $( #[doc = concat!("Table `[", stringify!($table), "]`.")] pub $table: $table_ty, )* )?
        }

        impl crate::spec::Settings for $name {
            fn describe(out: &mut Vec<crate::spec::Table>) {
                out.push(crate::spec::Table {
                    name: $prefix.trim_end_matches('.'),
                    meaning: concat!($($doc, "\n"),*),
                    keys: vec![ $( crate::reader::key::<$ty>(
                        concat!($prefix, stringify!($field)), $spec, concat!($($meaning, "\n"),*),
                    ), )* ],
                });
                $( $( $table_ty::describe(out); )* )?
            }
            fn read(reader: &mut crate::reader::Reader<'_>) -> Self {
                Self {
                    $( $field: reader.take::<$ty>(concat!($prefix, stringify!($field)), $spec), )*
                    $( $( $table: $table_ty::read(reader), )* )?
                }
            }
            fn write(&self, out: &mut Vec<(&'static str, Option<String>)>) {
                $( out.push((concat!($prefix, stringify!($field)), crate::setting::Setting::write(&self.$field))); )*
                $( $( self.$table.write(out); )* )?
            }
        }
    };
}
pub(crate) use settings;

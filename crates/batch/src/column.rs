//! The arrays behind the per-token fields: one element type a column, one or several values a token.

use std::ops::Range;

use crate::field::Field;

/// What one value of a field is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// A 32-bit float, which must be finite. Padding holds 0.
    F32,
    /// A 32-bit whole number of at least 0. Padding holds −1.
    S32,
    /// A 16-bit id of at least −1, where −1 stands for none. Padding holds −1.
    S16,
}

/// The values of a column.
#[derive(Clone, PartialEq, Debug)]
pub enum Values {
    /// Of [`Element::F32`].
    F32(Vec<f32>),
    /// Of [`Element::S32`].
    S32(Vec<i32>),
    /// Of [`Element::S16`].
    S16(Vec<i16>),
}

/// `$body` for the list in `$values`, whatever its type.
macro_rules! of_any_type {
    ($values:expr, $list:ident => $body:expr) => {
        match $values {
            Values::F32($list) => $body,
            Values::S32($list) => $body,
            Values::S16($list) => $body,
        }
    };
}

/// A value that a column can hold.
pub(crate) trait Value: Copy {
    const PADDING: Self;
}

impl Value for f32 {
    const PADDING: f32 = 0.0;
}

impl Value for i32 {
    const PADDING: i32 = -1;
}

impl Value for i16 {
    const PADDING: i16 = -1;
}

impl Element {
    /// A column without tokens.
    pub(crate) fn column(self, per_token: usize) -> Column {
        let values = match self {
            Element::F32 => Values::F32(Vec::new()),
            Element::S32 => Values::S32(Vec::new()),
            Element::S16 => Values::S16(Vec::new()),
        };
        Column::wide(per_token, values)
    }
}

impl Values {
    /// The type of the values.
    pub fn element(&self) -> Element {
        match self {
            Values::F32(_) => Element::F32,
            Values::S32(_) => Element::S32,
            Values::S16(_) => Element::S16,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        of_any_type!(self, list => list.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The values of one field: `per_token` for each token, those of one token side by side.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    per_token: usize,
    values: Values,
}

impl Column {
    /// One value a token.
    pub fn new(values: Values) -> Column {
        Column::wide(1, values)
    }

    /// `per_token` values for each token; at least 1. Lengths are checked when the trajectory is packed.
    pub fn wide(per_token: usize, values: Values) -> Column {
        Column { per_token, values }
    }

    /// `tokens` tokens of padding, of the type and width of `self`.
    pub(crate) fn padding(&self, tokens: usize) -> Column {
        fn fill<T: Value>(_: &[T], count: usize) -> Vec<T> {
            vec![T::PADDING; count]
        }
        let count = tokens * self.per_token;
        let values = match &self.values {
            Values::F32(list) => Values::F32(fill(list, count)),
            Values::S32(list) => Values::S32(fill(list, count)),
            Values::S16(list) => Values::S16(fill(list, count)),
        };
        Column::wide(self.per_token, values)
    }

    /// Values a token.
    pub fn per_token(&self) -> usize {
        self.per_token
    }

    /// All values.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The values as floats, if that is what they are.
    pub fn f32(&self) -> Option<&[f32]> {
        match &self.values {
            Values::F32(list) => Some(list),
            _ => None,
        }
    }

    /// The values as 32-bit whole numbers, if that is what they are.
    pub fn s32(&self) -> Option<&[i32]> {
        match &self.values {
            Values::S32(list) => Some(list),
            _ => None,
        }
    }

    /// The values as 16-bit ids, if that is what they are.
    pub fn s16(&self) -> Option<&[i16]> {
        match &self.values {
            Values::S16(list) => Some(list),
            _ => None,
        }
    }

    /// Keeps the first `tokens` tokens.
    pub(crate) fn truncate(&mut self, tokens: usize) {
        of_any_type!(&mut self.values, list => list.truncate(tokens * self.per_token));
    }

    /// Writes the tokens `from` of `source` to where `to` begins. Both have one type and width.
    pub(crate) fn copy_from(&mut self, to: usize, source: &Column, from: Range<usize>) {
        fn copy<T: Copy>(to: &mut [T], at: usize, source: &[T], from: Range<usize>) {
            to[at..at + from.len()].copy_from_slice(&source[from]);
        }
        let n = self.per_token;
        let from = from.start * n..from.end * n;
        match (&mut self.values, &source.values) {
            (Values::F32(list), Values::F32(source)) => copy(list, to * n, source, from),
            (Values::S32(list), Values::S32(source)) => copy(list, to * n, source, from),
            (Values::S16(list), Values::S16(source)) => copy(list, to * n, source, from),
            _ => unreachable!("a field has one element type"),
        }
    }

    /// The least whole number that may be in it.
    pub(crate) fn least(&self) -> i64 {
        match self.values {
            Values::F32(_) => i64::MIN,
            Values::S32(_) => 0,
            Values::S16(_) => -1,
        }
    }

    /// The first value that its element does not allow: its index and itself.
    pub(crate) fn first_not_allowed(&self) -> Option<(usize, f64)> {
        let least = self.least();
        fn first<T: Copy + Into<f64>>(list: &[T], bad: impl Fn(T) -> bool) -> Option<(usize, f64)> {
            let at = list.iter().position(|&value| bad(value))?;
            Some((at, list[at].into()))
        }
        match &self.values {
            Values::F32(list) => first(list, |value| !value.is_finite()),
            Values::S32(list) => first(list, |value| i64::from(value) < least),
            Values::S16(list) => first(list, |value| i64::from(value) < least),
        }
    }
}

impl Field {
    /// Panics unless a column may be this field.
    #[track_caller]
    pub(crate) fn expect(self, column: &Column) {
        let (wanted, given) = (self.element(), column.values.element());
        assert!(
            wanted == given,
            "field {} holds {wanted:?}, not {given:?}",
            self.name()
        );
        assert!(
            column.per_token >= 1,
            "field {} needs at least one value a token",
            self.name()
        );
    }
}

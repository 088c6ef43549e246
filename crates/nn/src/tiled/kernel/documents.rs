//! Which queries read which keys.

/// One document of a row: where its tokens lie, in the order of their places.
#[derive(Debug, PartialEq)]
pub(crate) struct Document {
    /// Where the keys lie.
    pub(crate) keys: Vec<usize>,
    /// Where the queries lie.
    pub(crate) queries: Vec<usize>,
    /// How many of the keys each query reads: those that are not after it.
    pub(crate) visible: Vec<usize>,
}

impl Document {
    /// Queries and what each reads, so many at a time. A query that is before all keys, as in no natural order, reads nothing
    /// and is left out.
    pub(super) fn blocks(&self, queries: usize) -> impl Iterator<Item = (&[usize], &[usize])> {
        let blind = self.visible.iter().filter(|n| **n == 0).count();
        let visible = self.visible[blind..].chunks(queries);
        self.queries[blind..].chunks(queries).zip(visible)
    }
}

/// Segment ids and places of queries and keys, one row of each.
pub(super) struct Row<'a> {
    pub(super) queries: (&'a [i32], &'a [i32]),
    pub(super) keys: (&'a [i32], &'a [i32]),
}

impl Row<'_> {
    /// The documents that have queries and keys here.
    pub(super) fn documents(&self) -> Vec<Document> {
        let queries = in_order(self.queries);
        let keys = in_order(self.keys);
        let mut keys = keys.chunk_by(|a, b| a.0 == b.0).peekable();
        let mut documents = Vec::new();
        for queries in queries.chunk_by(|a, b| a.0 == b.0) {
            let segment = queries[0].0;
            while keys.next_if(|keys| keys[0].0 < segment).is_some() {}
            let Some(keys) = keys.next_if(|keys| keys[0].0 == segment) else {
                continue;
            };
            let visible = |query: &(i32, i32, usize)| keys.partition_point(|key| key.1 <= query.1);
            documents.push(Document {
                keys: keys.iter().map(|key| key.2).collect(),
                queries: queries.iter().map(|query| query.2).collect(),
                visible: queries.iter().map(visible).collect(),
            });
        }
        documents
    }
}

/// (segment, place, where) of tokens that are no padding.
fn in_order((segments, places): (&[i32], &[i32])) -> Vec<(i32, i32, usize)> {
    let all = segments.iter().zip(places).enumerate();
    let real = all.filter(|(_, (segment, _))| **segment > 0);
    let mut tokens: Vec<(i32, i32, usize)> = real
        .map(|(at, (segment, place))| (*segment, *place, at))
        .collect();
    tokens.sort_unstable();
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_read_the_keys_of_their_document_that_are_not_after_them() {
        let row = Row {
            queries: (&[2, 0, 1, 2, 3], &[4, 1, 0, 2, 0]),
            keys: (&[1, 2, 2, 0, 2, 1], &[1, 4, 0, 3, 2, 0]),
        };
        let documents = row.documents();
        let first = Document {
            keys: vec![5, 0],
            queries: vec![2],
            visible: vec![1],
        };
        let second = Document {
            keys: vec![2, 4, 1],
            queries: vec![3, 0],
            visible: vec![2, 3],
        };
        assert_eq!(documents, [first, second]);
    }
}

//! Numbers of things in sentences.

/// A number of things: `1 row`, `2 rows`, `3 micro-batches`, `0 trajectories`.
pub fn counted(count: usize, thing: &str) -> String {
    if count == 1 {
        return format!("1 {thing}");
    }
    match thing.strip_suffix('y') {
        Some(stem) => format!("{count} {stem}ies"),
        None if thing.ends_with("ch") => format!("{count} {thing}es"),
        None => format!("{count} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_thing_is_not_several() {
        assert_eq!(counted(1, "row"), "1 row");
        assert_eq!(counted(0, "row"), "0 rows");
        assert_eq!(counted(2, "key head"), "2 key heads");
        assert_eq!(counted(8, "micro-batch"), "8 micro-batches");
        assert_eq!(counted(1, "trajectory"), "1 trajectory");
        assert_eq!(counted(3, "trajectory"), "3 trajectories");
    }
}

//! Equally many items a bin, and every bin equally heavy, or nearly: chunks to context shards, rows to data shards.
//!
//! Heaviest first to the lightest bin with room, then exchanges of two items that even the loads, then a bounded number of
//! kicks out of local optima. The kicks are a fixed sequence, so the same costs give the same split.

/// Most kicks.
const KICKS: usize = 100;

/// Most walks over all pairs between two kicks; a handful is enough, and rounding must not turn in circles.
const PASSES: usize = 100;

/// Comparisons of two items that the kicks may cost: about a millisecond.
const COMPARISONS: usize = 400_000;

/// The bin of every item.
///
/// An item costs `K` kinds of work. What is made small is the sum over kinds of `weight` times the load of the bin that is
/// heaviest in that kind: the kinds are done one after the other, and each time all wait for the last.
/// `bins` divides the number of items.
pub(crate) fn split_evenly<const K: usize>(
    costs: &[[u64; K]],
    bins: usize,
    weight: [u64; K],
) -> Vec<usize> {
    debug_assert!(costs.len().is_multiple_of(bins));
    let mut split = Split::lightest_first(costs, bins, weight);
    split.exchange();
    let mut best = (split.heaviest(), split.bin_of.clone());
    let least = split.least_possible();
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let kicks = KICKS.min(COMPARISONS / costs.len().pow(2).max(1));
    for _ in 0..if bins > 1 { kicks } else { 0 } {
        if best.0 <= least {
            break;
        }
        for _ in 0..2 {
            let (a, b) = (random.below(costs.len()), random.below(costs.len()));
            split.swap(a, b);
        }
        split.exchange();
        let heaviest = split.heaviest();
        if heaviest < best.0 {
            best = (heaviest, split.bin_of.clone());
        }
    }
    best.1
}

struct Split<'a, const K: usize> {
    costs: &'a [[u64; K]],
    weight: [u64; K],
    /// Of the weights.
    square: [f64; K],
    bin_of: Vec<usize>,
    loads: Vec<[u64; K]>,
}

impl<const K: usize> Split<'_, K> {
    fn lightest_first(costs: &[[u64; K]], bins: usize, weight: [u64; K]) -> Split<'_, K> {
        let total = |cost: &[u64; K]| -> u128 {
            let parts = cost.iter().zip(weight);
            parts.map(|(&c, w)| u128::from(c) * u128::from(w)).sum()
        };
        let mut heaviest_first: Vec<usize> = (0..costs.len()).collect();
        heaviest_first.sort_by_key(|&item| std::cmp::Reverse(total(&costs[item])));
        let mut room = vec![costs.len() / bins; bins];
        let mut loads = vec![[0; K]; bins];
        let mut bin_of = vec![0; costs.len()];
        for item in heaviest_first {
            let open = (0..bins).filter(|&bin| room[bin] > 0);
            let bin = open
                .min_by_key(|&bin| total(&loads[bin]))
                .expect("there is room for every item");
            bin_of[item] = bin;
            room[bin] -= 1;
            add(&mut loads[bin], &costs[item]);
        }
        Split {
            costs,
            weight,
            square: weight.map(|w| (w as f64).powi(2)),
            bin_of,
            loads,
        }
    }

    /// Exchanges pairs as long as that makes the sum of squared loads smaller.
    fn exchange(&mut self) {
        for _ in 0..PASSES {
            let mut better = false;
            for a in 0..self.costs.len() {
                let (mut most, mut with) = (0.0, a);
                for b in 0..self.costs.len() {
                    let gain = self.gain(a, b);
                    if gain > most {
                        (most, with) = (gain, b);
                    }
                }
                if most > 0.0 {
                    self.swap(a, with);
                    better = true;
                }
            }
            if !better {
                return;
            }
        }
    }

    /// Half of what an exchange takes off the weighted sum of squared loads. Within a bin that is nothing.
    fn gain(&self, a: usize, b: usize) -> f64 {
        let (bin_a, bin_b) = (self.bin_of[a], self.bin_of[b]);
        if bin_a == bin_b {
            return 0.0;
        }
        let mut gain = 0.0;
        for k in 0..K {
            let moved = self.costs[a][k].wrapping_sub(self.costs[b][k]) as i64;
            let ahead = self.loads[bin_a][k].wrapping_sub(self.loads[bin_b][k]) as i64;
            gain += self.square[k] * moved as f64 * (ahead - moved) as f64;
        }
        gain
    }

    fn swap(&mut self, a: usize, b: usize) {
        let (bin_a, bin_b) = (self.bin_of[a], self.bin_of[b]);
        for k in 0..K {
            let (a, b) = (self.costs[a][k], self.costs[b][k]);
            self.loads[bin_a][k] = self.loads[bin_a][k] + b - a;
            self.loads[bin_b][k] = self.loads[bin_b][k] + a - b;
        }
        self.bin_of.swap(a, b);
    }

    fn heaviest(&self) -> u128 {
        self.weighted(|k| self.loads.iter().map(|load| load[k]).max().unwrap_or(0))
    }

    /// No split is lighter than an even one, or than its heaviest item.
    fn least_possible(&self) -> u128 {
        self.weighted(|k| {
            let total: u64 = self.loads.iter().map(|load| load[k]).sum();
            let item = self.costs.iter().map(|cost| cost[k]).max().unwrap_or(0);
            total.div_ceil(self.loads.len() as u64).max(item)
        })
    }

    fn weighted(&self, load: impl Fn(usize) -> u64) -> u128 {
        (0..K)
            .map(|k| u128::from(load(k)) * u128::from(self.weight[k]))
            .sum()
    }
}

fn add<const K: usize>(load: &mut [u64; K], cost: &[u64; K]) {
    for (load, cost) in load.iter_mut().zip(cost) {
        *load += cost;
    }
}

/// Marsaglia's generator: the kicks need no better one.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads<const K: usize>(costs: &[[u64; K]], bins: usize, bin_of: &[usize]) -> Vec<[u64; K]> {
        let mut loads = vec![[0; K]; bins];
        let mut counts = vec![0; bins];
        for (cost, &bin) in costs.iter().zip(bin_of) {
            add(&mut loads[bin], cost);
            counts[bin] += 1;
        }
        assert!(
            counts.iter().all(|&n| n == costs.len() / bins),
            "{counts:?}"
        );
        loads
    }

    #[test]
    fn a_triangle_is_split_exactly() {
        let costs: Vec<[u64; 1]> = (1..=32).map(|n| [n]).collect();
        let split = split_evenly(&costs, 4, [1]);
        assert_eq!(loads(&costs, 4, &split), [[132]; 4]);
    }

    /// The least weight of the heavier of two bins, by trying all.
    fn best_of_all(costs: &[[u64; 1]]) -> u64 {
        let halves =
            (0_u32..1 << costs.len()).filter(|it| it.count_ones() as usize == costs.len() / 2);
        let load = |half: u32| -> u64 {
            let inside = (0..costs.len()).filter(|&item| half >> item & 1 == 1);
            inside.map(|item| costs[item][0]).sum()
        };
        halves
            .map(|half| load(half).max(load(!half)))
            .min()
            .unwrap()
    }

    #[test]
    fn small_splits_are_the_best_there_are() {
        let mut random = Xorshift(1);
        for _ in 0..300 {
            let costs: Vec<[u64; 1]> = (0..8).map(|_| [random.below(1000) as u64]).collect();
            let split = split_evenly(&costs, 2, [1]);
            let heaviest = loads(&costs, 2, &split).into_iter().max().unwrap();
            assert_eq!(heaviest[0], best_of_all(&costs), "{costs:?}");
        }
    }

    #[test]
    fn two_kinds_are_split_at_once() {
        // Even in the first kind alone is 9 + 1 and 9 + 1; the second kind tells which 1 goes where.
        let costs = [[9, 0], [9, 4], [1, 4], [1, 0]];
        let split = split_evenly(&costs, 2, [1, 1]);
        assert_eq!(loads(&costs, 2, &split), [[10, 4], [10, 4]]);
    }

    #[test]
    fn a_kind_without_weight_does_not_count() {
        let costs = [[5, 9], [3, 0], [4, 9], [2, 0]];
        let split = split_evenly(&costs, 2, [1, 0]);
        assert_eq!(loads(&costs, 2, &split)[0][0], 7);
    }

    #[test]
    fn one_bin_and_one_item() {
        assert_eq!(split_evenly(&[[3], [4]], 1, [1]), [0, 0]);
        assert_eq!(split_evenly(&[[3]], 1, [1]), [0]);
        assert_eq!(split_evenly(&[[3], [4]], 2, [1]), [1, 0]);
    }
}

//! Queries that change places between devices which have consecutive parts of a row.

use ferrotune_graph::{Graph, Tensor};

use super::QueryOrder;

/// Where the halves of the devices along an axis go.
///
/// Device `r` of `C` has chunks `2r` and `2r + 1` of the `2C` of a row, and is to work on chunks `r` and `2C − 1 − r`. One of
/// these is even and one odd, so the even chunks go to different devices, and the odd ones too: a permutation each.
pub(super) struct ChunkSwap {
    axis: String,
    /// Source and target of the even and of the odd chunks.
    pairs: [Vec<(usize, usize)>; 2],
}

impl ChunkSwap {
    /// Inside of a region along the axes that split tokens; `None` where nothing changes places.
    #[track_caller]
    pub(super) fn of(g: &Graph, order: QueryOrder, split: &[&str]) -> Option<Self> {
        if split.is_empty() || order == QueryOrder::AsRows {
            return None;
        }
        let [axis] = split else {
            panic!("queries change places along one axis, not along {split:?}")
        };
        let devices = g.mesh().axis_size(axis).unwrap_or(1);
        let home = |chunk: usize| chunk.min(2 * devices - 1 - chunk);
        let pairs = [0, 1].map(|odd| (0..devices).map(|r| (r, home(2 * r + odd))).collect());
        Some(Self {
            axis: (*axis).to_owned(),
            pairs,
        })
    }

    /// A device's own `[B,T,…]` → those that it works on, the even chunk first.
    #[track_caller]
    pub(super) fn out(&self, x: &Tensor) -> Tensor {
        self.exchange(x, |pairs| pairs.to_vec())
    }

    /// The inverse.
    #[track_caller]
    pub(super) fn back(&self, x: &Tensor) -> Tensor {
        let turned = |pairs: &[(usize, usize)]| pairs.iter().map(|(a, b)| (*b, *a)).collect();
        self.exchange(x, turned)
    }

    #[track_caller]
    fn exchange(
        &self,
        x: &Tensor,
        direction: impl Fn(&[(usize, usize)]) -> Vec<(usize, usize)>,
    ) -> Tensor {
        let (tokens, half) = (x.dim(1), x.dim(1) / 2);
        assert!(
            tokens == 2 * half,
            "a device with {tokens} tokens has no two halves"
        );
        let sent = |which: usize| {
            let part = x.slice(1, which * half, (which + 1) * half);
            part.collective_permute(&self.axis, &direction(&self.pairs[which]))
        };
        Tensor::concatenate(&[&sent(0), &sent(1)], 1)
    }
}

#[cfg(test)]
mod tests {
    use ferrotune_graph::{Mesh, Rules};

    use super::*;

    /// Any permutation gives the same numbers; this one makes causal attention even.
    #[test]
    fn each_device_works_on_a_chunk_and_its_mirror_image() {
        for devices in [2, 4, 8] {
            let mesh = Mesh::new(&[("context", devices)]).unwrap();
            let g = Graph::new("swap", mesh, Rules::default());
            let swap = ChunkSwap::of(&g, QueryOrder::DualChunkSwap, &["context"]).unwrap();
            for device in 0..devices {
                let chunks = [0, 1].map(|odd| {
                    let sent = swap.pairs[odd].iter().filter(|(_, to)| *to == device);
                    sent.map(|(from, _)| 2 * from + odd).collect::<Vec<_>>()
                });
                let mut chunks = chunks.concat();
                chunks.sort_unstable();
                assert_eq!(chunks, [device, 2 * devices - 1 - device]);
            }
        }
    }
}

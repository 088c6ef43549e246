//! The weights of the head as one device holds them, and tiles of them as it needs them.

use ferrotune_graph::{DType, Graph, HostArray, Tensor};

use super::loops::Tiles;

/// How the weights are split among devices.
#[derive(Clone, Debug, Default)]
pub(super) struct Split {
    /// Mesh axes that split the width; they are gathered.
    pub(super) width: Vec<String>,
    /// Mesh axes that split the vocabulary, in the order of its parts.
    pub(super) vocab: Vec<VocabAxis>,
}

/// A mesh axis that splits the vocabulary.
#[derive(Clone, Debug)]
pub(super) struct VocabAxis {
    pub(super) name: String,
    pub(super) size: usize,
    /// Whether the devices along it hold different tokens, so that each needs all of the vocabulary.
    pub(super) gathered: bool,
}

/// Some entries of the vocabulary.
pub(super) struct Tile {
    /// Their weights, whole in the width: `[D,v]`, or `[v,D]` when tied.
    pub(super) weight: Tensor,
    /// Which entries they are, s32 `[v]`.
    pub(super) columns: Tensor,
}

/// The weights of the head on one device.
pub(super) struct Projection {
    /// This device's part: `[D,V]`, or `[V,D]` when tied, both perhaps less than that.
    pub(super) weight: Tensor,
    pub(super) tied: bool,
    /// Element type of products.
    pub(super) compute: DType,
    pub(super) split: Split,
}

fn names(axes: &[String]) -> Vec<&str> {
    axes.iter().map(String::as_str).collect()
}

impl Projection {
    /// The same with other weights of the same type: those inside of a loop or a derivative.
    pub(super) fn with(&self, weight: &Tensor) -> Self {
        Self {
            weight: weight.clone(),
            tied: self.tied,
            compute: self.compute,
            split: self.split.clone(),
        }
    }

    /// What was gathered, as if it were all there is. Weights that are all here stay as they lie: no narrowed copy of them is
    /// held, tiles are narrowed where they are read.
    pub(super) fn gathered_whole(&self, tile: &Tile) -> Self {
        if self.is_whole() {
            return self.with(&self.weight);
        }
        Self {
            split: Split::default(),
            ..self.with(&tile.weight)
        }
    }

    /// Whether this device has all weights.
    pub(super) fn is_whole(&self) -> bool {
        self.split.width.is_empty() && self.split.vocab.is_empty()
    }

    fn graph(&self) -> &Graph {
        self.weight.graph()
    }

    /// Dimension of the weights that runs over the vocabulary.
    fn vocab_dim(&self) -> usize {
        usize::from(!self.tied)
    }

    /// Entries of the vocabulary on this device.
    fn entries(&self) -> usize {
        self.weight.dim(self.vocab_dim())
    }

    fn gathered_axes(&self) -> Vec<&str> {
        let axes = self.split.vocab.iter().filter(|a| a.gathered);
        axes.map(|a| a.name.as_str()).collect()
    }

    /// Mesh axes whose devices keep their part of the vocabulary for themselves.
    pub(super) fn split_axes(&self) -> Vec<&str> {
        let axes = self.split.vocab.iter().filter(|a| !a.gathered);
        axes.map(|a| a.name.as_str()).collect()
    }

    /// Parts of the vocabulary that are gathered into one tile.
    fn gathered(&self) -> usize {
        let axes = self.split.vocab.iter().filter(|a| a.gathered);
        axes.map(|a| a.size).product()
    }

    /// Tiles of this device's entries such that `widest` are looked at together, those of other devices included.
    #[track_caller]
    pub(super) fn tiles(&self, widest: usize) -> Tiles {
        assert!(widest > 0, "a tile without entries");
        Tiles::of(self.entries(), widest.div_ceil(self.gathered()))
    }

    /// Entries that this device looks at: its own, and those that it gathers.
    pub(super) fn whole_entries(&self) -> usize {
        self.entries() * self.gathered()
    }

    /// All entries that are neither split nor gathered away.
    pub(super) fn whole(&self) -> Tile {
        self.tile(&self.graph().scalar(0.0, DType::S32), self.entries())
    }

    /// The `width` entries of every device from its `start` on, gathered.
    pub(super) fn tile(&self, start: &Tensor, width: usize) -> Tile {
        let zero = self.graph().scalar(0.0, DType::S32);
        let part = if width == self.entries() {
            self.weight.clone()
        } else {
            let (mut at, mut sizes) = ([&zero, &zero], self.weight.dims());
            at[self.vocab_dim()] = start;
            sizes[self.vocab_dim()] = width;
            self.weight.dynamic_slice(&at, &sizes)
        };
        // Narrowed before it travels.
        let mut weight = part.convert(self.compute);
        if !self.split.width.is_empty() {
            weight = weight.all_gather(&names(&self.split.width), 1 - self.vocab_dim());
        }
        let gathered = self.gathered_axes();
        if !gathered.is_empty() {
            weight = weight.all_gather(&gathered, self.vocab_dim());
        }
        Tile {
            weight,
            columns: self.columns(start, width),
        }
    }

    /// Which entries of the vocabulary the tile from `start` on holds, s32 `[gathered · width]`.
    fn columns(&self, start: &Tensor, width: usize) -> Tensor {
        let (g, parts) = (self.graph(), self.gathered());
        let within = g.iota(DType::S32, &[parts, width], 1) + start;
        // The number of a part of the vocabulary is row-major in all axes; a gathered part, in those gathered.
        let mut first = vec![0_i32; parts];
        let mut own = g.scalar(0.0, DType::S32);
        let (mut stride, mut inner) = (1, 1);
        for axis in self.split.vocab.iter().rev() {
            if axis.gathered {
                for (part, first) in first.iter_mut().enumerate() {
                    *first += (part / inner % axis.size * stride * self.entries()) as i32;
                }
                inner *= axis.size;
            } else {
                own = own + g.axis_index(&[&axis.name]) * (stride * self.entries()) as f64;
            }
            stride *= axis.size;
        }
        let first = HostArray::from_slice(&[parts, 1], &first).expect("one number for each part");
        (within + g.constant(first) + own).reshape(&[parts * width])
    }

    /// The product of a gradient by logits with the weights, which is one by hidden states: `dz [n,v]` → `[n,D]`.
    pub(super) fn back(&self, dz: &Tensor, tile: &Tile) -> Tensor {
        let spec = if self.tied { "nv,vd->nd" } else { "nv,dv->nd" };
        let wide = super::wide(self.compute);
        self.graph().einsum(spec, dz, &tile.weight, wide)
    }

    /// The gradient by a tile's weights: hidden states with the width first `[D,n]` and `dz [n,v]`.
    pub(super) fn outer(&self, x_dn: &Tensor, dz: &Tensor) -> Tensor {
        let (g, wide) = (self.graph(), super::wide(self.compute));
        if self.tied {
            g.einsum("nv,dn->vd", dz, x_dn, wide)
        } else {
            g.einsum("dn,nv->dv", x_dn, dz, wide)
        }
    }

    /// This device's part of the sum, over the devices that gathered it, of a gradient by a tile's weights; in the type of
    /// the weights.
    pub(super) fn scatter(&self, gradient: &Tensor) -> Tensor {
        let mut part = gradient.clone();
        let gathered = self.gathered_axes();
        if !gathered.is_empty() {
            part = part.reduce_scatter(&gathered, self.vocab_dim());
        }
        if !self.split.width.is_empty() {
            part = part.reduce_scatter(&names(&self.split.width), 1 - self.vocab_dim());
        }
        part.convert(self.weight.dtype())
    }

    /// `whole`, a gradient by this device's weights, with the part of the tile at `start` written into it.
    pub(super) fn write(&self, whole: &Tensor, part: &Tensor, start: &Tensor) -> Tensor {
        let zero = self.graph().scalar(0.0, DType::S32);
        let mut at = [&zero, &zero];
        at[self.vocab_dim()] = start;
        whole.dynamic_update_slice(part, &at)
    }

    /// `whole` with `part` added to the tile at `start`, in place.
    pub(super) fn add(&self, whole: &Tensor, part: &Tensor, start: &Tensor) -> Tensor {
        let zero = self.graph().scalar(0.0, DType::S32);
        let mut at = [&zero, &zero];
        at[self.vocab_dim()] = start;
        let before = whole.dynamic_slice(&at, &part.dims());
        whole.dynamic_update_slice(&(before + part), &at)
    }
}

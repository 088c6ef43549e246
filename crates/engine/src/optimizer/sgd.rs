//! Gradient descent with momentum.

use ferrotune_graph::Tensor;

/// Settings of SGD.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// What is left of the momentum after a step; 0 follows the gradient alone.
    pub momentum: f64,
    /// Whether the step looks ahead: d = g + μm in place of d = m.
    pub nesterov: bool,
}

impl Sgd {
    /// m ← μm + g.
    ///
    /// # Source
    /// Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in the form in which the
    /// learning rate stands outside.
    pub(super) fn advance(&self, kept: &[Tensor], gradient: &Tensor) -> Vec<Tensor> {
        vec![&kept[0] * self.momentum + gradient]
    }

    pub(super) fn direction(&self, kept: &[Tensor], gradient: &Tensor) -> Tensor {
        if self.nesterov {
            gradient + &kept[0] * self.momentum
        } else {
            kept[0].clone()
        }
    }
}

//! Which instructions the kernels use. Every path gives the scalar path's bits (A11), so the
//! choice is a matter of speed and is printed in reports.

/// A family of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelPath {
    /// The scalar definitions as the compiler makes them.
    #[default]
    Scalar,
}

impl KernelPath {
    /// The fastest path this processor has.
    #[must_use]
    pub fn detect() -> Self {
        Self::Scalar
    }

    /// Every path this processor has, scalar first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        vec![Self::Scalar]
    }

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
        }
    }
}

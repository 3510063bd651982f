//! Which instructions the kernels use. Every path gives the scalar path's bits (A11), so the
//! choice is a matter of speed and is printed in reports.

/// A family of kernels.
///
/// The vector paths can only be had through [`KernelPath::detect`] or [`KernelPath::available`],
/// which ask the processor: holding one is the proof that its instructions exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelPath(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Kind {
    #[default]
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl KernelPath {
    /// The scalar definitions as the compiler makes them.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// Names of all paths, of this and other processors.
    pub const NAMES: [&str; 3] = ["scalar", "avx2", "avx512"];

    /// The fastest path this processor has.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::SCALAR)
    }

    /// Every path this processor has, slowest first; the first is the scalar one.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut paths = vec![Self::SCALAR];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 {
                paths.push(Self(Kind::Avx2));
            }
            let avx512 =
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            if avx2 && avx512 {
                paths.push(Self(Kind::Avx512));
            }
        }
        paths
    }

    /// The path of that name, if this processor has it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|path| path.name() == name)
    }

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
        }
    }

    pub(super) fn kind(self) -> Kind {
        self.0
    }
}

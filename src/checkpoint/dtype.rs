//! The element types a safetensors file can name, and the exact widening of BF16.
//!
//! All names of the format are known here, so that foreign tensors are sized and listed; which of
//! them the model accepts is said by the binding.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident, $name:literal, $bits:literal, $doc:literal;)*) => {
        /// An element type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Dtype { $(#[doc = $doc] $variant,)* }

        impl Dtype {
            /// Every element type of the format.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in a header.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bits of one element (some types are packed below a byte).
            #[must_use]
            pub fn bits(self) -> u64 {
                match self { $(Self::$variant => $bits,)* }
            }
        }
    };
}

dtypes! {
    Bool, "BOOL", 8, "One byte per truth value";
    F4, "F4", 4, "E2M1, two to a byte";
    F6E2M3, "F6_E2M3", 6, "Six-bit float";
    F6E3M2, "F6_E3M2", 6, "Six-bit float";
    U8, "U8", 8, "Unsigned byte; MXFP4 codes and scales are stored so";
    I8, "I8", 8, "Signed byte";
    F8E5M2, "F8_E5M2", 8, "Eight-bit float";
    F8E4M3, "F8_E4M3", 8, "Eight-bit float";
    F8E8M0, "F8_E8M0", 8, "Eight-bit power of two";
    F8E4M3Fnuz, "F8_E4M3FNUZ", 8, "Eight-bit float without negative zero";
    F8E5M2Fnuz, "F8_E5M2FNUZ", 8, "Eight-bit float without negative zero";
    I16, "I16", 16, "Signed, 16 bits";
    U16, "U16", 16, "Unsigned, 16 bits";
    F16, "F16", 16, "IEEE half";
    Bf16, "BF16", 16, "The upper half of an IEEE single";
    I32, "I32", 32, "Signed, 32 bits";
    U32, "U32", 32, "Unsigned, 32 bits";
    F32, "F32", 32, "IEEE single";
    C64, "C64", 64, "Two IEEE singles";
    F64, "F64", 64, "IEEE double";
    I64, "I64", 64, "Signed, 64 bits";
    U64, "U64", 64, "Unsigned, 64 bits";
}

impl Dtype {
    /// The type a header names; `None` for a name the format does not have.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Bytes of `elements` elements; `None` on overflow or where they do not fill whole bytes.
    #[must_use]
    pub fn byte_len(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The single that a BF16 stands for: its bits are the upper half, nothing is rounded.
#[must_use]
pub fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong size here would shift every check of byte ranges; the crate is the other opinion.
    #[test]
    fn names_and_sizes_agree_with_the_safetensors_crate() {
        for dtype in Dtype::ALL {
            let quoted = format!("\"{dtype}\"");
            let other: safetensors::Dtype = serde_json::from_str(&quoted).expect("known name");
            assert_eq!(other.bitsize() as u64, dtype.bits(), "{dtype}");
            assert_eq!(Dtype::parse(dtype.name()), Some(*dtype));
        }
        assert_eq!(Dtype::parse("bf16"), None);
        assert_eq!(Dtype::parse("F128"), None);
    }

    /// Overflow must not come out as a small number, odd nibbles not as a rounded one.
    #[test]
    fn byte_len_refuses_overflow_and_part_bytes() {
        assert_eq!(Dtype::Bf16.byte_len(3), Some(6));
        assert_eq!(Dtype::F4.byte_len(3), None);
        assert_eq!(Dtype::F64.byte_len(u64::MAX / 8), None);
        assert_eq!(Dtype::U8.byte_len(0), Some(0));
    }

    /// Widening goes by bits: −0, infinity, NaN payloads and subnormals included.
    #[test]
    fn bf16_widens_by_its_bits() {
        for bits in 0..=u16::MAX {
            assert_eq!(widen_bf16(bits).to_bits() >> 16, u32::from(bits));
            assert_eq!(widen_bf16(bits).to_bits() & 0xFFFF, 0);
        }
        assert_eq!(widen_bf16(0x3F80), 1.0);
    }
}

//! Mutants of the MXFP4 decode (clauses Q1 to Q4).

use super::super::formulas::{Formulas, GROUP_COLUMNS, Released};
use super::ReferenceMutant;

mutants! {
    SignIgnored "mxfp4-sign-ignored" [Q1]
    "bit 3 of a code is not read as the sign" {
        fn e2m1(&self, code: u8) -> f64 {
            Released.e2m1(code & 7)
        }
    }

    NoSubnormalCode "mxfp4-code-one-normal" [Q1]
    "exponent field 0 is read as a normal number" {
        fn e2m1(&self, code: u8) -> f64 {
            let (exponent, mantissa) = (i32::from(code >> 1 & 3), f64::from(code & 1));
            let magnitude = 2f64.powi(exponent - 1) * (1.0 + mantissa / 2.0);
            if code & 8 == 0 { magnitude } else { -magnitude }
        }
    }

    IntegerCodes "mxfp4-codes-as-integers" [Q1]
    "codes are read as four-bit two's complement integers" {
        fn e2m1(&self, code: u8) -> f64 {
            f64::from(((code << 4) as i8) >> 4)
        }
    }

    LargestCodeEight "mxfp4-code-seven-is-eight" [Q1]
    "the largest code is taken to be 8 instead of 6" {
        fn e2m1(&self, code: u8) -> f64 {
            let value = Released.e2m1(code);
            if code & 7 == 7 { value / 6.0 * 8.0 } else { value }
        }
    }

    SwappedNibbles "mxfp4-nibbles-swapped" [Q2]
    "the low nibble is taken for the odd column" {
        fn nibbles(&self, byte: u8) -> [u8; 2] {
            [byte >> 4, byte & 15]
        }
    }

    PlanarNibbles "mxfp4-nibbles-planar" [Q2]
    "the low nibbles are taken for the first half of a row, the high ones for the second" {
        fn decode_row(&self, packed: &[u8], scales: &[u8], row: &mut [f64]) -> Result<(), usize> {
            let codes: Vec<u8> = packed.iter().map(|b| b & 15)
                .chain(packed.iter().map(|b| b >> 4))
                .collect();
            let pairs: Vec<u8> = codes.chunks_exact(2).map(|c| c[0] | c[1] << 4).collect();
            Released.decode_row(&pairs, scales, row)
        }
    }

    ScaleDoubled "mxfp4-scale-doubled" [Q3]
    "the scale's bias is taken as 126" {
        fn scale(&self, byte: u8) -> Option<f64> {
            Released.scale(byte).map(|scale| scale * 2.0)
        }
    }

    ScaleQuartered "mxfp4-scale-quartered" [Q3]
    "an offset of two is taken off the scale's exponent twice" {
        fn scale(&self, byte: u8) -> Option<f64> {
            Released.scale(byte).map(|scale| scale / 4.0)
        }
    }

    ScaleAsNumber "mxfp4-scale-as-number" [Q3]
    "the scale byte is used as a number" {
        fn scale(&self, byte: u8) -> Option<f64> {
            (byte != 255).then_some(f64::from(byte))
        }
    }

    ScaleOfNextGroup "mxfp4-scale-next-group" [Q3]
    "a group takes the scale of the next one" {
        fn scale_group(&self, column: usize, groups: usize) -> usize {
            (column / GROUP_COLUMNS + 1) % groups
        }
    }

    GroupsOfSixteen "mxfp4-groups-of-sixteen" [Q3]
    "a scale is taken to cover sixteen columns" {
        fn scale_group(&self, column: usize, groups: usize) -> usize {
            (column / 16) % groups
        }
    }

    OneScalePerRow "mxfp4-first-scale-for-row" [Q3]
    "the first scale of a row serves all of it" {
        fn scale_group(&self, _column: usize, _groups: usize) -> usize {
            0
        }
    }

    SmallestScaleFlushed "mxfp4-scale-zero-flushed" [Q3]
    "scale byte 0, which is 2^−127, is flushed to zero" {
        fn scale(&self, byte: u8) -> Option<f64> {
            if byte == 0 { Some(0.0) } else { Released.scale(byte) }
        }
    }

    NanScaleZero "mxfp4-nan-scale-is-zero" [Q4]
    "scale byte 255 is turned into 0 in silence" {
        fn scale(&self, byte: u8) -> Option<f64> {
            Released.scale(byte).or(Some(0.0))
        }
    }

    NanScaleNumber "mxfp4-nan-scale-is-a-power" [Q4]
    "scale byte 255 is decoded as 2^128 in silence" {
        fn scale(&self, byte: u8) -> Option<f64> {
            Released.scale(byte).or(Some(2f64.powi(128)))
        }
    }
}

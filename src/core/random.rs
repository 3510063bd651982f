//! One integer generator for traces, sampling and the random policy: SplitMix64.
//!
//! Sebastiano Vigna's SplitMix64: the state grows by the golden gamma, the output is a fixed mix
//! of it. Integers only, so a seed gives the same trace on every machine. The published test
//! vector (seed 1234567) is checked below.

/// What the state grows by.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator with this seed; any value is good.
    pub fn new(seed: u64) -> Self {
        SplitMix64 { state: seed }
    }

    /// As if `count` numbers had been drawn: the state is a counter.
    #[must_use]
    pub fn skip(self, count: u64) -> Self {
        let state = self.state.wrapping_add(GOLDEN_GAMMA.wrapping_mul(count));
        SplitMix64 { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which must not be 0): the high half of a 128-bit product. The
    /// bias is below bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Fisher-Yates, from the end down.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let other = self.below(end as u64 + 1) as usize;
            items.swap(end, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i08_published_vector_of_splitmix64() {
        let mut generator = SplitMix64::new(1_234_567);
        let got: Vec<u64> = (0..5).map(|_| generator.next_u64()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(got, published);
        let mut later = SplitMix64::new(1_234_567).skip(3);
        assert_eq!(later.next_u64(), published[3]);
    }

    #[test]
    fn below_stays_below_and_shuffle_permutes() {
        let mut generator = SplitMix64::new(3);
        assert!((0..1000).all(|_| generator.below(7) < 7));
        assert_eq!(generator.below(1), 0);
        let mut items: Vec<u32> = (0..50).collect();
        generator.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<u32>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<u32>>());
    }
}

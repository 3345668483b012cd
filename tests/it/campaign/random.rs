/// A seeded generator (SplitMix64): a seed gives the same plan on every machine and with every release of a library.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent one: what it draws does not depend on how often this one is used later.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(1, 100) <= percent
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        let last = u64::try_from(all.len()).expect("a length") - 1;
        all[usize::try_from(self.between(0, last)).expect("an index")]
    }
}

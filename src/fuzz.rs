//! Seeded mutation of a corpus, for parsers of external input.
//!
//! A target reads bytes, panics when one of its properties does not hold, and returns a summary of the result. An input
//! with a new summary joins the pool of inputs to mutate, in place of coverage feedback of a compiler.
//! `tests/corpus/NAME/` has the seeds of a target and all inputs that once broke it.

use std::{
    collections::HashSet,
    env, fs,
    fs::File,
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    os::unix::fs::FileExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// Maximum size of a mutated input in bytes: large enough for every parsed structure, small enough for thousands of
/// inputs a second.
const MAX_BYTES: usize = 16 * 1024;
/// Maximum time of one input of at most `MAX_BYTES`: hundreds of times the usual time, to allow for a busy machine.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Maximum number of inputs in the pool, including the corpus. Further inputs are not kept.
const MAX_POOL: usize = 4096;
/// Number of mutations in the ordinary tests, which are the same in every run.
const REPLAYED_MUTATIONS: u32 = 1000;
/// Maximum number of mutations of one input.
const MAX_STEPS: u32 = 8;
/// Seed of the mutations in the ordinary tests.
const SEED: u64 = 1;
/// Default of `PUNCTUAL_FUZZ_SECONDS`, the time for one target.
const DEFAULT_SECONDS: u64 = 60;

/// A parser to fuzz.
pub struct FuzzTarget {
    /// The folder of its corpus.
    pub name: &'static str,
    /// Words that random bytes would hardly form.
    pub words: &'static [&'static str],
    /// Returns a short summary of the result. Inputs with the same summary are considered equal.
    pub run: fn(&[u8]) -> String,
}

impl FuzzTarget {
    /// Tries the corpus and some mutations, which are the same in every run.
    pub fn replay(&self) {
        let corpus = self.corpus();
        assert!(!corpus.is_empty(), "tests/corpus/{} has no input", self.name);
        for (file, input) in &corpus {
            self.check(input).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        let mut pool = Pool::of(corpus.into_iter().map(|(_, input)| input).collect(), self.words, SEED);
        for _ in 0..REPLAYED_MUTATIONS {
            let input = pool.mutant();
            match self.check(&input) {
                Ok(came_to) => pool.keep(input, &came_to),
                Err(error) => panic!("{}: {error}", self.save(&input).display()),
            }
        }
    }

    /// Tries random mutations for `PUNCTUAL_FUZZ_SECONDS`, and saves inputs that break a property in the corpus.
    /// `target/fuzz/NAME` has the current input until the end, in case the process dies without a panic.
    pub fn explore(&self) {
        let seconds = env::var("PUNCTUAL_FUZZ_SECONDS").map_or(DEFAULT_SECONDS, |text| text.parse().expect("seconds"));
        let seed = RandomState::new().hash_one(self.name);
        let until = Instant::now() + Duration::from_secs(seconds);
        let folder = root().join("target/fuzz");
        fs::create_dir_all(&folder).expect("a folder");
        let current_path = folder.join(self.name);
        let current = File::create(&current_path).expect("a file");
        let mut pool = Pool::of(self.corpus().into_iter().map(|(_, input)| input).collect(), self.words, seed);
        let (mut executions, mut broken) = (0_u64, HashSet::new());
        while Instant::now() < until {
            let input = pool.mutant();
            current.set_len(input.len() as u64).expect("written");
            current.write_all_at(&input, 0).expect("written");
            executions += 1;
            match self.check(&input) {
                Ok(came_to) => pool.keep(input, &came_to),
                Err(error) => {
                    // Saves one input for each kind of failure.
                    if broken.insert(outline(&error)) {
                        eprintln!("{}: {error}", self.save(&input).display());
                    }
                }
            }
        }
        fs::remove_file(current_path).expect("removed");
        println!(
            "fuzz {}: {executions} executions in {seconds} s, {} in the pool, seed {seed}",
            self.name,
            pool.inputs.len()
        );
        assert!(broken.is_empty(), "{} kinds of failure; their inputs are in tests/corpus/{}", broken.len(), self.name);
    }

    /// The summary of the result; the failure if the input broke a property or took too long.
    fn check(&self, input: &[u8]) -> Result<String, String> {
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| (self.run)(input)));
        let took = started.elapsed();
        match result {
            Ok(_) if took > MAX_TIME => Err(format!("took {took:?}")),
            Ok(came_to) => Ok(came_to),
            Err(panic) => Err(panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_else(|| "panicked".into())),
        }
    }

    fn corpus(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = self.folder();
        let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<PathBuf> = files.map(|file| file.expect("listed").path()).collect();
        files.sort();
        files
            .into_iter()
            .map(|file| {
                let input = fs::read(&file).expect("readable");
                (file, input)
            })
            .collect()
    }

    fn folder(&self) -> PathBuf {
        root().join("tests/corpus").join(self.name)
    }

    /// The name is a hash of the content, so that the same input is saved once.
    fn save(&self, input: &[u8]) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let file = self.folder().join(format!("broke-{:016x}", hasher.finish()));
        fs::write(&file, input).expect("saved");
        file
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A text without numbers and quoted parts, which vary by input.
fn outline(text: &str) -> String {
    let mut outline = String::new();
    for (place, part) in text.split(['`', '"']).enumerate() {
        if place % 2 == 0 {
            outline.extend(part.chars().filter(|c| !c.is_ascii_digit()));
        }
    }
    outline
}

/// The inputs to mutate.
struct Pool {
    inputs: Vec<Vec<u8>>,
    known: HashSet<String>,
    words: &'static [&'static str],
    rng: StdRng,
}

impl Pool {
    fn of(inputs: Vec<Vec<u8>>, words: &'static [&'static str], seed: u64) -> Self {
        Self { inputs, known: HashSet::new(), words, rng: StdRng::seed_from_u64(seed) }
    }

    fn keep(&mut self, input: Vec<u8>, came_to: &str) {
        if self.inputs.len() < MAX_POOL && self.known.insert(outline(came_to)) {
            self.inputs.push(input);
        }
    }

    fn mutant(&mut self) -> Vec<u8> {
        let mut input = self.any();
        for _ in 0..self.rng.random_range(1..=MAX_STEPS) {
            self.mutate(&mut input);
        }
        input.truncate(MAX_BYTES);
        input
    }

    fn any(&mut self) -> Vec<u8> {
        let place = self.rng.random_range(0..self.inputs.len());
        self.inputs[place].clone()
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let (from, to) = self.range(input.len());
        match self.rng.random_range(0..9) {
            0 if from < input.len() => input[from] ^= 1 << self.rng.random_range(0..8),
            1 if from < input.len() => input[from] = self.rng.random(),
            2 => drop(input.drain(from..to)),
            3 => {
                let copy = input[from..to].to_vec();
                for _ in 0..self.rng.random_range(1..=16) {
                    if input.len() < MAX_BYTES {
                        input.splice(from..from, copy.iter().copied());
                    }
                }
            }
            4 if !self.words.is_empty() => {
                let word = self.words[self.rng.random_range(0..self.words.len())];
                let end = if self.rng.random() { to } else { from };
                input.splice(from..end, word.bytes());
            }
            5 => {
                let other = self.any();
                let (start, end) = self.range(other.len());
                input.splice(from..to, other[start..end].iter().copied());
            }
            6 => {
                let number = self.number();
                input.splice(from..to, number);
            }
            7 => {
                let odd = ["\0", "\u{85}", "é", "\u{202e}", "\u{1f980}", "\r\n", "\u{feff}"];
                let odd = odd[self.rng.random_range(0..odd.len())];
                input.splice(from..from, odd.bytes());
            }
            _ => {
                let byte = self.rng.random();
                input.insert(from, byte);
            }
        }
    }

    /// A number at a boundary, as text or as bytes.
    fn number(&mut self) -> Vec<u8> {
        let bounds =
            [0, 1, 31, 64, 127, 128, 255, 256, 65_535, 1 << 31, (1 << 32) - 1, 1 << 52, 1 << 53, 1 << 63, u64::MAX];
        let number: u64 = bounds[self.rng.random_range(0..bounds.len())];
        match self.rng.random_range(0..5) {
            0 => number.to_be_bytes().to_vec(),
            1 => number.to_be_bytes()[4..].to_vec(),
            2 => format!("-{number}").into_bytes(),
            3 => format!("{number}.5e3").into_bytes(),
            _ => number.to_string().into_bytes(),
        }
    }

    /// A range, mostly a short one.
    fn range(&mut self, length: usize) -> (usize, usize) {
        let from = self.rng.random_range(0..=length);
        let most = if self.rng.random_range(0..4) == 0 { length } else { length.min(from + 16) };
        (from, self.rng.random_range(from..=most.max(from)))
    }
}

/// Draws numbers and texts from an input, for targets that take values instead of text. After the input's end all
/// values are zero.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// At most 255 bytes.
    pub fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes.to_vec()
    }

    pub fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

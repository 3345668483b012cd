pub struct MetricsPage {
    samples: Vec<Sample>,
}

struct Sample {
    name: String,
    /// As rendered: `route="a",sink="b"`.
    labels: String,
    value: f64,
}

impl MetricsPage {
    pub fn parse(page: &str) -> Self {
        let samples = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').to_owned();
            Sample { name: name.to_owned(), labels, value: value.parse().expect("a number") }
        });
        Self { samples: samples.collect() }
    }

    /// Over all series of a name that have these labels, each as `name="value"`; a whole number.
    pub fn sum(&self, name: &str, labels: &[&str]) -> u64 {
        let sum: f64 = self.matching(name, labels).iter().map(|sample| sample.value).sum();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what is counted is below 2^53")]
        let whole = sum.round() as u64;
        whole
    }

    /// The 99th percentile of a histogram, within its bucket as Prometheus' `histogram_quantile` has it. In the
    /// histogram's unit.
    pub fn p99(&self, name: &str, label: &str) -> f64 {
        let mut buckets: Vec<(f64, f64)> = self
            .matching(&format!("{name}_bucket"), &[label])
            .into_iter()
            .map(|sample| {
                let (_, bound) = sample.labels.split_once("le=\"").expect("every bucket has a bound");
                let bound = bound.split('"').next().expect("split gives a first part");
                (if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a number") }, sample.value)
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rank = buckets.last().map_or(0.0, |(_, count)| count * 0.99);
        let (mut lower, mut below) = (0.0, 0.0);
        for (upper, count) in buckets {
            if count >= rank {
                return lower + (upper - lower) * if count > below { (rank - below) / (count - below) } else { 0.0 };
            }
            (lower, below) = (upper, count);
        }
        0.0
    }

    fn matching(&self, name: &str, labels: &[&str]) -> Vec<&Sample> {
        let matches =
            |sample: &&Sample| sample.name == name && labels.iter().all(|label| sample.labels.contains(label));
        self.samples.iter().filter(matches).collect()
    }
}

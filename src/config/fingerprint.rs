//! Digests of the parts of a configuration. A reload compares them to find the parts that differ, and people compare the
//! digest of the whole to find instances with other settings.
//!
//! They are made from the effective values: after defaults, environment and `${...}`, so a rotated secret changes them.

use std::{collections::BTreeMap, fmt, num::NonZeroU32};

use figment::value::{Dict, Value};
use ring::{
    digest::{Context, SHA256, digest},
    pbkdf2::{self, PBKDF2_HMAC_SHA256},
};

use super::{Config, entries::put_over};

/// Iterations of the digest of the whole, so that it does not help to guess a secret: milliseconds at a start.
const ITERATIONS: u32 = 20_000;

/// Bytes of the digest of the whole: a metric holds it as a number, which is exact up to 53 bits.
const DIGEST_BYTES: usize = 6;

/// End of the names of settings that name a file.
const FILE: &str = "_file";

/// A digest of values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets of few characters could be guessed from it.
        f.write_str("***")
    }
}

/// The digests of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Fingerprints {
    /// Include the files that their settings name.
    pub sinks: BTreeMap<String, Fingerprint>,
    /// Without `partitions`.
    pub routes: BTreeMap<String, Fingerprint>,
    /// Include the files that their settings name.
    pub sources: BTreeMap<String, Fingerprint>,
    /// Schedules and their revision.
    pub schedules: Option<Fingerprint>,
    /// `server.auth`.
    pub auth: Option<Fingerprint>,
    /// The content of the files of `server.tls`.
    pub certificate: Option<Fingerprint>,
    /// Settings that take effect at a start, by name.
    pub others: BTreeMap<String, Fingerprint>,
}

/// The digest of a whole configuration. Instances with the same settings have the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigDigest(u64);

impl ConfigDigest {
    /// Below 2^48.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ConfigDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

impl Fingerprints {
    /// `values`: all sections, with the defaults. `config`: made from them.
    pub fn new(values: &Dict, config: &Config) -> Self {
        let entries = |section: &str| section_of(values, section);
        let by_type = |section: &str, defaults: &str| {
            let defaults = entries(defaults);
            let one = |(name, entry): (&String, &Value)| {
                let kind = entry.find_ref("type").and_then(Value::as_str).unwrap_or_default();
                let defaults = defaults.and_then(|all| all.get(kind)?.as_dict());
                let whole = filled(entry, defaults);
                (name.clone(), of(&[text(&whole), files(&whole)]))
            };
            entries(section).into_iter().flatten().map(one).collect()
        };
        let route_defaults = entries("route_defaults");
        let route = |(name, entry): (&String, &Value)| {
            let mut whole = filled(entry, route_defaults);
            whole.remove("partitions");
            // Its default depends on the sources of the route.
            let remember = config.routes.get(name).map(|route| format!("{:?}", route.remember));
            (name.clone(), of(&[text(&whole), remember.unwrap_or_default()]))
        };
        let schedules = ["schedules", "schedules_revision"].map(|key| values.get(key).map(text).unwrap_or_default());
        let server = entries("server");
        let tls = server.and_then(|server| server.get("tls")?.as_dict());
        Self {
            sinks: by_type("sinks", "sink_defaults"),
            routes: entries("routes").into_iter().flatten().map(route).collect(),
            sources: by_type("sources", "source_defaults"),
            schedules: Some(of(&schedules)),
            auth: server.and_then(|server| server.get("auth")).map(|auth| of(&[text(auth)])),
            certificate: tls.filter(|tls| !tls.is_empty()).map(|tls| of(&[files(tls)])),
            others: others(values),
        }
    }
}

impl Config {
    /// The digest of all settings, with secrets and the content of files that settings of sinks and sources name. The
    /// number of partitions of a route counts too. Takes milliseconds.
    pub fn digest(&self) -> ConfigDigest {
        let Fingerprints { sinks, routes, sources, schedules, auth, certificate: _, others } = &self.fingerprints;
        let mut context = Context::new(&SHA256);
        let mut add = |name: &str, fingerprint: &Fingerprint| {
            context.update(&of(&[name.to_owned()]).0);
            context.update(&fingerprint.0);
        };
        for (section, parts) in [("sinks", sinks), ("routes", routes), ("sources", sources), ("others", others)] {
            for (name, fingerprint) in parts {
                add(&format!("{section}.{name}"), fingerprint);
            }
        }
        for (name, route) in &self.routes {
            add(&format!("partitions.{name}"), &of(&[route.partitions.to_string()]));
        }
        for (name, part) in [("schedules", schedules), ("auth", auth)] {
            if let Some(fingerprint) = part {
                add(name, fingerprint);
            }
        }
        let (iterations, mut out) = (NonZeroU32::new(ITERATIONS).expect("not zero"), [0; DIGEST_BYTES]);
        pbkdf2::derive(PBKDF2_HMAC_SHA256, iterations, b"punctual", context.finish().as_ref(), &mut out);
        ConfigDigest(out.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// The sections that are read only at a start, and each setting of `server` except `auth`.
fn others(values: &Dict) -> BTreeMap<String, Fingerprint> {
    const REPLACED: [&str; 8] = [
        "sinks",
        "sink_defaults",
        "routes",
        "route_defaults",
        "sources",
        "source_defaults",
        "schedules",
        "schedules_revision",
    ];
    let sections = values.iter().filter(|(name, _)| !REPLACED.contains(&&***name) && *name != "server");
    let sections = sections.map(|(name, value)| (name.clone(), of(&[text(value)])));
    let server = section_of(values, "server").into_iter().flatten().filter(|(name, _)| *name != "auth");
    sections.chain(server.map(|(name, value)| (format!("server.{name}"), of(&[text(value)])))).collect()
}

fn section_of<'a>(values: &'a Dict, section: &str) -> Option<&'a Dict> {
    values.get(section)?.as_dict()
}

/// An entry with the defaults that it does not set.
fn filled(entry: &Value, defaults: Option<&Dict>) -> Dict {
    let mut whole = defaults.cloned().unwrap_or_default();
    put_over(&mut whole, entry.as_dict().cloned().unwrap_or_default());
    whole
}

fn of(parts: &[String]) -> Fingerprint {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(digest(&SHA256, part.as_bytes()).as_ref());
    }
    Fingerprint(context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("values of YAML are values of JSON")
}

/// The digests of the files that settings name, in the order of the settings. A file that cannot be read counts as empty:
/// the checks report it.
fn files(values: &Dict) -> String {
    let mut digests = Vec::new();
    add_files(values, &mut digests);
    text(&digests)
}

fn add_files(values: &Dict, digests: &mut Vec<Vec<u8>>) {
    for (key, value) in values {
        match value {
            Value::Dict(_, inner) => add_files(inner, digests),
            Value::String(_, path) if key.ends_with(FILE) => {
                digests.push(digest(&SHA256, &std::fs::read(path).unwrap_or_default()).as_ref().to_vec());
            }
            _ => {}
        }
    }
}

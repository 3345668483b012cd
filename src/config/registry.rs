//! What may stand as `type` of a sink or source. Connectors register their types, those of other programs too.

use std::{collections::BTreeMap, sync::Arc};

use figment::value::{Dict, Value};
use schemars::{Schema, SchemaGenerator};

use super::{
    entries::fill,
    problem::{Origins, Path, Problems},
    read::{mapping, read, read_defaults, unknown},
    shared::{Context, Settings},
};
use crate::{sink::SinkSettings, source::SourceSettings};

/// The types of sinks and sources that a configuration may have.
#[derive(Default)]
pub struct Registry {
    pub sinks: Types<dyn SinkSettings>,
    pub sources: Types<dyn SourceSettings>,
}

impl Registry {
    /// # Panics
    /// If the registry has a sink of this name.
    pub fn sink<T: SinkSettings + Settings>(&mut self, name: &'static str) {
        self.sinks.add(Type {
            name,
            read: |entry| entry.read::<T>().map(|settings| Arc::new(settings) as _),
            read_defaults: read_defaults::<T>,
            schema: T::json_schema,
        });
    }

    /// # Panics
    /// If the registry has a source of this name.
    pub fn source<T: SourceSettings + Settings>(&mut self, name: &'static str) {
        self.sources.add(Type {
            name,
            read: |entry| entry.read::<T>().map(|settings| Arc::new(settings) as _),
            read_defaults: read_defaults::<T>,
            schema: T::json_schema,
        });
    }
}

/// The types of one section. `S`: what their settings are to the rest of the program.
pub struct Types<S: ?Sized> {
    known: Vec<Type<S>>,
    /// What this build lacks: names of types, and the Cargo feature of each.
    absent: Vec<(&'static str, &'static str)>,
}

impl<S: ?Sized> Default for Types<S> {
    fn default() -> Self {
        Self { known: Vec::new(), absent: Vec::new() }
    }
}

struct Type<S: ?Sized> {
    name: &'static str,
    read: fn(Entry) -> Option<Arc<S>>,
    read_defaults: fn(&mut Dict, &Path, &Dict, &mut Problems),
    schema: fn(&mut SchemaGenerator) -> Schema,
}

/// The settings of one sink or source, as they were written.
struct Entry<'a, 'b> {
    settings: &'a mut Dict,
    at: &'a Path,
    defaults: &'a Dict,
    context: &'a Context<'a>,
    problems: &'b mut Problems,
}

impl Entry<'_, '_> {
    fn read<T: Settings>(self) -> Option<T> {
        let mut settings: T = read(self.settings, self.at, self.defaults, self.problems)?;
        settings.check(self.at, self.context, self.problems);
        Some(settings)
    }
}

/// The entries of a section and the defaults of their types.
pub struct Section<'a> {
    pub name: &'a str,
    pub entries: Dict,
    pub defaults_name: &'a str,
    pub defaults: Dict,
    /// The program's own defaults.
    pub built_in: &'a Dict,
}

impl<S: ?Sized> Types<S> {
    fn add(&mut self, one: Type<S>) {
        assert!(!self.names().contains(&one.name), "the type `{}` is registered twice", one.name);
        self.known.push(one);
    }

    /// That this build has no type `name`, but would have with the Cargo feature.
    pub fn absent(&mut self, name: &'static str, feature: &'static str) {
        self.absent.push((name, feature));
    }

    fn names(&self) -> Vec<&'static str> {
        self.known.iter().map(|one| one.name).collect()
    }

    /// The settings of every entry that can be read, mistakes or not.
    pub fn read(&self, section: Section, context: &Context, problems: &mut Problems) -> BTreeMap<String, Arc<S>> {
        let from = Path::of(section.defaults_name);
        let defaults = self.defaults(section.defaults, section.built_in, &from, problems);
        let mut read = BTreeMap::new();
        for (name, mut entry) in section.entries {
            let at = &Path::of(section.name).key(&name);
            let Some((one, settings)) = self.type_of(&mut entry, at, problems) else { continue };
            let empty = Dict::new();
            let defaults = defaults.get(one.name).unwrap_or(&empty);
            fill(settings, defaults, at, &from.key(one.name), &mut problems.origins);
            read.extend((one.read)(Entry { settings, at, defaults, context, problems }).map(|read| (name, read)));
        }
        read
    }

    /// By type. What is wrong with them is reported here, not once for every entry.
    fn defaults(&self, given: Dict, built_in: &Dict, at: &Path, problems: &mut Problems) -> BTreeMap<&str, Dict> {
        let mut defaults = BTreeMap::new();
        for (name, mut value) in given {
            let at = at.key(&name);
            let Some(one) = self.known.iter().find(|one| one.name == name) else {
                // The program's own defaults are for all types, those that are not registered too.
                if !built_in.contains_key(&name) {
                    problems.add(&at, unknown(&name, self.names()));
                }
                continue;
            };
            let Some(value) = mapping(&mut value, &at, problems) else { continue };
            let empty = Dict::new();
            let built_in = built_in.get(&name).and_then(Value::as_dict).unwrap_or(&empty);
            (one.read_defaults)(value, &at, built_in, problems);
            fill(value, built_in, &at, &at, &mut Origins::new());
            defaults.insert(one.name, std::mem::take(value));
        }
        defaults
    }

    /// The type that an entry names, and its other settings.
    fn type_of<'a>(
        &self,
        entry: &'a mut Value,
        at: &Path,
        problems: &mut Problems,
    ) -> Option<(&Type<S>, &'a mut Dict)> {
        let Value::Dict(_, settings) = entry else {
            problems.add(at, "must be a mapping with a `type`");
            return None;
        };
        let known = self.names();
        let wrong = match settings.remove("type") {
            Some(Value::String(_, name)) => {
                if let Some(one) = self.known.iter().find(|one| one.name == name) {
                    return Some((one, settings));
                }
                match self.absent.iter().find(|(absent, _)| *absent == name) {
                    Some((_, feature)) => format!("this build has no {name}: build with `--features {feature}`"),
                    None => unknown(&name, known),
                }
            }
            Some(_) => format!("must be one of {}", known.join(", ")),
            None => format!("is missing: one of {}", known.join(", ")),
        };
        problems.add(&at.key("type"), wrong);
        None
    }

    /// The schemas of the settings by type.
    pub fn schemas(&self, generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
        self.known.iter().map(|one| (one.name, (one.schema)(generator))).collect()
    }
}

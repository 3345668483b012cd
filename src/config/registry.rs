//! The types of sinks and sources. Connectors register their types, also those of programs that embed this one.

use std::{collections::BTreeMap, sync::Arc};

use figment::value::{Dict, Value};
use schemars::{Schema, SchemaGenerator};

use super::{
    connectors::{Context, Settings},
    deserialize::{correct, read, unknown},
    entries::fill,
    problem::{Path, Problems},
};
use crate::{sink::SinkSettings, source::SourceSettings};

/// The types of sinks and sources that a configuration can have.
pub struct Registry {
    pub sinks: Types<dyn SinkSettings>,
    pub sources: Types<dyn SourceSettings>,
}

impl Default for Registry {
    fn default() -> Self {
        let (sinks, sources) = (Types::of("sinks", "sink_defaults"), Types::of("sources", "source_defaults"));
        Self { sinks, sources }
    }
}

impl Registry {
    /// # Panics
    /// If the registry has a sink of this name.
    pub fn sink<T: SinkSettings + Settings>(&mut self, name: &'static str) {
        self.sinks.add::<T>(name, |settings| Arc::new(settings));
    }

    /// # Panics
    /// If the registry has a source of this name.
    pub fn source<T: SourceSettings + Settings>(&mut self, name: &'static str) {
        self.sources.add::<T>(name, |settings| Arc::new(settings));
    }
}

/// The types of one section. `S`: the trait of their settings that the rest of the program uses.
pub struct Types<S: ?Sized> {
    pub section: &'static str,
    pub defaults: &'static str,
    known: Vec<Type<S>>,
    /// Types that this build does not have: the name and the Cargo feature of each.
    absent: Vec<(&'static str, &'static str)>,
}

struct Type<S: ?Sized> {
    name: &'static str,
    read: Box<Read<S>>,
    correct: fn(&mut Dict, &Path, &Dict, &mut Problems),
    schema: fn(&mut SchemaGenerator) -> Schema,
}

/// Reads and checks the settings at the path. The second mapping holds their defaults.
type Read<S> = dyn Fn(&mut Dict, &Path, &Dict, &Context, &mut Problems) -> Option<Arc<S>> + Send + Sync;

impl<S: ?Sized + 'static> Types<S> {
    fn of(section: &'static str, defaults: &'static str) -> Self {
        Self { section, defaults, known: Vec::new(), absent: Vec::new() }
    }

    fn add<T: Settings + 'static>(&mut self, name: &'static str, share: fn(T) -> Arc<S>) {
        assert!(!self.names().contains(&name), "the type `{name}` is registered twice");
        let read_checked =
            move |settings: &mut Dict, at: &Path, defaults: &Dict, context: &Context, problems: &mut Problems| {
                let mut settings: T = read(settings, at, defaults, problems)?;
                settings.check(at, context, problems);
                Some(share(settings))
            };
        let correct = |settings: &mut Dict, at: &Path, built_in: &Dict, problems: &mut Problems| {
            correct::<T>(settings, at, built_in, problems);
        };
        self.known.push(Type { name, read: Box::new(read_checked), correct, schema: T::json_schema });
    }

    /// Notes that this build does not have the type `name`, because it lacks the Cargo feature.
    pub fn absent(&mut self, name: &'static str, feature: &'static str) {
        self.absent.push((name, feature));
    }

    fn names(&self) -> Vec<&'static str> {
        self.known.iter().map(|one| one.name).collect()
    }

    fn find(&self, name: &str) -> Option<&Type<S>> {
        self.known.iter().find(|one| one.name == name)
    }

    /// The settings of every readable entry, also of those with mistakes. A mistake in the defaults of a type is
    /// reported once, at the defaults. `built_in`: the program's own defaults by type.
    pub fn read(
        &self,
        entries: Dict,
        mut defaults: BTreeMap<String, Dict>,
        built_in: &Dict,
        context: &Context,
        problems: &mut Problems,
    ) -> BTreeMap<String, Arc<S>> {
        let (from, empty) = (Path::of(self.defaults), Dict::new());
        for (name, settings) in &mut defaults {
            let built_in = built_in.get(name).and_then(Value::as_dict);
            match self.find(name) {
                Some(one) => (one.correct)(settings, &from.key(name), built_in.unwrap_or(&empty), problems),
                // The built-in defaults contain all types, also those that are not registered.
                None if built_in.is_some() => {}
                None => problems.add(&from.key(name), unknown(name, self.names())),
            }
        }
        let mut read = BTreeMap::new();
        for (name, mut entry) in entries {
            let at = &Path::of(self.section).key(&name);
            let Some((one, settings)) = self.type_of(&mut entry, at, problems) else { continue };
            let defaults = defaults.get(one.name).unwrap_or(&empty);
            fill(settings, defaults, at, &from.key(one.name), &mut problems.origins);
            read.extend((one.read)(settings, at, defaults, context, problems).map(|settings| (name, settings)));
        }
        read
    }

    /// The type of an entry, and its other settings.
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
        let names = || self.names().join(", ");
        let wrong = match settings.remove("type") {
            Some(Value::String(_, name)) => {
                if let Some(one) = self.find(&name) {
                    return Some((one, settings));
                }
                match self.absent.iter().find(|(absent, _)| *absent == name) {
                    Some((_, feature)) => format!("this build has no {name}: build with `--features {feature}`"),
                    None => unknown(&name, self.names()),
                }
            }
            Some(_) => format!("must be one of {}", names()),
            None => format!("is missing: one of {}", names()),
        };
        problems.add(&at.key("type"), wrong);
        None
    }

    /// The schemas of the settings by type.
    pub fn schemas(&self, generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
        self.known.iter().map(|one| (one.name, (one.schema)(generator))).collect()
    }
}

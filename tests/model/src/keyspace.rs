//! The keys of a server, and the writes since a moment that a fail-over can drop.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::sorted_set::SortedSet;

/// The error of a command on a key of another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Sorted(SortedSet),
    List(VecDeque<Vec<u8>>),
}

impl Value {
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::Sorted(members) => members.is_empty(),
            Self::List(values) => values.is_empty(),
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::Sorted(_) => "zset",
            Self::List(_) => "list",
        }
    }
}

/// A type of values.
pub trait Kind: Sized + Default {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
}

macro_rules! kinds {
    ($($kind:ty: $variant:ident),*) => {
        $(impl Kind for $kind {
            fn of(value: &Value) -> Option<&Self> {
                if let Value::$variant(one) = value { Some(one) } else { None }
            }
            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                if let Value::$variant(one) = value { Some(one) } else { None }
            }
            fn into_value(self) -> Value {
                Value::$variant(self)
            }
        })*
    };
}

kinds!(Vec<u8>: Text, BTreeMap<Vec<u8>, Vec<u8>>: Hash, SortedSet: Sorted, VecDeque<Vec<u8>>: List);

type Keys = BTreeMap<Vec<u8>, Arc<Value>>;

/// The keys, and the values that the last commands and scripts replaced.
#[derive(Default)]
pub struct Keyspace {
    keys: Keys,
    /// Former values of keys, by the command or script that changed them; the last one is in progress.
    journal: Option<VecDeque<Former>>,
}

/// Former values; `None`: the key was absent.
type Former = BTreeMap<Vec<u8>, Option<Arc<Value>>>;

/// Number of commands and scripts of which a fail-over can drop the writes.
const MAX_JOURNAL: usize = 64;

impl Keyspace {
    /// Keeps the writes from now on, so that `drop_last` can undo them.
    pub fn keep_journal(&mut self) {
        self.journal.get_or_insert_default();
    }

    /// A command or a script begins. Its writes are dropped together.
    pub fn begin(&mut self) {
        if let Some(journal) = &mut self.journal {
            if journal.back().is_none_or(|last| !last.is_empty()) {
                journal.push_back(Former::new());
            }
            if journal.len() > MAX_JOURNAL {
                journal.pop_front();
            }
        }
    }

    /// Undoes the writes of the last `count` commands and scripts that wrote. Returns how many that were.
    pub fn drop_last(&mut self, count: usize) -> usize {
        let mut dropped = 0;
        while dropped < count
            && let Some(former) = self.journal.as_mut().and_then(VecDeque::pop_back)
        {
            dropped += usize::from(!former.is_empty());
            for (key, value) in former {
                match value {
                    Some(value) => self.keys.insert(key, value),
                    None => self.keys.remove(&key),
                };
            }
        }
        dropped
    }

    /// Forgets the writes so far: they can be dropped no more.
    pub fn settle(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.clear();
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.keys.keys()
    }

    pub fn value(&self, key: &[u8]) -> Option<&Value> {
        self.keys.get(key).map(|value| &**value)
    }

    /// # Errors
    /// `WRONG_TYPE`.
    pub fn read<T: Kind>(&self, key: &[u8]) -> Result<Option<&T>, String> {
        self.value(key).map(|value| T::of(value).ok_or_else(|| WRONG_TYPE.to_owned())).transpose()
    }

    /// Changes the value of a key, which is created if it is absent, and deleted if it is empty afterwards.
    ///
    /// # Errors
    /// `WRONG_TYPE`.
    pub fn change<T: Kind, R>(&mut self, key: &[u8], change: impl FnOnce(&mut T) -> R) -> Result<R, String> {
        if self.read::<T>(key)?.is_none() {
            let mut value = T::default();
            let result = change(&mut value);
            let value = value.into_value();
            if !value.is_empty() {
                self.replace(key, Some(value));
            }
            return Ok(result);
        }
        self.note(key);
        let value = self.keys.get_mut(key).expect("it was read");
        // Copies the value if the journal has it.
        let value = Arc::make_mut(value);
        let result = change(T::of_mut(value).expect("its type was checked"));
        if value.is_empty() {
            self.keys.remove(key);
        }
        Ok(result)
    }

    /// Sets or deletes a key. Returns whether it was there.
    pub fn replace(&mut self, key: &[u8], value: Option<Value>) -> bool {
        self.note(key);
        match value {
            Some(value) => self.keys.insert(key.to_vec(), Arc::new(value)).is_some(),
            None => self.keys.remove(key).is_some(),
        }
    }

    pub fn clear(&mut self) {
        self.keys.clear();
        self.settle();
    }

    fn note(&mut self, key: &[u8]) {
        if let Some(last) = self.journal.as_mut().and_then(VecDeque::back_mut)
            && !last.contains_key(key)
        {
            last.insert(key.to_vec(), self.keys.get(key).cloned());
        }
    }
}

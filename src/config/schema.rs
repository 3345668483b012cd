//! The JSON Schema of a configuration file, made of the schemas of the sections and of the registered types.

use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::{check::Root, registry::Registry, source::NEVER_EMPTY};

/// The JSON Schema (draft 2020-12) of a configuration file.
pub fn schema(registry: &Registry) -> Value {
    let mut generator = SchemaGenerator::default();
    let sections = [
        (registry.sinks.defaults, registry.sinks.section, registry.sinks.schemas(&mut generator)),
        (registry.sources.defaults, registry.sources.section, registry.sources.schemas(&mut generator)),
    ];
    let mut root = generator.into_root_schema_for::<Root>().to_value();
    relax(&mut root);
    for (defaults, entries, types) in sections {
        let types: Vec<_> = types.into_iter().map(|(name, schema)| (name, relaxed(schema))).collect();
        let of_each: Map<String, Value> =
            types.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
        let entry: Vec<Value> = types.into_iter().map(|(name, schema)| tagged(name, schema)).collect();
        let properties = &mut root["properties"];
        properties[defaults]["additionalProperties"] = false.into();
        properties[defaults]["properties"] = of_each.into();
        properties[entries]["additionalProperties"] = json!({ "oneOf": entry });
    }
    root
}

fn relaxed(schema: Schema) -> Value {
    let mut schema = schema.to_value();
    relax(&mut schema);
    schema
}

/// Adds `type` to the properties of a sink or source.
fn tagged(name: &str, mut schema: Value) -> Value {
    schema["properties"]["type"] = json!({ "const": name });
    schema["required"] = json!(["type"]);
    schema
}

/// Makes every setting optional and nullable, because the defaults replace missing and empty settings.
fn relax(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(relax);
            if let Some(Value::Object(properties)) = object.get_mut("properties") {
                for (_, property) in properties.iter_mut().filter(|(key, _)| !NEVER_EMPTY.contains(&key.as_str())) {
                    allow_empty(property);
                }
                object.remove("required");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(relax),
        _ => {}
    }
}

fn allow_empty(property: &mut Value) {
    let null = json!({ "type": "null" });
    let Value::Object(object) = property else { return };
    if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
        choices.push(null);
    } else if let Some(kind) = object.get_mut("type") {
        let mut kinds = match kind.take() {
            Value::Array(kinds) => kinds,
            kind => vec![kind],
        };
        if !kinds.iter().any(|kind| kind == "null") {
            kinds.push("null".into());
        }
        *kind = kinds.into();
    } else {
        let description = object.remove("description");
        let inner = Value::from(std::mem::take(object));
        object.extend(description.map(|text| ("description".to_owned(), text)));
        object.insert("anyOf".into(), Value::Array(vec![inner, null]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_within_one_of_several_forms_are_optional_and_can_be_empty() {
        let form = json!({ "properties": { "b": { "type": "integer" } }, "required": ["b"] });
        let mut schema = json!({ "properties": { "a": { "anyOf": [{ "type": "string" }, form] } } });
        relax(&mut schema);
        let form = json!({ "properties": { "b": { "type": ["integer", "null"] } } });
        assert_eq!(schema["properties"]["a"]["anyOf"], json!([{ "type": "string" }, form, { "type": "null" }]));
    }
}

//! `openapi.json` describes every call.

use axum::{http::header, response::IntoResponse};

const DOCUMENT: &str = include_str!("openapi.json");

pub async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::api::endpoints;

    fn parsed() -> Value {
        serde_json::from_str(DOCUMENT).expect("the document is JSON")
    }

    #[test]
    fn the_document_and_the_router_have_the_same_calls() {
        let served: BTreeSet<(String, String)> = endpoints()
            .into_iter()
            .map(|endpoint| (endpoint.path.to_owned(), endpoint.method.as_str().to_lowercase()))
            .collect();
        let document = parsed();
        let mut described = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
                described.insert((path.clone(), method.clone()));
            }
        }
        assert_eq!(served, described);
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        fn walk(root: &Value, value: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(reference)) = fields.get("$ref") {
                        let pointer = reference.strip_prefix('#').expect("a local reference");
                        assert!(root.pointer(pointer).is_some(), "{reference}");
                    }
                    fields.values().for_each(|value| walk(root, value));
                }
                Value::Array(items) => items.iter().for_each(|value| walk(root, value)),
                _ => {}
            }
        }
        let document = parsed();
        assert_eq!(document["openapi"], "3.1.0");
        walk(&document, &document);
    }
}

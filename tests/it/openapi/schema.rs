//! The part of JSON Schema that the description uses. An unknown keyword is an error, so that every described rule is
//! checked.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Violations of the schema by a value. `root` is the document that references point into.
pub(super) fn faults(root: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    check(root, schema, value, "", &mut faults);
    faults
}

/// Target of a reference, or the value itself.
pub(super) fn resolve<'a>(root: &'a Value, value: &'a Value) -> &'a Value {
    let Some(reference) = value["$ref"].as_str() else {
        return value;
    };
    let pointer = reference.strip_prefix('#').unwrap();
    root.pointer(pointer)
        .unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

fn check(root: &Value, schema: &Value, value: &Value, place: &str, faults: &mut Vec<String>) {
    let schema = resolve(root, schema).as_object().unwrap();
    for (keyword, says) in schema {
        let is_so = match keyword.as_str() {
            "description" => true,
            "type" => one_or_all(says).any(|kind| is_of(value, kind.as_str().unwrap())),
            "enum" => says.as_array().unwrap().contains(value),
            "const" => says == value,
            "minimum" => value
                .as_i64()
                .is_none_or(|number| number >= says.as_i64().unwrap()),
            "minLength" => length(value).is_none_or(|length| length >= says.as_u64().unwrap()),
            "maxLength" => length(value).is_none_or(|length| length <= says.as_u64().unwrap()),
            "format" => says == "date-time" && value.as_str().is_none_or(is_time),
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, says, item, &format!("{place}[{number}]"), faults);
                }
                true
            }
            // Checked with "additionalProperties" and "properties".
            "required" => true,
            "additionalProperties" => says == false,
            "properties" => {
                properties(root, schema, value, place, faults);
                true
            }
            _ => panic!("{keyword} is not known: {schema:?}"),
        };
        if !is_so {
            faults.push(format!("{place} is {value}, and {keyword} is {says}"));
        }
    }
}

/// Each required property is present, and each present one is described.
fn properties(
    root: &Value,
    schema: &Map<String, Value>,
    value: &Value,
    place: &str,
    faults: &mut Vec<String>,
) {
    let Some(value) = value.as_object() else {
        return;
    };
    assert_eq!(schema["additionalProperties"], false, "{schema:?}");
    for name in names(&schema["required"]) {
        if !value.contains_key(name) {
            faults.push(format!("{place}.{name} is missing"));
        }
    }
    for (name, value) in value {
        match schema["properties"].get(name) {
            Some(schema) => check(root, schema, value, &format!("{place}.{name}"), faults),
            None => faults.push(format!("{place}.{name} is not described")),
        }
    }
}

/// Texts of a list.
pub(super) fn names(list: &Value) -> BTreeSet<&str> {
    let list = list.as_array().into_iter().flatten();
    list.map(|name| name.as_str().unwrap()).collect()
}

fn one_or_all(value: &Value) -> impl Iterator<Item = &Value> {
    value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice)
        .iter()
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("{kind} is not known"),
    }
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

/// `2026-11-21T09:22:06.198107Z`.
fn is_time(text: &str) -> bool {
    let digits = text
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c });
    digits.eq("0000-00-00T00:00:00.000000Z".chars())
}

//! Filters: containment in the sense of jsonb's `@>`.

use crate::json::Json;

/// Does `value` contain `filter`? An object contains its members, a list its items in any order and number. A list at the
/// top level also contains a scalar.
pub fn contains(value: &Json, filter: &Json) -> bool {
    match (value, filter) {
        (Json::List(_), Json::List(_) | Json::Object(_)) => contains_within(value, filter),
        (Json::List(items), scalar) => items.contains(scalar),
        _ => contains_within(value, filter),
    }
}

fn contains_within(value: &Json, filter: &Json) -> bool {
    match (value, filter) {
        (Json::Object(members), Json::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| members.get(key).is_some_and(|value| contains_within(value, wanted))),
        (Json::List(items), Json::List(wanted)) => {
            wanted.iter().all(|wanted| items.iter().any(|item| contains_within(item, wanted)))
        }
        (value, filter) => value == filter,
    }
}

//! Templates: a string that is exactly `{{/json/pointer}}` is replaced by that value of the event.

use crate::json::Json;

/// A missing value is null; everything else in the template is literal.
pub fn filled(template: &Json, event: &Json) -> Json {
    match template {
        Json::Text(text) => match pointer(text) {
            Some(pointer) => pointed(event, pointer).cloned().unwrap_or(Json::Null),
            None => template.clone(),
        },
        Json::List(items) => Json::List(items.iter().map(|item| filled(item, event)).collect()),
        Json::Object(members) => {
            Json::Object(members.iter().map(|(key, value)| (key.clone(), filled(value, event))).collect())
        }
        Json::Null | Json::Flag(_) | Json::Number(_) => template.clone(),
    }
}

fn pointer(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("{{")?;
    let pointer = inner.strip_suffix("}}")?;
    let braces = [inner.find("}}"), inner.find("{{")].into_iter().flatten().min();
    let is_pointer = pointer.is_empty() || pointer.starts_with('/');
    (is_pointer && braces == Some(pointer.len())).then_some(pointer)
}

fn pointed<'a>(value: &'a Json, pointer: &str) -> Option<&'a Json> {
    pointer.split('/').skip(1).try_fold(value, |value, token| {
        let token = token.replace("~1", "/").replace("~0", "~");
        match value {
            Json::Object(members) => members.get(&token),
            Json::List(items) => items.get(place(&token)?),
            Json::Null | Json::Flag(_) | Json::Number(_) | Json::Text(_) => None,
        }
    })
}

fn place(token: &str) -> Option<usize> {
    let is_place = token.bytes().all(|byte| byte.is_ascii_digit())
        && token.len() <= 9
        && (token == "0" || !token.starts_with('0'));
    if is_place { token.parse().ok() } else { None }
}

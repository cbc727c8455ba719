//! Numbers that the SQL files call by name: `:ready` in a file is `0` in the database. They are written into the text, so
//! plans and the predicates of partial indexes have plain constants.

const CONSTANTS: [(&str, i32); 13] = [
    // Where a queued message stands: `queue.place`.
    ("ready", 0),
    ("behind_key", 1),
    ("on_probation", 3),
    // Advisory locks with two numbers; this is the first. The second is a stripe of keys, an endpoint's id, or a `store_…`.
    // Single keys and bells have locks with one number.
    ("lock_ordering_stripe", 1_886_548_336),
    ("lock_endpoint_claims", 1_886_548_337),
    ("lock_store", 1_886_548_338),
    ("lock_idempotency_stripe", 1_886_548_340),
    // What a `lock_store` is about.
    ("store_months", 1),
    ("store_count", 2),
    ("store_replays", 3),
    ("store_claims", 4),
    ("store_departures", 5),
    ("store_exact_count", 6),
];

pub(super) fn with_constants(sql: &str) -> String {
    let mut parts = sql.split(':');
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
        match CONSTANTS.iter().find(|(name, _)| *name == &part[..end]) {
            Some((_, value)) => written.push_str(&format!("{value}{}", &part[end..])),
            None => written.push_str(&format!(":{part}")),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_numbers_and_casts_and_slices_stay() {
        assert_eq!(with_constants("place = :ready AND"), "place = 0 AND");
        assert_eq!(with_constants("v := :behind_key::smallint"), "v := 1::smallint");
        assert_eq!(
            with_constants("s[1:n], a::ready_made, (:lock_store)"),
            "s[1:n], a::ready_made, (1886548338)"
        );
    }
}

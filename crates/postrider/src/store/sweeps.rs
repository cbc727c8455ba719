//! Redrives or discards dead letters by filter, one step per call: the caller sees the progress and may stop between steps.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{DlqFilter, Result};
use crate::endpoint::EndpointId;
use crate::error::{Invalid, StoreError};

#[async_trait]
pub trait Sweeps: Send + Sync + 'static {
    /// One step over the `failed` letters that the filter selects, in the order in which their messages were sent.
    /// The first step fixes the selection: later letters are not touched. Each step continues from the cursor of the
    /// one before. Two sweeps of the same letters share them.
    async fn sweep(&self, action: SweepAction, filter: DlqFilter, from: Option<SweepCursor>)
    -> Result<Sweep>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SweepAction {
    Redrive,
    Discard,
}

impl SweepAction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// How many were selected when it began.
    pub total: u64,
    /// How many were redriven or discarded so far. Others may have taken some of the rest.
    pub done: u64,
    /// Where the next step begins; None when all is done.
    pub next: Option<SweepCursor>,
}

/// Where a step begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepCursor {
    /// The newest letter that there was.
    pub newest: i64,
    /// Messages up to this one are done.
    pub position: i64,
    pub total: u64,
    pub done: u64,
    /// Where it is logged.
    pub event: Option<i64>,
}

impl SweepCursor {
    pub(crate) fn begin(newest: i64, total: u64) -> Self {
        Self { newest, position: 0, total, done: 0, event: None }
    }

    /// After a step that looked at messages up to `position`; None when there were no more.
    pub(crate) fn after(self, position: Option<i64>, done: u64, event: Option<i64>) -> Sweep {
        let next = position.map(|position| Self { position, done, event, ..self });
        Sweep { total: self.total, done, next }
    }
}

/// A list has pages, a sweep has steps.
pub(crate) fn check_sweep(filter: &DlqFilter) -> Result<(), StoreError> {
    let given = [("after", filter.after.is_some()), ("limit", filter.limit != 0)];
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(Invalid::new(field, "is for lists; all that is selected is taken").into()),
        None => Ok(()),
    }
}

/// For how many more messages there is room: in the whole queue (None), and at endpoints that have a limit of their own.
/// Endpoints that are not listed have room.
#[derive(Debug)]
pub(crate) struct Room(BTreeMap<Option<EndpointId>, u64>);

impl FromIterator<(Option<EndpointId>, u64)> for Room {
    fn from_iter<I: IntoIterator<Item = (Option<EndpointId>, u64)>>(room: I) -> Self {
        Self(room.into_iter().collect())
    }
}

impl Room {
    /// Those of a step that fit, and up to which message that is when not all do. `of` says the endpoint of a letter and
    /// its group: the first message of its key, because all of a key go together. The first group is always among them:
    /// when it does not fit, that is a refusal.
    pub(crate) fn fitting<L>(
        mut self,
        mut letters: Vec<L>,
        of: impl Fn(&L) -> (i64, EndpointId),
    ) -> (Vec<L>, Option<i64>) {
        let mut groups: BTreeMap<i64, Vec<EndpointId>> = BTreeMap::new();
        for (group, endpoint) in letters.iter().map(&of) {
            groups.entry(group).or_default().push(endpoint);
        }
        let too_many = groups.iter().find(|(_, endpoints)| self.take(endpoints).is_none());
        let (Some((too_many, _)), Some((first, _))) = (too_many, groups.first_key_value()) else {
            return (letters, None);
        };
        let up_to = (too_many - 1).max(*first);
        letters.retain(|letter| of(letter).0 <= up_to);
        (letters, Some(up_to))
    }

    /// One more message at each of these; None when there is no room.
    fn take(&mut self, endpoints: &[EndpointId]) -> Option<()> {
        for endpoint in endpoints {
            for limited in [None, Some(*endpoint)] {
                if let Some(room) = self.0.get_mut(&limited) {
                    *room = room.checked_sub(1)?;
                }
            }
        }
        Some(())
    }
}

/// Why this many letters of one key were refused: they never fit below the limit, so retrying does not help.
pub(crate) fn never_fits(refused: StoreError, together: usize) -> StoreError {
    let StoreError::QueueFull { limit, endpoint, .. } = &refused else { return refused };
    if together as u64 <= *limit {
        return refused;
    }
    let whose =
        endpoint.as_ref().map_or("the queue".to_owned(), |name| format!("that of endpoint \"{name}\""));
    StoreError::Conflict(format!(
        "{together} dead letters of one ordering key go back together, and {whose} holds {limit} messages; raise max_queue_size"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EndpointId = EndpointId(1);
    const B: EndpointId = EndpointId(2);

    /// By message, with the first message of its key.
    fn fitting(
        room: &[(Option<EndpointId>, u64)],
        letters: &[(i64, i64, EndpointId)],
    ) -> (Vec<i64>, Option<i64>) {
        let room: Room = room.iter().copied().collect();
        let (fitting, up_to) = room.fitting(letters.to_vec(), |(_, group, endpoint)| (*group, *endpoint));
        (fitting.into_iter().map(|(message, ..)| message).collect(), up_to)
    }

    #[test]
    fn as_many_letters_go_back_as_fit_and_none_without_the_rest_of_its_key() {
        let letters = [(1, 1, A), (3, 3, B), (4, 4, A), (6, 3, B), (8, 8, A), (9, 3, B)];
        let all = vec![1, 3, 4, 6, 8, 9];
        assert_eq!(fitting(&[], &letters), (all.clone(), None));
        assert_eq!(fitting(&[(None, 6), (Some(A), 3), (Some(B), 3)], &letters), (all, None));
        assert_eq!(fitting(&[(None, 5)], &letters), (vec![1, 3, 4, 6, 9], Some(7)));
        assert_eq!(fitting(&[(None, 4)], &letters), (vec![1, 3, 6, 9], Some(3)));
        assert_eq!(fitting(&[(None, 3)], &letters), (vec![1], Some(2)));
        assert_eq!(fitting(&[(Some(A), 2)], &letters), (vec![1, 3, 4, 6, 9], Some(7)));
        assert_eq!(fitting(&[(None, 100), (Some(B), 2)], &letters), (vec![1], Some(2)));
        assert_eq!(fitting(&[(None, 0)], &letters), (vec![1], Some(1)), "the refusal is another's");
        assert_eq!(fitting(&[(None, 0)], &[]), (vec![], None));
    }
}

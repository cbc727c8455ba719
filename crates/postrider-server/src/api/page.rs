//! What a list is asked by, and how it answers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::body::Body;
use axum::extract::Query;
use axum::http::{Response, StatusCode, Uri};
use jiff::Timestamp;
use postrider::{Invalid, StoreError};
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use super::to_response;
use crate::{cursor, send_values};

const PAGE_DEFAULT: usize = 100;
pub(crate) const PAGE_MAX: usize = 1000;

/// A page of a list.
#[derive(Serialize, ToSchema)]
pub(super) struct Page<T: ToSchema> {
    pub(super) items: Vec<T>,
    /// The `cursor` of the next page; null on the last one.
    #[schema(required)]
    pub(super) next: Option<String>,
}

impl<T: ToSchema + Serialize> Page<T> {
    /// One more than asked for was found when there is a next page.
    pub(super) fn of<F, C: Display>(
        mut found: Vec<F>,
        limit: usize,
        place: impl FnOnce(&F) -> C,
        view: impl FnMut(F) -> T,
    ) -> Self {
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|last| cursor::written(place(last)));
        Self { items: found.into_iter().map(view).collect(), next }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        to_response(StatusCode::OK, &self)
    }
}

/// The parameters behind the `?`, each known and given once.
pub(super) struct Params(BTreeMap<String, String>);

impl Params {
    pub(super) fn parse(uri: &Uri, known: &[&str]) -> Result<Self, Problem> {
        let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Problem::invalid("query", error.body_text()))?;
        let mut params = BTreeMap::new();
        for (name, value) in given {
            if !known.contains(&name.as_str()) {
                return Err(StoreError::from(Invalid::unknown_key("", &name, known)).into());
            }
            if params.insert(name.clone(), value).is_some() {
                return Err(Problem::invalid(name, "is given more than once"));
            }
        }
        Ok(Self(params))
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// A value that has a type of its own.
    pub(super) fn value<T: FromStr>(&mut self, name: &str, rule: &str) -> Result<Option<T>, Problem> {
        self.text(name).map(|text| text.parse().map_err(|_| Problem::invalid(name, rule))).transpose()
    }

    pub(super) fn time(&mut self, name: &str) -> Result<Option<Timestamp>, Problem> {
        let time = |text: String| send_values::timestamp(name, &text).map_err(StoreError::from);
        Ok(self.text(name).map(time).transpose()?)
    }

    pub(super) fn limit(&mut self) -> Result<usize, Problem> {
        let Some(text) = self.text("limit") else { return Ok(PAGE_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
        limit.ok_or_else(|| Problem::invalid("limit", format!("must be a whole number from 1 to {PAGE_MAX}")))
    }

    /// What [`cursor::written`] made.
    pub(super) fn cursor<T: FromStr>(&mut self) -> Result<Option<T>, Problem> {
        let Some(text) = self.text("cursor") else { return Ok(None) };
        cursor::read(&text)
            .map(Some)
            .ok_or_else(|| Problem::invalid("cursor", "must be the `next` of the page before"))
    }
}

//! The parameters of a request, and the pages of a list.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::body::Body;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode, Uri};
use axum::response::IntoResponse;
use postrider::{Invalid, StoreError};
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use super::to_response;
use crate::cursor;
pub(super) use crate::view::Page;

const PAGE_DEFAULT: usize = 100;
pub(crate) const PAGE_MAX: usize = 1000;

impl<T: ToSchema + Serialize> IntoResponse for Page<T> {
    fn into_response(self) -> Response<Body> {
        to_response(StatusCode::OK, &self)
    }
}

/// Which page of a list: `limit` and `cursor`, and no other parameter.
pub(super) struct Paging<C> {
    limit: usize,
    /// The cursor, read.
    pub(super) from: Option<C>,
}

impl<C: FromStr, S: Sync> FromRequestParts<S> for Paging<C> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut params = Params::parse(&parts.uri, &["limit", "cursor"])?;
        Ok(Self { limit: params.limit()?, from: params.cursor()? })
    }
}

impl<C> Paging<C> {
    /// How many rows to ask the store for: one more than the page has tells whether there is a next page.
    pub(super) fn rows(&self) -> usize {
        self.limit + 1
    }

    pub(super) fn page<T: ToSchema, P: Display>(
        self,
        items: Vec<T>,
        position: impl FnOnce(&T) -> P,
    ) -> Page<T> {
        Page::of(items, self.limit, position)
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

    pub(super) fn value<T: FromStr>(&mut self, name: &str, rule: &str) -> Result<Option<T>, Problem> {
        self.text(name).map(|text| text.parse().map_err(|_| Problem::invalid(name, rule))).transpose()
    }

    /// A value as [`crate::send_values`] reads it.
    pub(super) fn read<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&str, &str) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Problem> {
        Ok(self.text(name).map(|text| read(name, &text)).transpose().map_err(StoreError::from)?)
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

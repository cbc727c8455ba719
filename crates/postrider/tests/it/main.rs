mod domain;
mod store;

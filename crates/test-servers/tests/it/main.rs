mod database;
mod postgres;

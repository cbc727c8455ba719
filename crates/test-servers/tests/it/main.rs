mod clock;
mod database;
mod pgbouncer;
mod postgres;

mod brokers;
mod clock;
mod database;
mod pgbouncer;
mod postgres;
mod proxy;

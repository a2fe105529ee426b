//! The etcd store against real etcd: the suite that every store must pass, faults, and stores that have gone back.

mod conformance;
mod stage;

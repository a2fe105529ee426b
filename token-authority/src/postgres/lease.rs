//! Leases: a row for each scope, timed by the server's clock. If that clock is set forward, a lease lapses early.

use tokio_postgres::types::Type;

use super::connection::{ConnectionError, get};
use super::steps::{integer, text, value};
use super::worker::Worker;
use crate::{AuthorityError, LeaseStep, Leased};

impl Worker {
    pub(super) async fn lease(
        &mut self,
        scope: String,
        holder: String,
        step: LeaseStep,
    ) -> Result<Leased, AuthorityError> {
        let acquires = matches!(step, LeaseStep::Acquire(_));
        let time = step.time();
        let time_us = time.map(|time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX));
        let acquires = value(Type::BOOL, acquires);
        let own = [text(scope), text(holder), acquires, integer(time_us)];
        let rows = self.step("lease", &own, 1).await?;
        let is_held = rows.first().ok_or_else(ConnectionError::no_row);
        match is_held.and_then(|row| get(row, 0)) {
            Ok(true) => Ok(Leased::Held),
            Ok(false) => Ok(Leased::NotHeld),
            Err(error) => Err(error.into_authority(self.place())),
        }
    }
}

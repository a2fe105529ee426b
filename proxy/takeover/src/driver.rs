//! Driver of the machines: supplies the clock, and carries their requests out.

use std::sync::Arc;

use pgpalisade_authority::Authority;
use tokio::time::{Instant, sleep_until};

use super::control::Control;
use super::error::DeclareError;
use super::machine::{Event, Request, Step};
use super::witness::Witness;
use super::{in_time, sessions};

#[derive(Clone)]
pub(super) struct Driver {
    pub(super) control: Control,
    pub(super) authority: Arc<dyn Authority>,
    pub(super) witness: Arc<Witness>,
}

impl Driver {
    pub(super) fn new(control: &Control, authority: &Arc<dyn Authority>) -> Self {
        Self {
            control: control.clone(),
            authority: Arc::clone(authority),
            witness: Witness::new(control.clone()),
        }
    }

    /// Runs a machine to its end. Each request has time until the deadline, and no pause goes beyond it.
    pub(super) async fn run(
        &self,
        deadline: Instant,
        mut handle: impl FnMut(Event) -> Step,
    ) -> Result<(), DeclareError> {
        let mut event = Event::Begin;
        loop {
            match handle(event) {
                Step::End(end) => return end,
                Step::Ask(pause, request) => {
                    if !pause.is_zero() {
                        sleep_until(deadline.min(Instant::now() + pause)).await;
                    }
                    let answer = self.ask(request, deadline).await;
                    event = answer.unwrap_or_else(Event::Failed);
                }
            }
        }
    }

    async fn ask(&self, request: Request, deadline: Instant) -> Result<Event, DeclareError> {
        let Self {
            control,
            authority,
            witness,
        } = self;
        Ok(match request {
            Request::Mark(scope) => Event::Mark(in_time(authority.mark(&scope), deadline).await?),
            Request::Declare(declaration) => {
                Event::Declared(in_time(authority.declare(&declaration), deadline).await?)
            }
            Request::Sessions => Event::Sessions(in_time(authority.sessions(), deadline).await?),
            Request::Recorded => Event::Recorded(in_time(authority.cluster(), deadline).await?),
            Request::Drained(scope, rank, gone) => {
                let told = authority.drained(&scope, rank, &gone);
                Event::Drained(in_time(told, deadline).await?)
            }
            Request::Forget(gone) => {
                in_time(authority.forget(&gone), deadline).await?;
                Event::Done
            }
            Request::Terminate(old) => {
                Event::Terminated(sessions::terminate(control, &old, deadline).await?)
            }
            Request::Alive(old) => {
                let (alive, cluster) = sessions::alive(control, &old, deadline).await?;
                Event::Alive(alive, cluster)
            }
            Request::Holdouts(left) => {
                Event::Holdouts(sessions::holdouts(control, &left, deadline).await?)
            }
            Request::HasWitness => {
                let (has_witness, cluster) = control.has_witness(deadline).await?;
                Event::HasWitness(has_witness, cluster)
            }
            Request::Witness(scope, mark) => {
                witness.record(&scope, &mark, deadline).await?;
                Event::Done
            }
        })
    }
}

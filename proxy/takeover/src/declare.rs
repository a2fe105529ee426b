//! A declaration: asks the authority, and carries out what follows.

use pgpalisade_authority::{Declaration, Mark, Token};
use pgpalisade_fence::Terms;
use tokio::time::Instant;

use super::error::DeclareError;
use super::plan::{self, Plan, Task};
use super::{Inner, in_time, prepared};

impl Inner {
    pub(super) async fn declare(
        &self,
        declaration: Declaration,
        terms: Terms,
        deadline: Instant,
    ) -> Result<Mark, DeclareError> {
        let declaration = plan::on_terms(declaration, &terms, &self.declared_by);
        self.upkeep.note_joining();
        // Read before the answer: the watch may report the raise sooner.
        let before = self.marks.find(&declaration.scope);
        let before = before.and_then(|cached| cached.mark());
        let declared = self.driver.authority.declare(&declaration);
        let declared = in_time(declared, deadline).await;
        // Once more, because the epoch may have been raised before the session was registered.
        self.upkeep.note_joining();
        let declared = declared?;
        let Plan { tasks, answer } = plan::after(declared, &declaration, &terms, before);
        for task in tasks {
            self.carry_out(task, &declaration, &terms, deadline).await?;
        }
        answer
    }

    async fn carry_out(
        &self,
        task: Task,
        declaration: &Declaration,
        terms: &Terms,
        deadline: Instant,
    ) -> Result<(), DeclareError> {
        let Declaration { scope, cluster, .. } = declaration;
        let (control, witness) = (&self.driver.control, &self.driver.witness);
        match task {
            Task::TellRaise(from, mark, sessions) => {
                self.meters.marks_raised.inc();
                let (from, to) = (from.map(Token::get), mark.token.get());
                let raised_by = &mark.raised_by;
                tracing::info!(%scope, from, to, raised_by, sessions, "the mark is raised");
            }
            Task::Note(mark) => self.marks.note(scope, &mark),
            Task::NoteCluster(recorded) => {
                self.marks.cluster().note(*cluster, recorded);
                control.note_record(recorded);
                control.renew();
            }
            Task::Keep(record) => self.barriers.notes.push(scope, record),
            Task::KeepFound(record) => self.barriers.notes.push_found_complete(scope, record),
            Task::Pass(barrier, lower, record) => {
                let passed = self.barriers.pass(&barrier, &lower, record, deadline);
                passed.await?;
            }
            Task::MeetPrepared(mark) => {
                let policy = terms.bounds.prepared.unwrap_or_default();
                prepared::meet(control, policy, (scope, &mark), deadline).await?;
            }
            Task::ReportPrepared => {
                let (control, deadline) = (control.clone(), Instant::now() + self.timeout);
                tokio::spawn(async move { prepared::report(&control, deadline).await });
            }
            Task::Witness(mark) => witness.record_first(scope, &mark, deadline).await?,
            Task::WitnessFound(mark) if witness.owes(scope, &mark) => {
                witness.record(scope, &mark, deadline).await?;
            }
            Task::WitnessFound(mark) | Task::WitnessLater(mark) => {
                witness.record_later(scope.clone(), mark, deadline);
            }
            Task::CheckIncarnation(mark) => {
                plan::check_incarnation(&mark, self.marks.mark(scope).mark_detail())?;
            }
        }
        Ok(())
    }
}

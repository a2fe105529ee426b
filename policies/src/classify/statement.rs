//! What one statement does: the allow-list of reads, by kind.

use pg_query::protobuf::{DiscardMode, LockStmt, Node, SelectStmt, VariableSetStmt};
use pg_query::{LockMode, NodeEnum};

use super::{block, copy, explain, names, transaction, utility};
use crate::effects::ANY_SETTING;
use crate::effects::Class;
use crate::effects::{Category, Effects, Tables};
use crate::kinds;
use crate::object_name::ObjectName;
use crate::set_config;
use crate::settings;
use crate::verdict::{CommitsInside, Computes, Control, Mistake, Statement, WriteReason};
use crate::walk::{Contents, Role, UnknownShape, examine};

/// What a statement was found to do.
pub(super) struct Found {
    /// Why it is a write, if it is.
    pub(super) why: Option<WriteReason>,
    pub(super) controls: Vec<Control>,
    /// A better word than the name of the node.
    pub(super) kind: Option<&'static str>,
    pub(super) category: Option<Category>,
    pub(super) writes: Tables,
    pub(super) reads: Tables,
    pub(super) functions: Box<[ObjectName]>,
    pub(super) settings: Vec<Box<str>>,
    /// What seems to declare a token in it.
    pub(super) mistake: Option<Mistake>,
    pub(super) computes: Computes,
}

impl Found {
    /// It does nothing to data.
    pub(super) fn nothing() -> Self {
        Self {
            why: None,
            controls: Vec::new(),
            kind: None,
            category: None,
            writes: Tables::none(),
            reads: Tables::none(),
            functions: Box::default(),
            settings: Vec::new(),
            mistake: None,
            computes: Computes::Anything,
        }
    }

    /// A write of which the text does not say more.
    pub(super) fn unknown(why: WriteReason) -> Self {
        Self {
            why: Some(why),
            writes: Tables::Unknown,
            reads: Tables::Unknown,
            ..Self::nothing()
        }
    }

    pub(super) fn control(control: Control) -> Self {
        Self {
            controls: vec![control],
            ..Self::nothing()
        }
    }

    pub(super) fn because(self, why: Option<WriteReason>) -> Self {
        Self { why, ..self }
    }

    /// It is a part of another statement, so that what it does to the session is not followed.
    pub(super) fn inside(self) -> Self {
        let seems = self.controls.iter().find_map(|control| match control {
            Control::SetFencing { variable, .. } => Some(Mistake::DoesNotDeclare(*variable)),
            Control::Mistake(mistake) => Some(mistake.clone()),
            _ => None,
        });
        Self {
            mistake: self.mistake.or(seems),
            controls: Vec::new(),
            computes: Computes::Anything,
            ..self
        }
    }

    pub(super) fn named(self, kind: &'static str) -> Self {
        Self {
            kind: Some(kind),
            ..self
        }
    }

    pub(super) fn in_category(self, category: Category) -> Self {
        Self {
            category: Some(category),
            ..self
        }
    }

    pub(super) fn changing(self, settings: Vec<Box<str>>) -> Self {
        Self { settings, ..self }
    }

    pub(super) fn effects(self) -> Effects {
        let class = match self.why {
            Some(_) => Class::Write,
            None => Class::Read,
        };
        let mut settings = self.settings;
        settings.sort_unstable();
        settings.dedup();
        Effects {
            class,
            category: self.category,
            writes: self.writes,
            reads: self.reads,
            functions: self.functions,
            settings: settings.into(),
        }
    }
}

impl From<Contents> for Found {
    fn from(contents: Contents) -> Self {
        Self {
            why: contents.write,
            controls: Vec::new(),
            kind: None,
            category: contents.category,
            writes: contents.writes,
            reads: contents.reads,
            functions: contents.functions,
            settings: contents.settings,
            mistake: contents.mistake,
            // A part of the statement may be all that was looked at.
            computes: Computes::Anything,
        }
    }
}

pub(super) fn statement(node: Option<&Node>) -> Result<Statement, UnknownShape> {
    let node = node
        .and_then(|node| node.node.as_ref())
        .ok_or(UnknownShape)?;
    let mut found = look(node)?;
    let kind = found.kind.unwrap_or_else(|| kinds::name(node));
    let mut controls = std::mem::take(&mut found.controls);
    controls.extend(found.mistake.take().map(Control::Mistake));
    let why = found.why.clone();
    let computes = match found.computes {
        Computes::Anything if only_steers(kind, &controls) => Computes::Steers,
        computes => computes,
    };
    let effects = found.effects();
    let commits_inside = match effects.class {
        Class::Read => CommitsInside::No,
        Class::Write => kinds::commits_inside(node),
    };
    Ok(Statement {
        effects,
        kind,
        controls: controls.into(),
        commits_inside,
        why,
        computes,
    })
}

/// Whether a statement only steers the session.
fn only_steers(kind: &str, controls: &[Control]) -> bool {
    match kind {
        "BEGIN" | "COMMIT" | "ROLLBACK" | "SAVEPOINT" | "RELEASE" | "ROLLBACK TO" | "SET"
        | "SHOW" | "DISCARD" | "DEALLOCATE" | "LISTEN" | "UNLISTEN" | "CLOSE CURSOR"
        | "LOCK TABLE" => true,
        // Its controls are those of a SELECT that is nothing but set_config of literals.
        "SELECT" => controls.iter().any(Control::is_fencing),
        _ => false,
    }
}

/// Whatever is not named here is a write.
pub(super) fn look(node: &NodeEnum) -> Result<Found, UnknownShape> {
    use NodeEnum as N;
    Ok(match node {
        N::SelectStmt(select) => look_select(select)?,
        N::InsertStmt(_) | N::UpdateStmt(_) | N::DeleteStmt(_) | N::MergeStmt(_) => {
            Found::from(examine(node, Role::Read)?)
                .because(Some(WriteReason::Kind(kinds::name(node))))
        }
        N::TransactionStmt(transaction) => transaction::look(transaction),
        N::VariableSetStmt(set) => look_set(set),
        N::VariableShowStmt(show) => {
            settings::show(&show.name).map_or_else(Found::nothing, Found::control)
        }
        N::ExplainStmt(explain) => explain::look(explain)?,
        N::CopyStmt(copy) => copy::look(copy)?,
        N::DeclareCursorStmt(declare) => look_query(declare.query.as_deref())?,
        N::FetchStmt(fetch) => Found {
            reads: Tables::Unknown,
            ..Found::control(Control::Fetch {
                portal: fetch.portalname.as_str().into(),
            })
        },
        N::PrepareStmt(prepare) => names::prepare(prepare)?,
        N::ExecuteStmt(execute) => names::execute(execute)?,
        N::DeallocateStmt(deallocate) => names::deallocate(deallocate),
        N::DiscardStmt(discard) if discard.target == DiscardMode::DiscardAll as i32 => {
            Found::control(Control::DiscardAll).changing(vec![ANY_SETTING.into()])
        }
        // DISCARD TEMP drops tables of this session alone; PostgreSQL too allows it to a read-only transaction.
        N::DiscardStmt(_)
        | N::ClosePortalStmt(_)
        | N::ListenStmt(_)
        | N::UnlistenStmt(_)
        | N::ConstraintsSetStmt(_) => Found::nothing(),
        N::LockStmt(lock) => look_lock(lock)?,
        N::DoStmt(do_block) => Found {
            mistake: block::mistake(do_block),
            ..utility::look(node)?
        },
        N::AlterRoleSetStmt(alter) => set_elsewhere(node, alter.setstmt.as_ref())?,
        N::AlterDatabaseSetStmt(alter) => set_elsewhere(node, alter.setstmt.as_ref())?,
        N::AlterSystemStmt(alter) => set_elsewhere(node, alter.setstmt.as_ref())?,
        other => utility::look(other)?,
    })
}

fn look_select(select: &SelectStmt) -> Result<Found, UnknownShape> {
    let controls = set_config::of_select(select);
    let contents = examine(select, Role::Read)?;
    let computes = contents.computes;
    let mut found = Found::from(contents);
    if found.why == Some(WriteReason::ComputedSetting)
        && let Some(setting) = set_config::is_of_pg_dump(select)
    {
        found.why = None;
        found.settings = vec![setting.into()];
    }
    Ok(Found {
        // What binds is no mistake.
        mistake: found.mistake.filter(|_| controls.is_empty()),
        controls,
        computes,
        ..found
    })
}

/// A SET that is a part of another statement.
fn set_elsewhere(node: &NodeEnum, set: Option<&VariableSetStmt>) -> Result<Found, UnknownShape> {
    Ok(Found {
        mistake: set.and_then(settings::elsewhere),
        ..utility::look(node)?
    })
}

fn look_set(set: &VariableSetStmt) -> Found {
    let effect = settings::variable_set(set);
    Found {
        why: effect.why,
        controls: effect.control.into_iter().collect(),
        settings: settings::names(set),
        ..Found::nothing()
    }
}

fn look_lock(lock: &LockStmt) -> Result<Found, UnknownShape> {
    let found = if lock.mode == LockMode::AccessShareLock as i32 {
        Found::from(examine(lock, Role::Read)?)
    } else {
        Found::from(examine(lock, Role::Write)?).because(Some(WriteReason::LockMode))
    };
    Ok(found.in_category(Category::Lock))
}

/// A query inside another statement: only SELECT is a read. What it does to the session does not bind.
pub(super) fn look_query(query: Option<&Node>) -> Result<Found, UnknownShape> {
    use NodeEnum as N;
    let query = query
        .and_then(|query| query.node.as_ref())
        .ok_or(UnknownShape)?;
    Ok(match query {
        N::SelectStmt(_) => Found::from(examine(query, Role::Read)?),
        N::InsertStmt(_) | N::UpdateStmt(_) | N::DeleteStmt(_) | N::MergeStmt(_) => {
            Found::from(examine(query, Role::Read)?)
                .because(Some(WriteReason::Contains(kinds::name(query))))
        }
        other => Found::unknown(WriteReason::Contains(kinds::name(other))),
    })
}

//! Every node kind of the grammar. The match below has no `_`: a node of a new grammar version fails to compile until
//! it is listed here. If it is a statement, the corpus must contain one.

use pg_query::NodeEnum;

macro_rules! nodes {
    (statements: [$($statement:ident),* $(,)?], parts: [$($part:ident),* $(,)?]) => {
        pub(crate) const STATEMENTS: &[&str] = &[$(stringify!($statement)),*];

        /// Nodes inside statements.
        pub(crate) const PARTS: &[&str] = &[$(stringify!($part)),*];

        pub(crate) fn name(node: &NodeEnum) -> &'static str {
            match node {
                $(NodeEnum::$statement(_) => stringify!($statement),)*
                $(NodeEnum::$part(_) => stringify!($part),)*
            }
        }
    };
}

nodes! {
    statements: [
        RawStmt, InsertStmt, DeleteStmt, UpdateStmt, MergeStmt, SelectStmt, SetOperationStmt,
        ReturnStmt, PlassignStmt, CreateSchemaStmt, AlterTableStmt, ReplicaIdentityStmt,
        AlterCollationStmt, AlterDomainStmt, GrantStmt, GrantRoleStmt, AlterDefaultPrivilegesStmt,
        CopyStmt, VariableSetStmt, VariableShowStmt, CreateStmt, CreateTableSpaceStmt,
        DropTableSpaceStmt, AlterTableSpaceOptionsStmt, AlterTableMoveAllStmt, CreateExtensionStmt,
        AlterExtensionStmt, AlterExtensionContentsStmt, CreateFdwStmt, AlterFdwStmt,
        CreateForeignServerStmt, AlterForeignServerStmt, CreateForeignTableStmt,
        CreateUserMappingStmt, AlterUserMappingStmt, DropUserMappingStmt, ImportForeignSchemaStmt,
        CreatePolicyStmt, AlterPolicyStmt, CreateAmStmt, CreateTrigStmt, CreateEventTrigStmt,
        AlterEventTrigStmt, CreatePlangStmt, CreateRoleStmt, AlterRoleStmt, AlterRoleSetStmt,
        DropRoleStmt, CreateSeqStmt, AlterSeqStmt, DefineStmt, CreateDomainStmt, CreateOpClassStmt,
        CreateOpFamilyStmt, AlterOpFamilyStmt, DropStmt, TruncateStmt, CommentStmt, SecLabelStmt,
        DeclareCursorStmt, ClosePortalStmt, FetchStmt, IndexStmt, CreateStatsStmt, AlterStatsStmt,
        CreateFunctionStmt, AlterFunctionStmt, DoStmt, CallStmt, RenameStmt, AlterObjectDependsStmt,
        AlterObjectSchemaStmt, AlterOwnerStmt, AlterOperatorStmt, AlterTypeStmt, RuleStmt,
        NotifyStmt, ListenStmt, UnlistenStmt, TransactionStmt, CompositeTypeStmt, CreateEnumStmt,
        CreateRangeStmt, AlterEnumStmt, ViewStmt, LoadStmt, CreatedbStmt, AlterDatabaseStmt,
        AlterDatabaseRefreshCollStmt, AlterDatabaseSetStmt, DropdbStmt, AlterSystemStmt,
        ClusterStmt, VacuumStmt, ExplainStmt, CreateTableAsStmt, RefreshMatViewStmt, CheckPointStmt,
        DiscardStmt, LockStmt, ConstraintsSetStmt, ReindexStmt, CreateConversionStmt,
        CreateCastStmt, CreateTransformStmt, PrepareStmt, ExecuteStmt, DeallocateStmt,
        DropOwnedStmt, ReassignOwnedStmt, AlterTsdictionaryStmt, AlterTsconfigurationStmt,
        CreatePublicationStmt, AlterPublicationStmt, CreateSubscriptionStmt, AlterSubscriptionStmt,
        DropSubscriptionStmt,
    ],
    parts: [
        Alias, RangeVar, TableFunc, IntoClause, Var, Param, Aggref, GroupingFunc, WindowFunc,
        WindowFuncRunCondition, MergeSupportFunc, SubscriptingRef, FuncExpr, NamedArgExpr, OpExpr,
        DistinctExpr, NullIfExpr, ScalarArrayOpExpr, BoolExpr, SubLink, SubPlan, AlternativeSubPlan,
        FieldSelect, FieldStore, RelabelType, CoerceViaIo, ArrayCoerceExpr, ConvertRowtypeExpr,
        CollateExpr, CaseExpr, CaseWhen, CaseTestExpr, ArrayExpr, RowExpr, RowCompareExpr,
        CoalesceExpr, MinMaxExpr, SqlvalueFunction, XmlExpr, JsonFormat, JsonReturning,
        JsonValueExpr, JsonConstructorExpr, JsonIsPredicate, JsonBehavior, JsonExpr, JsonTablePath,
        JsonTablePathScan, JsonTableSiblingJoin, NullTest, BooleanTest, MergeAction, CoerceToDomain,
        CoerceToDomainValue, SetToDefault, CurrentOfExpr, NextValueExpr, InferenceElem,
        ReturningExpr, TargetEntry, RangeTblRef, JoinExpr, FromExpr, OnConflictExpr, Query,
        TypeName, ColumnRef, ParamRef, AExpr, TypeCast, CollateClause, RoleSpec, FuncCall, AStar,
        AIndices, AIndirection, AArrayExpr, ResTarget, MultiAssignRef, SortBy, WindowDef,
        RangeSubselect, RangeFunction, RangeTableFunc, RangeTableFuncCol, RangeTableSample,
        ColumnDef, TableLikeClause, IndexElem, DefElem, LockingClause, XmlSerialize, PartitionElem,
        PartitionSpec, PartitionBoundSpec, PartitionRangeDatum, PartitionCmd, RangeTblEntry,
        RtepermissionInfo, RangeTblFunction, TableSampleClause, WithCheckOption, SortGroupClause,
        GroupingSet, WindowClause, RowMarkClause, WithClause, InferClause, OnConflictClause,
        CtesearchClause, CtecycleClause, CommonTableExpr, MergeWhenClause, ReturningOption,
        ReturningClause, TriggerTransition, JsonOutput, JsonArgument, JsonFuncExpr,
        JsonTablePathSpec, JsonTable, JsonTableColumn, JsonKeyValue, JsonParseExpr, JsonScalarExpr,
        JsonSerializeExpr, JsonObjectConstructor, JsonArrayConstructor, JsonArrayQueryConstructor,
        JsonAggConstructor, JsonObjectAgg, JsonArrayAgg, AlterTableCmd, AtalterConstraint,
        ObjectWithArgs, AccessPriv, Constraint, CreateOpClassItem, StatsElem, FunctionParameter,
        InlineCodeBlock, CallContext, VacuumRelation, PublicationTable, PublicationObjSpec, Integer,
        Float, Boolean, String, BitString, List, IntList, OidList, AConst,
    ]
}

/// Statements of the parse tree that no client text can contain, with the reason.
pub(crate) const NEVER_SENT: &[(&str, &str)] = &[
    (
        "RawStmt",
        "the frame around a statement, kept apart from the nodes",
    ),
    (
        "SetOperationStmt",
        "made by the analysis that follows the parser",
    ),
    (
        "PlassignStmt",
        "an assignment inside PL/pgSQL, parsed by PL/pgSQL alone",
    ),
];

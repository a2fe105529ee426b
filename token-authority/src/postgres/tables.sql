-- Tables of the PostgreSQL store. `@schema@` stands for its schema.

-- One row: identity of the store, and the cluster of its marks. The table lock is the lock of the cluster.
CREATE TABLE @schema@.store (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL,
    identity bytea NOT NULL CHECK (octet_length(identity) = 16),
    system_identifier bigint,
    timeline bigint,
    -- Start of the cluster's server; 0 until a cluster is recorded.
    postmaster_us bigint NOT NULL DEFAULT 0,
    made_at timestamptz NOT NULL DEFAULT now()
);

-- A row is the lock of its scope. Rows are never deleted. Times are microseconds since the Unix epoch.
CREATE TABLE @schema@.marks (
    scope text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL CHECK (token > 0),
    raised_at bigint NOT NULL,
    raised_by text NOT NULL,
    drained boolean NOT NULL DEFAULT false,
    -- Number of repairs, and the record of the last one as JSON.
    incarnation bigint NOT NULL DEFAULT 0,
    repair text,
    -- The take that raised the mark.
    taken text,
    -- The transaction that raised the mark, to find new marks.
    changed xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()
);
CREATE INDEX marks_changed ON @schema@.marks (changed);

CREATE TABLE @schema@.sessions (
    scope text COLLATE "C" NOT NULL,
    pid integer NOT NULL,
    started_us bigint NOT NULL,
    token bigint NOT NULL CHECK (token > 0),
    since bigint NOT NULL,
    incarnation bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, pid, started_us)
);
CREATE INDEX sessions_of_backend ON @schema@.sessions (pid, started_us);
CREATE INDEX sessions_by_rank ON @schema@.sessions (scope, incarnation, token);

-- The last takeovers of each scope as JSON, and the time of the last record. For people.
CREATE TABLE @schema@.takeovers (
    scope text COLLATE "C" PRIMARY KEY,
    history text NOT NULL,
    noted_at bigint NOT NULL
);
CREATE INDEX takeovers_noted ON @schema@.takeovers (noted_at);

-- Holder of each scope's lease, and its end in microseconds since the Unix epoch.
CREATE TABLE @schema@.leases (
    scope text COLLATE "C" PRIMARY KEY,
    holder text NOT NULL,
    until bigint NOT NULL
);

-- Number of steps of each proxy connection. An answered step that is missing here was lost.
CREATE TABLE @schema@.connections (
    id bigint PRIMARY KEY,
    steps bigint NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO @schema@.store (format, identity) VALUES (@format@, '\x@identity@');

WITH space AS MATERIALIZED (
    SELECT n.oid, n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname = '@schema@'
), part AS MATERIALIZED (
    SELECT c.oid, c.relowner, c.relkind, c.relrowsecurity, c.reloftype, '@schema@.' || c.relname AS name
    FROM pg_catalog.pg_class c JOIN space s ON c.relnamespace = s.oid
    WHERE c.relname = ANY (@tables@::pg_catalog.name[])
), expression AS MATERIALIZED (
    SELECT p.oid, 'default of a column of ' || p.name AS what, p.relowner AS owner, d.adbin AS tree
    FROM part p JOIN pg_catalog.pg_attrdef d ON d.adrelid = p.oid
    UNION ALL SELECT p.oid, 'constraint ' || k.conname || ' of ' || p.name, p.relowner, k.conbin
    FROM part p JOIN pg_catalog.pg_constraint k ON k.conrelid = p.oid
), mine (what, owner) AS (
    SELECT 'schema @schema@', s.nspowner FROM space s
    UNION ALL SELECT 'relation ' || p.name, p.relowner FROM part p
    UNION ALL SELECT 'function ' || f.oid::pg_catalog.regprocedure, f.proowner
    FROM pg_catalog.pg_depend d JOIN space s ON d.refobjid = s.oid JOIN pg_catalog.pg_proc f ON f.oid = d.objid
    WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
        AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
), never (what, owner) AS (
    SELECT p.name || ', which is no table', p.relowner FROM part p WHERE p.relkind <> 'r'
    UNION ALL SELECT 'row security of ' || p.name, p.relowner FROM part p WHERE p.relrowsecurity
    UNION ALL SELECT 'policy ' || y.polname || ' of ' || p.name, p.relowner
    FROM part p JOIN pg_catalog.pg_policy y ON y.polrelid = p.oid
    UNION ALL SELECT 'type of ' || p.name, y.typowner FROM part p JOIN pg_catalog.pg_type y ON y.oid = p.reloftype
    UNION ALL SELECT 'type of column ' || a.attname || ' of ' || p.name, y.typowner
    FROM part p JOIN pg_catalog.pg_attribute a ON a.attrelid = p.oid JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
    -- Oids from here on belong to objects that users created (FirstNormalObjectId, access/transam.h).
    WHERE y.oid >= 16384
    UNION ALL SELECT 'trigger ' || t.tgname || ' of ' || p.name, f.proowner
    FROM part p JOIN pg_catalog.pg_trigger t ON t.tgrelid = p.oid JOIN pg_catalog.pg_proc f ON f.oid = t.tgfoid
    UNION ALL SELECT 'rule ' || r.rulename || ' of ' || p.name, p.relowner
    FROM part p JOIN pg_catalog.pg_rewrite r ON r.ev_class = p.oid
    UNION ALL SELECT o.relname || ', which inherits from ' || p.name, o.relowner
    FROM part p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid JOIN pg_catalog.pg_class o ON o.oid = i.inhrelid
    UNION ALL SELECT o.relname || ', from which ' || p.name || ' inherits', o.relowner
    FROM part p JOIN pg_catalog.pg_inherits i ON i.inhrelid = p.oid JOIN pg_catalog.pg_class o ON o.oid = i.inhparent
    UNION ALL SELECT 'constraint ' || k.conname || ' of ' || p.name, p.relowner
    FROM part p JOIN pg_catalog.pg_constraint k ON k.conrelid = p.oid WHERE k.contype NOT IN ('p', 'n', 'c')
    UNION ALL SELECT 'index ' || c.relname || ' of ' || p.name, c.relowner
    FROM part p JOIN pg_catalog.pg_index x ON x.indrelid = p.oid JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid
    WHERE x.indexprs IS NOT NULL OR x.indpred IS NOT NULL
    UNION ALL SELECT e.what, e.owner FROM expression e
    WHERE pg_catalog.pg_get_expr(e.tree, e.oid) <> ALL (@expressions@::pg_catalog.text[])
)
SELECT n.what, pg_catalog.pg_get_userbyid(n.owner)::pg_catalog.text FROM never n
UNION ALL SELECT m.what, pg_catalog.pg_get_userbyid(m.owner)::pg_catalog.text FROM mine m
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = m.owner AND (r.rolsuper OR r.rolname = current_user))

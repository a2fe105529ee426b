//! Portals and statements that are not what they seem. Either a message after an error was skipped (C3), or a cursor
//! of SQL is a portal of the protocol (C4).

use super::script::held;

held! {
    /// C3: Parse or Bind of a read that the server has skipped, as an unnamed statement, a portal or a named statement.
    /// The portal is in a block, with a savepoint before the error, which it survives.
    c3_what_is_skipped_behind_an_error: Writes, "
Bare, Neighbour, grouped
    {failure} & {payload} = Parse e SELEC & {p1} | Bind e nowhere & {p2} \
    | Parse e SELECT 1/0 ;; Bind e e ;; Execute e & {p3}
    Parse . {payload} ;; Sync ;; {failure} ;; Parse . SELECT 1 ;; Sync ;; Bind . . ;; Execute . ;; Sync \
    | BEGIN ;; Parse w {payload} ;; Parse r SELECT 1 ;; Parse save SAVEPOINT s ;; Parse back ROLLBACK TO s \
      ;; Bind p w ;; Bind save save ;; Execute save ;; Sync \
      ;; {failure} ;; ClosePortal p ;; Bind p r ;; Sync \
      ;; Bind back back ;; Execute back ;; Execute p ;; Sync ;; COMMIT \
    | Parse s {payload} ;; Sync ;; {failure} ;; CloseStatement s ;; Parse s SELECT 1 ;; Sync \
      ;; Bind . s ;; Execute . ;; Sync";

    /// C4: a portal of the protocol is a cursor of SQL. A Parse of FETCH does not look up the portal, so it may come
    /// first.
    c4_a_portal_as_a_cursor: Writes, "
Bare, Elsewhere, Neighbour, grouped
    {run} & {payload} = FETCH p & {p1} | FETCH ALL FROM p & {p2} | MOVE p & {p3} | MOVE ALL FROM p & {p1} \
    | FETCH \"p\" & {p2}
    BEGIN ;; Parse s {payload} ;; Bind p s ;; Sync ;; {run} ;; COMMIT \
    | BEGIN ;; Parse s {payload} ;; Bind p s ;; > {run} ;; Sync ;; COMMIT \
    | Parse f {run} ;; Sync ;; BEGIN ;; Parse s {payload} ;; Bind p s ;; Bind . f ;; Execute . ;; Sync ;; COMMIT \
    | Parse s {payload} ;; Bind p s ;; > {run} ;; Sync";
}

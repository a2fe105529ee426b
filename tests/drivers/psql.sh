#!/bin/sh
# psql. Each `session` is one psql, which reads SQL, and the takeover as a command of its own (\!).
set -u
takeover() { "$TAKEOVER" "$@"; }
session() { psql -XqAt -v VERBOSITY=verbose "$@" 2>&1; }
kept() { echo "INSERT INTO jobs VALUES ('$now', 'kept');"; }
lost() { echo "INSERT INTO jobs VALUES ('$now', 'lost');"; }
slow="SELECT FROM pg_sleep(10);"
during='\! "$TAKEOVER" >/dev/null'
asleep='\! "$TAKEOVER" asleep'

# How psql tells of the fence: the SQLSTATE, or lost.
refused() {
    output=$(cat)
    case $output in
    *"PF001: "*) echo PF001 ;;
    *"08007: "*) echo 08007 ;;
    *"server closed"*) echo lost ;;
    *) echo "FAILED $output" ;;
    esac
}
# That nothing is said.
quiet() { output=$(cat); case $output in "${1:-}") echo ok ;; *) echo "FAILED $output" ;; esac; }
says() { grep -q "$1" && echo ok; }
with() { token=$1; shift; PGOPTIONS="-c fencing.token=$token" session "$@"; }

# In transaction mode nothing that psql sets for itself keeps the server connection.
shares() { { kept; echo '\! "$TAKEOVER" keeps'; } | with "$(takeover)" | quiet 0; }
string() { kept | with "$(takeover)" | quiet; }
set_() { { echo "SET fencing.token = $(takeover);"; kept; } | session | quiet; }
local_() {
    { echo "BEGIN; SET LOCAL fencing.token = $(takeover);"; kept; echo "COMMIT;"; lost; } | session | says 'PF002: '
}
old_string() { old=$(takeover); kept | with "$(takeover)"; lost | with "$old" | refused; }
old_set() {
    old=$(takeover) new=$(takeover)
    { echo "SET fencing.token = $old;"; lost; echo "SET fencing.token = $new;"; kept; } | session | refused
}
old_local() {
    old=$(takeover) new=$(takeover)
    { echo "BEGIN; SET LOCAL fencing.token = $old;"; lost; echo "ROLLBACK; BEGIN;"
      echo "SET LOCAL fencing.token = $new;"; kept; echo "COMMIT;"; } | session | refused
}
idle() { { kept; echo "$during"; lost; } | with "$(takeover)" | refused; }
transaction() { { kept; echo "BEGIN;"; lost; echo "$during"; echo "COMMIT;"; } | with "$(takeover)" | refused; }
statement() {
    { kept; echo "$asleep"; echo "INSERT INTO jobs SELECT '$now', 'lost' FROM pg_sleep(10);"; } |
        with "$(takeover)" | refused
}
batch() {
    { kept; echo "$asleep"; echo "$(lost)$slow$(lost)" | sed 's/;\(.\)/\\;\1/g'; } | with "$(takeover)" | refused
}
copy() {
    echo "copy	kept" >"$WORK/kept"
    printf '%s\n' "\\copy jobs FROM '$WORK/kept'" \
        "\\copy jobs FROM PROGRAM 'echo \"copy	lost\"; \"\$TAKEOVER\" >/dev/null; echo \"copy	lost\"'" |
        with "$(takeover)" | refused
}
autocommit() {
    { echo "SET fencing.token = $(takeover);"; kept; echo "COMMIT;"; lost; echo "$during"; echo "COMMIT;"; } |
        session -v AUTOCOMMIT=off | refused
}
fields() {
    old=$(takeover)
    { kept; echo "SET fencing.token = $old;"; } | with "$(takeover)" >"$WORK/fields"
    grep -q '^ERROR:  PF001: ' "$WORK/fields" && grep -q '^DETAIL:  The mark of scope' "$WORK/fields" &&
        grep -q '^HINT:  This process is no longer the leader' "$WORK/fields" && echo ok
}
cancel() {
    { kept; echo "$slow"; } | PGOPTIONS="-c fencing.token=$(takeover)" session >"$WORK/cancel" &
    takeover sleeps
    kill -INT "$(pgrep -P $! psql || echo $!)"
    wait $!
    grep -q 57014 "$WORK/cancel" && echo ok
}
notify() {
    { echo "LISTEN jobs; NOTIFY jobs, 'done';"; kept; } | with "$(takeover)" |
        says 'notification "jobs" with payload "done"'
}
objects() {
    echo "an object" >"$WORK/object"
    { echo "\\lo_import '$WORK/object'"; echo "\\lo_export :LASTOID '$WORK/object.again'"
      echo '\lo_unlink :LASTOID'; kept; } |
        with "$(takeover)" | grep -v '^lo_' | quiet && cmp "$WORK/object" "$WORK/object.again"
}
cursor() {
    { echo "\\set FETCH_COUNT 10"; echo "SELECT generate_series(1, 1000);"; kept; } | with "$(takeover)" | tail -1 |
        quiet 1000
}
attrs() {
    { echo "SET fencing.token = $(takeover);"; kept; } | PGTARGETSESSIONATTRS=read-write session | quiet
}

echo "version: $(psql --version | cut -d' ' -f1,3)"
for now in ${*:-shares string set local old-string old-set old-local idle transaction statement batch copy autocommit \
    fields cancel notify objects cursor attrs}; do
    case $now in
    set | local) cell=$("${now}_") ;;
    *) cell=$("$(echo "$now" | tr - _)") ;;
    esac
    echo "$now: ${cell:-FAILED}" | paste -sd ' '
done
for now in pool prepared binary; do echo "$now: n/a psql has none"; done

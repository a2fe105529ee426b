# Servers for a script: a PostgreSQL and the proxy, on free ports of this machine, until the script ends.
#
# The script sets:
#   PROXY            the binary of the proxy
#   CONNECTIONS_MAX  sessions that PostgreSQL is to allow
# Its user may set:
#   PG_BIN           the directory of PostgreSQL's programs [the newest below /usr/lib/postgresql]
#   FLAGS            more flags for the proxy
#
# Sets `DIR`, a directory that is removed at the end. `start_postgres` sets `port`, `start_proxy` sets `through`.

# shellcheck disable=SC2012 # Names of versions.
readonly BIN=${PG_BIN:-$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)}
readonly DIR=$(mktemp -d)
chmod 755 "$DIR"
proxy='' server=''

complain() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# A tracer passes no signals on, so the signal goes to its child, the proxy.
end_proxy() {
    kill -TERM "$(pgrep -P "$proxy" || echo "$proxy")" && wait "$proxy" || true
    proxy=''
}

stop_servers() {
    [[ -z "$proxy" ]] || end_proxy
    [[ -z "$server" ]] || { kill -INT "$server" && wait "$server"; } || true
    rm -rf "$DIR"
}
trap stop_servers EXIT

# PostgreSQL refuses to run as root.
as_postgres() {
    (( EUID != 0 )) || set -- setpriv --reuid postgres --regid postgres --clear-groups "$@"
    exec "$@"
}

free_port() {
    local port
    while port=$((20000 + RANDOM % 10000)) && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

wait_for() { # PORT LOG
    for _ in {1..600}; do
        if "$BIN/psql" -h 127.0.0.1 -p "$1" -Atc 'SELECT 1' >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    complain "no server on port $1: $(cat "$2")"
}

# With pgbench's tables, at scale 1.
start_postgres() {
    mkdir "$DIR/pg"
    (( EUID != 0 )) || chown postgres "$DIR/pg"
    (as_postgres "$BIN/initdb" -D "$DIR/pg" -A trust -U postgres --no-sync) >"$DIR/pg.log" 2>&1
    port=$(free_port)
    (as_postgres "$BIN/postgres" -D "$DIR/pg" -p "$port" -c fsync=off -c "max_connections=$((CONNECTIONS_MAX + 20))" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories=) >>"$DIR/pg.log" 2>&1 &
    server=$!
    wait_for "$port" "$DIR/pg.log"
    "$BIN/pgbench" -i -q -h 127.0.0.1 -p "$port" >>"$DIR/pg.log" 2>&1
}

# Runs the proxy under a command, if one is given.
start_proxy() { # COMMAND...
    through=$(free_port)
    # shellcheck disable=SC2086 # Several words.
    "$@" "$PROXY" serve --listen "127.0.0.1:$through" --upstream "postgres://127.0.0.1:$port" \
        --authority "embedded:$DIR/authority" --shutdown-grace 1s ${FLAGS-} >"$DIR/proxy.log" 2>&1 &
    proxy=$!
    wait_for "$through" "$DIR/proxy.log"
}

# The proxy would read PGPALISADE_ variables as settings.
unset "${!PGPALISADE_@}"
export PGUSER=postgres PGDATABASE=postgres PGPASSWORD=none

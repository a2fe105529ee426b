# Start of each script here. A script runs as root in its own namespaces: all ports are free, and no process, mount or
# port remains.
set -eux
programs=$1 # PostgreSQL's
ip link set lo up

# A server at 127.0.0.1:5432 with the role of docs/start.md.
start_postgres() {
    mkdir "$1"
    chown 65534 "$1"
    as_nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
    (cd "$1" && $as_nobody "$programs/initdb" --pgdata=data --auth=trust --username=postgres --no-sync)
    (cd "$1" && $as_nobody "$programs/pg_ctl" --pgdata=data --log=log --options="-k '$1'" --wait start)
    "$programs/psql" -X -h 127.0.0.1 -U postgres -c 'CREATE ROLE pgpalisade LOGIN' \
        -c 'GRANT pg_signal_backend, pg_read_all_stats TO pgpalisade' \
        -c 'GRANT CREATE ON DATABASE postgres TO pgpalisade'
}

# Retries a command until it succeeds, for at most 20 s.
wait_for() {
    { set +x; } 2>/dev/null
    looks=400
    until "$@"; do
        looks=$((looks - 1))
        [ $looks -gt 0 ]
        sleep 0.05
    done
    set -x
}

# Checks that the proxy serves and fences.
use() {
    wait_for "$programs/pg_isready" -q -h 127.0.0.1 -p 6432
    through="$programs/psql -XAtq -h 127.0.0.1 -p 6432 -U postgres"
    PGOPTIONS='-c fencing.token=1' $through -c 'CREATE TABLE IF NOT EXISTS jobs ()'
    refused=$($through -v VERBOSITY=sqlstate -c 'INSERT INTO jobs DEFAULT VALUES' 2>&1 || true)
    [ "$refused" = 'ERROR:  PF002' ]
}

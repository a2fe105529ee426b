# From the installation of the package to its purge.
owned() { # FILE OWNER:GROUP MODE
    [ "$(stat -c '%U:%G %a' "$1")" = "$2 $3" ]
}
as_pgpalisade="setpriv --reuid=pgpalisade --regid=pgpalisade --init-groups"
check="$as_pgpalisade pgpalisade check --config /etc/pgpalisade/pgpalisade.toml"

# Replacement for systemd, as far as the package's scripts use it. This script starts the program itself.
mkdir -p /run/systemd/system
cat >/usr/local/sbin/systemctl <<'END'
#!/bin/sh
case "$*" in
'daemon-reload') ;;
'--quiet is-active pgpalisade.service') pidof pgpalisade >/dev/null ;;
'kill --kill-who=main --signal=USR2 pgpalisade.service') kill -USR2 "$(pidof pgpalisade)" ;;
'--quiet disable --now pgpalisade.service') kill "$(pidof pgpalisade)" ;;
*) exit 1 ;;
esac
END
chmod 755 /usr/local/sbin/systemctl

# No remains of an earlier installation.
dpkg --purge pgpalisade || true
userdel pgpalisade || true
rm -rf /etc/pgpalisade /var/lib/pgpalisade /var/log/pgpalisade /usr/local/bin/pgpalisade

dpkg --path-include='/usr/share/*' --install /pgpalisade.deb
[ "$(getent passwd pgpalisade | cut -d: -f6-)" = /nonexistent:/usr/sbin/nologin ]
owned /usr/bin/pgpalisade root:root 755
owned /etc/pgpalisade root:root 755
owned /etc/pgpalisade/pgpalisade.toml root:pgpalisade 640
owned /var/lib/pgpalisade pgpalisade:pgpalisade 700
owned /var/log/pgpalisade pgpalisade:pgpalisade 750
owned /usr/share/doc/pgpalisade/docs/index.md root:root 644
if command -v man >/dev/null; then
    man --pager=cat 8 pgpalisade >/run/page
    grep 'pgpalisade-serve(8)' /run/page
    man --pager=cat pgpalisade-scope-repair >/run/page
else
    echo 'no page was read: there is no man here'
fi

# After the installation only PostgreSQL is missing.
$check >/run/said && exit 1
cat /run/said
for id in config files; do
    grep "^ok  *$id " /run/said
done
grep '^warn  *authority .*there is no store yet' /run/said
grep '^FAIL  *control .*127.0.0.1:5432' /run/said
start_postgres /cluster
$check

start=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/pgpalisade.service)
$as_pgpalisade sh -c "exec $start" &
use
wait_for grep '"sqlstate":"PF002"' /var/log/pgpalisade/rejections.jsonl

# An upgrade replaces the running program, and keeps the configuration file.
old=$(pidof pgpalisade)
chmod 400 /etc/pgpalisade/pgpalisade.toml
chown pgpalisade:root /etc/pgpalisade/pgpalisade.toml
dpkg --path-include='/usr/share/*' --install /pgpalisade.deb
wait "$old"
use
owned /etc/pgpalisade/pgpalisade.toml pgpalisade:root 400

dpkg --remove pgpalisade
has_ended() { ! pidof pgpalisade >/dev/null; }
wait_for has_ended
[ ! -e /usr/bin/pgpalisade ]
[ -e /etc/pgpalisade/pgpalisade.toml ]
[ -n "$(ls /var/lib/pgpalisade)" ]

dpkg --purge pgpalisade
for path in /etc/pgpalisade /etc/logrotate.d/pgpalisade /var/lib/pgpalisade /var/log/pgpalisade \
    /usr/share/doc/pgpalisade /lib/systemd/system/pgpalisade.service; do
    [ ! -e "$path" ]
done

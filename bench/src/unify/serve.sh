# The papers' guest: log, cron, secure shell, web, mail, database. It says so when all of them answer, and stays.
mkdir -p /run/sshd /run/lock /run/apache2 /run/postgresql
chown postgres /run/postgresql
rsyslogd 2>/dev/null
cron
/usr/sbin/sshd
. /etc/apache2/envvars
apache2 -k start 2>/dev/null
postfix start >/dev/null 2>&1
server=$(echo /usr/lib/postgresql/*/bin/postgres)
data=$(echo /var/lib/postgresql/*/main)
setpriv --reuid postgres --regid postgres --clear-groups "$server" -D "$data" >/dev/null 2>&1 &
# In /proc/net/tcp, listening: ports 22, 25 and 80, in hexadecimal.
listens() { grep -qE "^ +[0-9]+: [0-9A-F]+:$1 [0-9A-F]+:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null; }
until listens 0016 && listens 0019 && listens 0050 && [ -S /run/postgresql/.s.PGSQL.5432 ] && pidof rsyslogd >/dev/null; do sleep 0.02; done
echo ready
exec sleep 1000000

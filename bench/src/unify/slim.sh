# Makes a Debian root as small as the papers' (150 MB a guest): what no daemon reads goes, and the database begins small. Run with the root as argument.
set -e
cd "$1"
find usr/bin usr/sbin usr/lib/x86_64-linux-gnu -size +3000k \( -name 'libLLVM*' -o -name 'libz3*' -o -name 'libperl*' -o -name 'perl*' \) -delete
rm -rf usr/share/doc usr/share/man usr/share/locale usr/share/i18n usr/share/info usr/share/lintian usr/share/bash-completion usr/share/perl \
    usr/share/perl5 usr/share/zoneinfo/right usr/share/zoneinfo/posix usr/lib/x86_64-linux-gnu/perl* usr/lib/x86_64-linux-gnu/gconv \
    usr/lib/x86_64-linux-gnu/libapt-* usr/lib/postgresql/*/lib/bitcode usr/lib/postgresql/*/lib/llvmjit* usr/lib/apt usr/bin/openssl usr/bin/ssh \
    usr/bin/localedef usr/sbin/ldconfig usr/bin/ssh-keyscan usr/bin/ssh-add usr/bin/ssh-agent usr/bin/sftp usr/bin/scp usr/lib/openssh/ssh-*-helper usr/bin/gpgv var/cache/* var/lib/dpkg/info var/lib/apt
main=$(echo var/lib/postgresql/*/main)
rm -rf "$main"
programs=/$(echo usr/lib/postgresql/*/bin)
as_postgres() { chroot . setpriv --reuid postgres --regid postgres --clear-groups env LANG=C "$@" >/dev/null; }
as_postgres "$programs/initdb" --wal-segsize=1 --no-sync --auth=trust --encoding=SQL_ASCII -D "/$main"
as_postgres "$programs/pg_resetwal" -f -D "/$main"
# So that its first use of the log makes no more than it needs.
printf '%s\n' 'min_wal_size = 2MB' 'max_wal_size = 8MB' 'jit = off' >>"$main/postgresql.conf"
